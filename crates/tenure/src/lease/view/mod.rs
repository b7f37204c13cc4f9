//! Seeing without holding: who leads, what changes, and who held what before.

pub(crate) mod election;
pub(crate) mod history;
pub(crate) mod watch;
