//! How watchers learn of commits: `listen` hears that there was one, `history` reads it, and `pump`
//! publishes it to the `local_feed` of this process.

pub(crate) mod history;
pub(crate) mod listen;
pub(crate) mod local_feed;
pub(crate) mod pump;
