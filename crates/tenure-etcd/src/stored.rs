//! How an object is stored as the value of an etcd key.
//!
//! `version`, `revision` and `created_revision` are etcd's own numbers of the key. A put cannot name
//! the revision it is about to get, so the token is written as 0 by the put that draws it and as the
//! number by later ones.
//!
//! One thing etcd cannot do is to lengthen the life of a lease. Where a touch asks for more than the
//! object's lease gives, the object is written again under another one, and the envelope carries what
//! that must not change: the revision, and by how much etcd's version has run ahead.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tenure::{Current, Error, Key, Labels, Object, Result};

use crate::BACKEND;
use crate::messages::KeyValue;

/// The format that this program writes, and the newest it reads.
const FORMAT: u32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(btree_map = "string, string", tag = "3")]
    labels: Labels,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
    /// 0: the revision of this very put.
    #[prost(uint64, tag = "5")]
    token: u64,
    #[prost(sint64, tag = "6")]
    created_at_ms: i64,
    #[prost(sint64, tag = "7")]
    updated_at_ms: i64,
    #[prost(uint64, tag = "8")]
    ttl_ms: u64,
    /// The life of the etcd lease, where a touch made it longer than `ttl_ms`.
    #[prost(uint64, tag = "9")]
    longer_s: u64,
    /// The revision, where a touch wrote this; else 0.
    #[prost(uint64, tag = "10")]
    revision: u64,
    /// How many puts of this key were touches.
    #[prost(uint64, tag = "11")]
    skipped: u64,
}

/// An object as it was seen in etcd.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) object: Arc<Object>,
    /// etcd's revision of the key: what a transaction compares.
    pub(crate) modified: i64,
    /// The etcd lease it hangs on, or 0.
    pub(crate) lease: i64,
    /// The life of that lease, in seconds.
    pub(crate) life: u64,
    pub(crate) skipped: u64,
    /// When this process last started the life of that lease anew, by its own clock.
    pub(crate) since: Option<Duration>,
}

impl Stored {
    pub(crate) fn read(key: Key, kv: &KeyValue) -> Result<Self> {
        let damaged = |what: &dyn std::fmt::Display| {
            Error::corrupt(BACKEND, format!("{key} cannot be read: {what}; delete or restore it"))
        };
        let envelope = Envelope::decode(kv.value.clone()).map_err(|error| damaged(&error))?;
        if envelope.format == 0 {
            return Err(damaged(&"it was not written by Tenure"));
        }
        if envelope.format > FORMAT {
            let reason = format!("{key} was written by a newer program; upgrade this one");
            return Err(Error::Refused { backend: BACKEND, reason });
        }
        let own = number(kv.mod_revision);
        let ttl = (envelope.ttl_ms > 0).then(|| Duration::from_millis(envelope.ttl_ms));
        let life = ttl.map_or(0, |ttl| ttl.as_secs().max(envelope.longer_s));
        let object = Object {
            name: envelope.name,
            labels: envelope.labels,
            payload: envelope.payload,
            version: number(kv.version).saturating_sub(envelope.skipped),
            revision: or(envelope.revision, own),
            created_revision: number(kv.create_revision),
            token: or(envelope.token, own),
            created_at_ms: envelope.created_at_ms,
            updated_at_ms: envelope.updated_at_ms,
            ttl,
            expires_in: None,
            key,
        };
        Ok(Self {
            object: Arc::new(object),
            modified: kv.mod_revision,
            lease: kv.lease,
            life,
            skipped: envelope.skipped,
            since: None,
        })
    }

    /// Until when the lease it hangs on cannot have ended, as far as this process knows.
    pub(crate) fn lives_until(&self) -> Duration {
        let life = Duration::from_secs(self.life);
        self.since.map_or(Duration::ZERO, |since| since.saturating_add(life))
    }

    /// Whether a touch wrote it: nothing that a watcher is told.
    pub(crate) fn is_touch(&self) -> bool {
        self.object.revision != number(self.modified)
    }

    pub(crate) fn current(&self) -> Current {
        let Object { version, revision, token, .. } = *self.object;
        Current { version, revision, token }
    }
}

/// What a put writes. `own` stands for the revision that the put is about to get.
pub(crate) fn write(object: &Object, own: u64, skipped: u64) -> Vec<u8> {
    envelope(object, own, skipped).encode_to_vec()
}

/// What a touch writes that moves an object to a lease with a longer life.
pub(crate) fn rewrite(stored: &Stored, life: u64) -> Vec<u8> {
    let mut envelope = envelope(&stored.object, 0, stored.skipped + 1);
    (envelope.longer_s, envelope.revision) = (life, stored.object.revision);
    envelope.encode_to_vec()
}

fn envelope(object: &Object, own: u64, skipped: u64) -> Envelope {
    Envelope {
        format: FORMAT,
        name: object.name.clone(),
        labels: object.labels.clone(),
        payload: object.payload.clone(),
        token: if object.token == own { 0 } else { object.token },
        created_at_ms: object.created_at_ms,
        updated_at_ms: object.updated_at_ms,
        ttl_ms: object.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        longer_s: 0,
        revision: 0,
        skipped,
    }
}

fn or(told: u64, own: u64) -> u64 {
    if told == 0 { own } else { told }
}

/// etcd's numbers are signed and never negative.
pub(crate) fn number(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(value: Vec<u8>, numbers: (i64, i64, i64)) -> KeyValue {
        let (create_revision, mod_revision, version) = numbers;
        let (key, value) = (Bytes::new(), value.into());
        KeyValue { key, create_revision, mod_revision, version, value, lease: 7 }
    }

    fn object() -> Object {
        Object {
            key: Key::new("k", "i"),
            name: Some("n".into()),
            labels: Labels::from([("a".into(), "".into())]),
            payload: "p".into(),
            version: 3,
            revision: 30,
            created_revision: 10,
            token: 10,
            created_at_ms: -5,
            updated_at_ms: 6,
            ttl: Some(Duration::from_secs(9)),
            expires_in: None,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let key = Key::new("k", "i");
        let stored = Stored::read(key.clone(), &kv(write(&object(), 30, 0), (10, 30, 3))).unwrap();
        assert_eq!(*stored.object, object());
        assert_eq!((stored.lease, stored.life, stored.is_touch()), (7, 9, false));

        // A touch that wrote it again changed neither version nor revision nor token.
        let touched = kv(rewrite(&stored, 60), (10, 44, 4));
        let touched = Stored::read(key.clone(), &touched).unwrap();
        assert_eq!(*touched.object, object());
        assert_eq!((touched.modified, touched.life, touched.is_touch()), (44, 60, true));

        // The put that draws a token cannot know it yet.
        let mut new = object();
        new.token = 30;
        let drawn = Stored::read(key, &kv(write(&new, 30, 1), (10, 50, 5))).unwrap();
        assert_eq!((drawn.object.token, drawn.object.version), (50, 4));
    }

    #[test]
    fn what_is_not_ours_or_too_new_is_refused() {
        let key = Key::new("k", "i");
        for value in [b"hello".to_vec(), vec![]] {
            let error = Stored::read(key.clone(), &kv(value, (1, 1, 1))).unwrap_err();
            assert_eq!(error.code(), "corrupt");
        }
        let newer = Envelope { format: FORMAT + 1, ..Envelope::default() };
        let error = Stored::read(key, &kv(newer.encode_to_vec(), (1, 1, 1))).unwrap_err();
        assert_eq!(error.code(), "refused");
    }
}
