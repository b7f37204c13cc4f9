//! Private servers for Tenure's tests and benchmarks.
//!
//! A test that needs Postgres or NATS starts one of its own with [`Postgres::start`] or
//! [`Nats::start`]: real binaries, durable settings, a folder and a port nobody else uses. It ends
//! with the value, and it also ends when the
//! test process dies without saying so. Where the binaries are missing the test fails with the
//! command that installs them; nothing is skipped. [`Etcd`] is the same for etcd, one node or a
//! cluster, and [`Proxy`] is a door in front of a server that a test can shut. Of Kubernetes there is
//! no server to start, so it has a stand-in, [`ApiServer`].

mod etcd;
mod fakeclock;
mod install;
mod kubernetes;
mod nats;
mod ports;
mod postgres;
mod proxy;
mod watchdog;

pub use etcd::{Etcd, EtcdOptions, ServerTls};
pub use kubernetes::{ApiServer, Fault, Seen};
pub use nats::{Nats, NatsSettings};
pub use postgres::{Postgres, StopMode};
pub use proxy::Proxy;
