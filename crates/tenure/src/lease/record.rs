//! What is written in the store: the lease itself, a waiter in its queue, what reaping leaves to do.
//!
//! All of them are JSON, so that a person with `tenure object get` or plain SQL can read who holds
//! what. Times in them are labels; nothing is ever decided by them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::lease::{Owner, Scope};
use crate::{Error, Key, Object, Result};

/// Held leases. The id is the scope; a reader's or a slot's says which one.
pub const LEASE: &str = "lease";
/// Waiters in the queue (`scope#nonce`), and the marker that there is a queue at all (`scope#`).
pub const WAITER: &str = "lease-waiter";
/// What is left to reap when the lease of this nonce (`scope#nonce`) ends without a release.
pub const ORPHAN: &str = "lease-orphan";
/// Groups of slots: how many there are.
pub const SLOTS: &str = "lease-slots";
/// A scope that has readers: changes with every new one.
pub const READERS: &str = "lease-readers";
/// Why a lease was revoked (`scope#nonce`), for its holder to read.
pub const REVOKED: &str = "lease-revoked";
/// That somebody asks the holder of this nonce (`scope#nonce`) to hand over.
pub const HAND_OVER: &str = "lease-hand-over";

/// What a holder tells about itself, for instance its address.
pub type Metadata = BTreeMap<String, String>;

/// The payload of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The owner's name.
    pub holder: String,
    /// The nonce of the owner's start.
    pub start: String,
    /// Drawn for this acquisition alone: with the scope, the unique lease key.
    pub nonce: String,
    /// When, by the holder's wall clock. A label.
    pub acquired_at_ms: i64,
    /// What the holder tells about itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Metadata,
}

/// The same without copies, to be written.
#[derive(Serialize)]
pub(crate) struct Written<'a> {
    pub(crate) holder: &'a str,
    pub(crate) start: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) acquired_at_ms: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: &'a Metadata,
}

impl Written<'_> {
    pub(crate) fn to_record(&self) -> LeaseRecord {
        LeaseRecord {
            holder: self.holder.into(),
            start: self.start.into(),
            nonce: self.nonce.into(),
            acquired_at_ms: self.acquired_at_ms,
            metadata: self.metadata.clone(),
        }
    }
}

/// The payload of a waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterRecord {
    /// The owner's name.
    pub holder: String,
    /// The nonce of the owner's start.
    pub start: String,
    /// Since when, by the waiter's wall clock. A label.
    pub since_ms: i64,
    /// The life it wants for its lease; a hand-over grants it.
    pub ttl_ms: u64,
    /// The process that waits on its behalf, by the nonce of that process's own start: if it is dead, so
    /// are all its waiters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub via: String,
    /// It waits for more than one lease at once, or its hooks have to run, so a hand-over cannot
    /// satisfy it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_hand_over: bool,
    /// Whether its lease is to leave something to reap.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reapable: bool,
    /// What it will tell about itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Metadata,
}

/// The payload of what is left to reap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrphanRecord {
    /// The id of the lease object.
    pub lease: String,
    /// The lease as it was written.
    #[serde(flatten)]
    pub record: LeaseRecord,
}

/// The payload of a revocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RevokedRecord {
    /// Who did it.
    pub by: String,
    /// Why, in that person's words.
    pub reason: String,
}

/// The lease object of a scope.
pub fn lease_key(scope: &Scope) -> Key {
    Key::new(LEASE, scope.as_str())
}

/// The id of something that belongs to one acquisition or waiter of a lease or queue.
pub(crate) fn tagged(id: &str, nonce: &str) -> String {
    [id, "#", nonce].concat()
}

/// What [`tagged`] put together.
pub(crate) fn untagged(id: &str) -> Option<(&str, &str)> {
    id.rsplit_once('#')
}

pub(crate) fn encode<T: Serialize>(record: &T) -> Bytes {
    let mut text = Vec::with_capacity(256);
    // These records are maps of strings and numbers; there is nothing in them that can fail.
    serde_json::to_writer(&mut text, record).expect("a record of strings and numbers is JSON");
    text.into()
}

pub(crate) fn decode<T: DeserializeOwned>(object: &Object, backend: &'static str) -> Result<T> {
    serde_json::from_slice(&object.payload).map_err(|error| {
        Error::corrupt(
            backend,
            format!(
                "{} is no record of ours ({error}); delete it or repair its payload",
                object.key
            ),
        )
    })
}

/// A lease as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The id of the lease object: the scope, with `#…` behind it for a shared reader.
    pub id: String,
    /// Who holds it.
    pub holder: Owner,
    /// The fencing token.
    pub token: u64,
    /// Unique to this acquisition.
    pub nonce: String,
    /// When it was acquired, by the holder's wall clock. A label.
    pub acquired_at_ms: i64,
    /// The life granted with each renewal.
    pub ttl: Duration,
    /// How much of it was left when the store answered; `None` in an event.
    pub expires_in: Option<Duration>,
    /// What the holder tells about itself.
    pub metadata: Metadata,
    /// The revision of the lease object.
    pub revision: u64,
}

impl LeaseInfo {
    pub(crate) fn read(object: &Object, backend: &'static str) -> Result<Self> {
        let record: LeaseRecord = decode(object, backend)?;
        let holder = Owner::from_parts(&record.holder, &record.start)
            .map_err(|error| Error::corrupt(backend, format!("{}: {error}", object.key)))?;
        Ok(Self {
            id: object.key.id.clone(),
            holder,
            token: object.token,
            nonce: record.nonce,
            acquired_at_ms: record.acquired_at_ms,
            ttl: object.ttl.unwrap_or_default(),
            expires_in: object.expires_in,
            metadata: record.metadata,
            revision: object.revision,
        })
    }

    /// One of many. An object that is no record of a lease is passed over; it hides no other.
    pub(crate) fn listed(object: &Object, backend: &'static str) -> Option<Self> {
        Self::read(object, backend)
            .inspect_err(|error| tracing::warn!(%error, "passed over among the leases"))
            .ok()
    }
}

/// A waiter as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterInfo {
    /// Who waits.
    pub owner: Owner,
    /// Its place: waiters are served in this order.
    pub place: u64,
    /// Since when, by the waiter's wall clock. A label.
    pub since_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_without_copies_is_the_record() {
        for metadata in [Metadata::new(), Metadata::from([("a".into(), "\"b\"".into())])] {
            let (holder, start, nonce) = ("w\u{1}ü", "9f", "aa");
            let written = Written { holder, start, nonce, acquired_at_ms: -5, metadata: &metadata };
            assert_eq!(encode(&written), encode(&written.to_record()));
        }
    }
}
