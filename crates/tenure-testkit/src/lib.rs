//! Private servers for Tenure's tests and benchmarks.
//!
//! A test that needs Postgres or NATS starts one of its own with [`Postgres::start`] or
//! [`Nats::start`]: real binaries, durable settings, a folder and a port nobody else uses. It ends with the value, and it also ends when the
//! test process dies without saying so. Where the binaries are missing the test fails with the
//! command that installs them; nothing is skipped.

mod fakeclock;
mod install;
mod nats;
mod postgres;
mod watchdog;

pub use nats::{Nats, NatsSettings};
pub use postgres::{Postgres, StopMode};
