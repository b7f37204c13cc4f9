//! From the library's types to the wire and back.
//!
//! Outwards nothing can fail. Inwards a message may lack what it must have, and the error names it.
//! Lives travel as whole milliseconds, rounded up on the way to the store: nobody gets less than was
//! promised. How much of a life is left travels in microseconds, rounded down.

mod capabilities;
mod commit;
mod lease;
mod object;
mod query;
mod touch;
mod watch;

pub(crate) use commit::{expect as expectation, expected};

pub use lease::{lease_of, orphan_of, waiter_of};

use std::time::Duration;

use tenure::{Error, Result};

/// Names of backends, which the library knows as constants.
const BACKENDS: [&str; 8] =
    ["memory", "file", "sqlite", "postgres", "etcd", "nats", "kubernetes", "server"];

/// The constant for this name; an unknown one is that of some server.
pub(crate) fn backend(name: &str) -> &'static str {
    BACKENDS.into_iter().find(|known| *known == name).unwrap_or("server")
}

/// A field that must be there.
pub fn need<T>(field: Option<T>, what: &'static str) -> Result<T> {
    field.ok_or_else(|| Error::invalid(what, "it is missing from the message"))
}

/// A life, in whole milliseconds and never less.
pub fn ms_up(life: Duration) -> u64 {
    u64::try_from(life.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What is left of a life, in whole milliseconds and never more.
pub fn ms_down(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
