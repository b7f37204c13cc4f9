//! What every call needs.

use std::ops::Deref;

use crate::connection::Connection;
use crate::known::Memory;
use crate::pump::Pump;

/// The connection, and what is remembered of what went over it.
pub(crate) struct Shared {
    connection: Connection,
    pub(crate) memory: Memory,
    pub(crate) pump: Pump,
}

impl Shared {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, memory: Memory::default(), pump: Pump::default() }
    }
}

impl Deref for Shared {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}
