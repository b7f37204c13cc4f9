//! Declared leases: a module says once which leases it uses, and works under them.
//!
//! [`Module`] and [`Declared`] acquire by name and key. Work under a lease has a [`LeaseContext`], which
//! [`CarryLease`] takes along with calls to other services and [`ReceiveLease`] gives to their handlers.
//! What is promised:
//!
//! - At the instant that the lease is lost, or the deadline of the work comes, the work is dropped, and so
//!   is every call made under it, here and at the services called, however deep.
//! - The lease is released after the work has stopped, never before.
//! - Work that does not stop can still do no harm: a commit [fenced](LeaseContext::fence) by the context
//!   does not apply once a lease of it is lost.

mod acquired;
mod body;
mod carried;
mod carry;
mod context;
mod elsewhere;
mod ended;
mod metadata;
mod module;
mod receive;
mod run;
mod timeout;

pub use acquired::Acquired;
pub use carried::CarriedLease;
pub use carry::{CarryLease, Carrying};
pub use context::LeaseContext;
pub use ended::Ended;
pub use module::{Declared, Module};
pub use receive::{ReceiveLease, Receiving};
pub use run::RunError;
