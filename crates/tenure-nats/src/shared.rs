//! What every call needs.

use std::ops::Deref;

use crate::cache::SubjectCache;
use crate::connection::Connection;
use crate::watch::Watches;

/// The connection, the cache of what went over it, and the watches.
pub(crate) struct Shared {
    connection: Connection,
    pub(crate) cache: SubjectCache,
    pub(crate) watches: Watches,
}

impl Shared {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, cache: SubjectCache::new(), watches: Watches::default() }
    }
}

impl Deref for Shared {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}
