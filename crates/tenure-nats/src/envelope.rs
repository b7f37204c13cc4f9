//! What a message of the bucket holds: an object, compactly, in a form with a version.
//!
//! A message does not know its own sequence before the server has drawn it. So 0 stands for "the
//! sequence of this very message" wherever a revision is kept. A message that only prolongs a life
//! carries the revision of the change before it, and thereby says that it changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use tenure::{Error, Key, Object, Result};

use crate::BACKEND;

/// The first byte of every message; another one means a newer program wrote it.
const FORMAT: u8 = 1;

/// Stands for the sequence that the server will draw.
pub(crate) const OWN: u64 = u64::MAX;

#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(uint64, tag = "2")]
    revision: u64,
    #[prost(uint64, tag = "3")]
    created_revision: u64,
    #[prost(uint64, tag = "4")]
    token: u64,
    #[prost(sint64, tag = "5")]
    created_at_ms: i64,
    #[prost(sint64, tag = "6")]
    updated_at_ms: i64,
    #[prost(uint64, tag = "7")]
    ttl_ms: u64,
    #[prost(btree_map = "string, string", tag = "8")]
    labels: BTreeMap<String, String>,
    #[prost(bytes = "bytes", tag = "9")]
    payload: Bytes,
}

/// The message for an object whose unknown numbers are [`OWN`].
pub(crate) fn encode(object: &Object) -> Bytes {
    let number = |n: u64| if n == OWN { 0 } else { n };
    let envelope = Envelope {
        version: object.version,
        revision: number(object.revision),
        created_revision: number(object.created_revision),
        token: number(object.token),
        created_at_ms: object.created_at_ms,
        updated_at_ms: object.updated_at_ms,
        ttl_ms: object.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        labels: object.labels.clone(),
        payload: object.payload.clone(),
    };
    let mut bytes = BytesMut::with_capacity(1 + envelope.encoded_len());
    bytes.put_u8(FORMAT);
    envelope.encode_raw(&mut bytes);
    bytes.freeze()
}

/// The object in the message with this sequence.
pub(crate) fn decode(key: Key, sequence: u64, message: &Bytes) -> Result<Object> {
    let damaged = |why: String| {
        Error::corrupt(
            BACKEND,
            format!(
                "message {sequence} of {key} {why}; only Tenure may write to its bucket: delete \
                 this key with the nats command line, or use another bucket"
            ),
        )
    };
    let (format, rest) = (message.first().copied(), message.slice(message.len().min(1)..));
    match format {
        Some(FORMAT) => {}
        Some(newer @ 2..=8) => {
            return Err(Error::Refused {
                backend: BACKEND,
                reason: format!("{key} was written in format {newer}; upgrade this program"),
            });
        }
        _ => return Err(damaged("was not written by Tenure".into())),
    }
    let envelope =
        Envelope::decode(rest).map_err(|error| damaged(format!("is damaged: {error}")))?;
    if envelope.version == 0 {
        return Err(damaged("is damaged: it has no version".into()));
    }
    let object = Object {
        name: None,
        labels: envelope.labels,
        payload: envelope.payload,
        version: envelope.version,
        revision: own(envelope.revision, sequence),
        created_revision: own(envelope.created_revision, sequence),
        token: own(envelope.token, sequence),
        created_at_ms: envelope.created_at_ms,
        updated_at_ms: envelope.updated_at_ms,
        ttl: (envelope.ttl_ms > 0).then(|| Duration::from_millis(envelope.ttl_ms)),
        expires_in: None,
        key,
    };
    Ok(object)
}

fn own(number: u64, sequence: u64) -> u64 {
    if number == 0 { sequence } else { number }
}

/// The object once the server has drawn its sequence.
pub(crate) fn settle(object: &mut Object, sequence: u64) {
    for number in [&mut object.revision, &mut object.created_revision, &mut object.token] {
        if *number == OWN {
            *number = sequence;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Object {
            key: Key::new("a", "b"),
            name: None,
            labels: [("x".to_owned(), "y".to_owned())].into(),
            payload: Bytes::from_static(b"\0payload"),
            version: 7,
            revision: OWN,
            created_revision: 3,
            token: OWN,
            created_at_ms: -5,
            updated_at_ms: 1_780_000_000_000,
            ttl: Some(Duration::from_secs(30)),
            expires_in: None,
        }
    }

    #[test]
    fn an_object_comes_back_with_its_own_sequence() {
        let mut object = object();
        let read = decode(object.key.clone(), 42, &encode(&object)).unwrap();
        settle(&mut object, 42);
        assert_eq!(read, object);
        // A message that prolongs keeps every number.
        assert_eq!(decode(object.key.clone(), 50, &encode(&object)).unwrap(), object);
    }

    #[test]
    fn foreign_damaged_and_newer_messages_are_told_apart() {
        let decoded = |bytes: &'static [u8]| {
            decode(Key::new("a", "b"), 1, &Bytes::from_static(bytes)).unwrap_err()
        };
        assert!(matches!(decoded(b""), Error::Corrupt { .. }));
        assert!(matches!(decoded(b"hello"), Error::Corrupt { .. }));
        assert!(matches!(decoded(b"\x01\xff\xff"), Error::Corrupt { .. }));
        assert!(matches!(decoded(b"\x01"), Error::Corrupt { .. }));
        assert!(decoded(b"\x02").to_string().contains("upgrade"));
    }
}
