//! One object as the memory store keeps it: in one piece.
//!
//! In a large store nothing is in a cache, and whatever lies somewhere else is waited for. So a slot
//! holds all that a reader asks for, a short id and a short payload included, and a put overwrites it
//! where it is: nothing is freed, nothing allocated, whatever the number of objects.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::id::Id;
use crate::backend::decide::Row;
use crate::{Key, Labels, Object};

/// Longer payloads are kept elsewhere. With this many bytes a slot is four lines of a cache.
const SHORT: usize = 118;

/// An object, and the instant of its expiry.
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) id: Id,
    /// The number of its kind.
    pub(super) kind: u32,
    pub(super) expires_at_ms: Option<i64>,
    version: u64,
    revision: u64,
    created_revision: u64,
    token: u64,
    created_at_ms: i64,
    updated_at_ms: i64,
    ttl: Option<Duration>,
    name: Option<Box<str>>,
    /// Most objects have none.
    labels: Option<Box<Labels>>,
    payload: Payload,
}

enum Payload {
    Short(u8, [u8; SHORT]),
    Long(Bytes),
}

impl Payload {
    fn new(payload: &Bytes) -> Self {
        let mut short = [0; SHORT];
        match (short.get_mut(..payload.len()), u8::try_from(payload.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(payload);
                Self::Short(length, short)
            }
            _ => Self::Long(payload.clone()),
        }
    }

    fn bytes(&self) -> Bytes {
        match self {
            Self::Short(length, bytes) => {
                Bytes::copy_from_slice(bytes.get(..usize::from(*length)).unwrap_or_default())
            }
            Self::Long(bytes) => bytes.clone(),
        }
    }
}

impl Slot {
    pub(super) fn new(kind: u32, row: &Row) -> Self {
        let object = &*row.object;
        Self {
            id: Id::new(&object.key.id),
            kind,
            expires_at_ms: row.expires_at_ms,
            version: object.version,
            revision: object.revision,
            created_revision: object.created_revision,
            token: object.token,
            created_at_ms: object.created_at_ms,
            updated_at_ms: object.updated_at_ms,
            ttl: object.ttl,
            name: object.name.as_deref().map(Box::from),
            labels: (!object.labels.is_empty()).then(|| Box::new(object.labels.clone())),
            payload: Payload::new(&object.payload),
        }
    }

    /// Asks for every line of the slot at once. What follows would ask for one after the other, and
    /// wait for each where it is not in a cache.
    pub(super) fn near(&self) -> &Self {
        let payload = match &self.payload {
            Payload::Short(_, bytes) => bytes.as_slice(),
            Payload::Long(_) => &[],
        };
        black_box((self.version, payload.get(SHORT / 2), payload.last().copied()));
        black_box(self.updated_at_ms);
        self
    }

    pub(super) fn labels(&self) -> &Labels {
        static NONE: Labels = Labels::new();
        self.labels.as_deref().unwrap_or(&NONE)
    }

    /// What a reader sees, who knows the key already. The time is asked for only where it matters.
    pub(super) fn read(&self, key: Key, store_ms: impl FnOnce() -> i64) -> Option<Object> {
        match self.expires_at_ms {
            Some(_) => self.row(key).read(store_ms()),
            None => Some(self.object(key)),
        }
    }

    fn object(&self, key: Key) -> Object {
        Object {
            key,
            name: self.name.as_deref().map(String::from),
            labels: self.labels().clone(),
            payload: self.payload.bytes(),
            version: self.version,
            revision: self.revision,
            created_revision: self.created_revision,
            token: self.token,
            created_at_ms: self.created_at_ms,
            updated_at_ms: self.updated_at_ms,
            ttl: self.ttl,
            expires_in: None,
        }
    }

    /// The object with the instant of its expiry, to decide by.
    pub(super) fn row(&self, key: Key) -> Row {
        Row { object: Arc::new(self.object(key)), expires_at_ms: self.expires_at_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(payload: usize, name: Option<&str>, labels: &[(&str, &str)]) -> Object {
        Object {
            key: Key::new("kind", "id"),
            name: name.map(String::from),
            labels: labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            payload: (0..payload).map(|n| n as u8).collect(),
            version: 2,
            revision: 7,
            created_revision: 3,
            token: 5,
            created_at_ms: 11,
            updated_at_ms: 12,
            ttl: Some(Duration::from_secs(9)),
            expires_in: None,
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for length in [0, 1, SHORT - 1, SHORT, SHORT + 1, 300, 100_000] {
            for (name, labels) in [(None, &[][..]), (Some("n"), &[("a", "b"), ("c", "")][..])] {
                for expires_at_ms in [None, Some(44)] {
                    let object = Arc::new(object(length, name, labels));
                    let row = Row { object, expires_at_ms };
                    let slot = Slot::new(1, &row);
                    assert_eq!(slot.row(row.object.key.clone()), row);
                }
            }
        }
    }

    #[test]
    fn a_slot_is_four_lines_of_a_cache() {
        assert_eq!((size_of::<Slot>(), size_of::<Option<Slot>>()), (256, 256));
    }
}
