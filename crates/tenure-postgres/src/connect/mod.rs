//! From an address to a session that can be used: `address` and `tls` read the settings, `session`
//! connects, `migrate` makes the tables, and `first_clock` learns the store's time.

pub(crate) mod address;
pub(crate) mod first_clock;
pub(crate) mod migrate;
pub(crate) mod session;
pub(crate) mod tls;
