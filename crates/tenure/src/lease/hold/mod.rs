//! Holding a lease: what is known of a tenure, the handle a program has, and renewing it in time.
//!
//! [`renew`] is the one place where renewals are sent and sent again; [`timing`] says when, and
//! [`schedule`] in which order. A tenure that ends tells its [`lease::Lease`] and its observers once.

#[cfg(test)]
mod asleep_tests;
pub(crate) mod heartbeat;
#[cfg(test)]
mod hold_tests;
pub(crate) mod lease;
pub(crate) mod observer;
pub(crate) mod renew;
pub(crate) mod schedule;
pub(crate) mod state;
pub(crate) mod timing;
