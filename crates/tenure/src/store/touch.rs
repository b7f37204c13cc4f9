//! Prolonging the life of objects.

use std::time::Duration;

#[cfg(doc)]
use super::Capabilities;
use crate::Key;

/// A request to prolong one object's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The object.
    pub key: Key,
    /// The revision it must still have.
    pub revision: u64,
    /// Its life from now, by the store's clock.
    pub ttl: Duration,
}

/// What a touch achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The revision to give with the next touch: the same one where
    /// [`Capabilities::touch_keeps_revision`], else the one this touch drew.
    pub revision: u64,
    /// The life granted, at least the one asked for.
    pub ttl: Duration,
}
