//! Leases whose owners are elsewhere: a server acquires on their behalf and keeps nothing.

pub(crate) mod grant;
pub(crate) mod keep_alive;
pub(crate) mod ops;
