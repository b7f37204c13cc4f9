//! Keys and objects.

use std::time::Duration;

use tenure::{Error, Key, Object};

use super::{ms_up, need};
use crate::v1;

impl From<&Key> for v1::Key {
    fn from(key: &Key) -> Self {
        Self { kind: key.kind.clone(), id: key.id.clone() }
    }
}

impl From<Key> for v1::Key {
    fn from(key: Key) -> Self {
        Self { kind: key.kind, id: key.id }
    }
}

impl From<v1::Key> for Key {
    fn from(key: v1::Key) -> Self {
        Self { kind: key.kind, id: key.id }
    }
}

/// The key of a message that must have one.
pub(super) fn key(key: Option<v1::Key>) -> tenure::Result<Key> {
    need(key, "key").map(Key::from)
}

impl From<&Object> for v1::Object {
    fn from(object: &Object) -> Self {
        let left = |left: Duration| u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        Self {
            key: Some((&object.key).into()),
            name: object.name.clone(),
            labels: object.labels.clone(),
            payload: object.payload.clone(),
            version: object.version,
            revision: object.revision,
            created_revision: object.created_revision,
            token: object.token,
            created_at_ms: object.created_at_ms,
            updated_at_ms: object.updated_at_ms,
            ttl_ms: object.ttl.map(ms_up),
            expires_in_us: object.expires_in.map(left),
        }
    }
}

impl TryFrom<v1::Object> for Object {
    type Error = Error;

    fn try_from(object: v1::Object) -> Result<Self, Error> {
        Ok(Self {
            key: key(object.key)?,
            name: object.name,
            labels: object.labels,
            payload: object.payload,
            version: object.version,
            revision: object.revision,
            created_revision: object.created_revision,
            token: object.token,
            created_at_ms: object.created_at_ms,
            updated_at_ms: object.updated_at_ms,
            ttl: object.ttl_ms.map(Duration::from_millis),
            expires_in: object.expires_in_us.map(Duration::from_micros),
        })
    }
}
