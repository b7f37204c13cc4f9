//! How a tenure ends on purpose: released, revoked, handed over, or reaped after its owner was gone.

pub(crate) mod guard;
pub(crate) mod handover;
pub(crate) mod handover_request;
#[cfg(test)]
mod handover_request_tests;
#[cfg(test)]
mod handover_tests;
pub(crate) mod reap;
pub(crate) mod release;
