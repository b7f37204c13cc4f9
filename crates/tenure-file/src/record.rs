//! What a canonical file says: one line of JSON about the object, then its payload as it is.
//!
//! ```text
//! {"tenure":1,"kind":"order","id":"1001","version":3,…,"payload_bytes":4,"checksum":"…"}
//! paid
//! ```
//!
//! So a person can `cat` it and a script can cut it. The checksum covers line and payload; it finds
//! torn and garbled files, it is no defence against a forger.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use tenure::backend::decide::Row;
use tenure::{Error, Key, Labels, Object, Result};

/// The version of everything written here.
pub(crate) const FORMAT: u32 = 1;
const CHECKSUM_LEN: usize = r#","checksum":"0123456789abcdef"}"#.len();

/// A row with the store's instant at which it was written or last touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) row: Row,
    pub(crate) written_at_ms: i64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    tenure: u32,
    kind: String,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    version: u64,
    revision: u64,
    created_revision: u64,
    token: u64,
    created_at_ms: i64,
    updated_at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    /// What of the time to live is finer than a millisecond; a put must equal what it wrote.
    #[serde(default, skip_serializing_if = "is_zero")]
    ttl_ns: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<i64>,
    written_at_ms: i64,
    payload_bytes: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// FNV-1a with 64 bits: for checksums and for spreading keys over locks.
pub(crate) fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

pub(crate) const FNV_SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// One line of JSON that carries the checksum of itself and of what follows it.
pub(crate) fn seal<T: Serialize>(header: &T, body: &[u8]) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(header)
        .map_err(|error| Error::invalid("record", format!("cannot be written as JSON: {error}")))?;
    let checksum = fnv(fnv(FNV_SEED, &line), body);
    line.pop();
    line.extend_from_slice(format!(r#","checksum":"{checksum:016x}"}}"#).as_bytes());
    line.push(b'\n');
    Ok(line)
}

/// A sealed line taken apart; whether it is true is known only together with its body.
pub(crate) struct Sealed<T> {
    pub(crate) header: T,
    over_line: u64,
    checksum: u64,
}

impl<T: DeserializeOwned> Sealed<T> {
    /// Parses one line without its newline. `None` if no such line was ever written.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let split = line.len().checked_sub(CHECKSUM_LEN)?;
        let (start, seal) = line.split_at(split);
        let seal = std::str::from_utf8(seal).ok()?;
        let hex = seal.strip_prefix(r#","checksum":""#)?.strip_suffix(r#""}"#)?;
        let over_line = fnv(fnv(FNV_SEED, start), b"}");
        let header = serde_json::from_slice(line).ok()?;
        Some(Self { header, over_line, checksum: u64::from_str_radix(hex, 16).ok()? })
    }

    /// The header, if it and its body are as they were written.
    pub(crate) fn open(self, body: &[u8]) -> Option<T> {
        (fnv(self.over_line, body) == self.checksum).then_some(self.header)
    }
}

/// The bytes of a canonical file.
pub(crate) fn encode(stored: &Stored) -> Result<Vec<u8>> {
    let object = &stored.row.object;
    let header = Header {
        tenure: FORMAT,
        kind: object.key.kind.clone(),
        id: object.key.id.clone(),
        name: object.name.clone(),
        labels: object.labels.clone(),
        version: object.version,
        revision: object.revision,
        created_revision: object.created_revision,
        token: object.token,
        created_at_ms: object.created_at_ms,
        updated_at_ms: object.updated_at_ms,
        ttl_ms: object.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        ttl_ns: object.ttl.map_or(0, |ttl| ttl.subsec_nanos() % 1_000_000),
        expires_at_ms: stored.row.expires_at_ms,
        written_at_ms: stored.written_at_ms,
        payload_bytes: object.payload.len(),
    };
    let mut bytes = seal(&header, &object.payload)?;
    bytes.extend_from_slice(&object.payload);
    Ok(bytes)
}

/// Takes one record off the front; `None` if it is not one or is damaged.
pub(crate) fn decode(bytes: &Bytes) -> Option<(Stored, Bytes)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let sealed = Sealed::<Header>::parse(&bytes[..end])?;
    let start = end + 1;
    let rest = start.checked_add(sealed.header.payload_bytes).filter(|at| *at <= bytes.len())?;
    let payload = bytes.slice(start..rest);
    let header = sealed.open(&payload).filter(|header| header.tenure == FORMAT)?;
    let ttl = header.ttl_ms.map(|ms| {
        Duration::from_millis(ms).saturating_add(Duration::from_nanos(header.ttl_ns.into()))
    });
    let object = Object {
        key: Key { kind: header.kind, id: header.id },
        name: header.name,
        labels: header.labels,
        payload,
        version: header.version,
        revision: header.revision,
        created_revision: header.created_revision,
        token: header.token,
        created_at_ms: header.created_at_ms,
        updated_at_ms: header.updated_at_ms,
        ttl,
        expires_in: None,
    };
    let row = Row { object: Arc::new(object), expires_at_ms: header.expires_at_ms };
    Some((Stored { row, written_at_ms: header.written_at_ms }, bytes.slice(rest..)))
}

/// Reads a whole canonical file, which must hold exactly this key.
pub(crate) fn decode_file(path: &Path, key: &Key, bytes: Vec<u8>) -> Result<Stored> {
    let damaged = |what: String| {
        Error::corrupt(
            crate::BACKEND,
            format!(
                "{} {what}; move the file away (the object is then absent) or put back a good \
                 copy, then try again",
                path.display()
            ),
        )
    };
    let bytes = Bytes::from(bytes);
    let Some((stored, rest)) = decode(&bytes) else {
        return Err(damaged("is not readable as a record of this store".into()));
    };
    if !rest.is_empty() {
        return Err(damaged(format!("has {} bytes too many", rest.len())));
    }
    if stored.row.object.key != *key {
        return Err(damaged(format!("holds {} instead of {key}", stored.row.object.key)));
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Stored {
        let object = Object {
            key: Key::new("order", "☃/1"),
            name: Some("first".into()),
            labels: Labels::from([("a".into(), "b\"c".into())]),
            payload: Bytes::from_static(b"line\nline\xff\0"),
            version: 3,
            revision: u64::MAX,
            created_revision: 7,
            token: 9,
            created_at_ms: -1,
            updated_at_ms: 5,
            ttl: Some(Duration::new(30, 1_500_001)),
            expires_in: None,
        };
        Stored {
            row: Row { object: Arc::new(object), expires_at_ms: Some(-40) },
            written_at_ms: -70,
        }
    }

    #[test]
    fn a_record_reads_back_exactly_and_two_in_a_row_come_apart() {
        let bytes = encode(&sample()).unwrap();
        let (back, rest) = decode(&Bytes::from([bytes.clone(), bytes].concat())).unwrap();
        assert_eq!(back, sample());
        assert_eq!(decode(&rest).unwrap(), (sample(), Bytes::new()));
    }

    #[test]
    fn any_flipped_bit_and_any_missing_byte_is_noticed() {
        let bytes = encode(&sample()).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let read = decode(&Bytes::from(bad));
            assert!(read.is_none_or(|(back, rest)| !rest.is_empty() || back != sample()), "{at}");
            assert!(decode(&Bytes::copy_from_slice(&bytes[..at])).is_none(), "{at}");
        }
    }

    #[test]
    fn a_wrong_file_is_named_with_the_next_step() {
        let bytes = encode(&sample()).unwrap();
        let error = decode_file(Path::new("/s/x"), &Key::new("order", "2"), bytes).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/s/x") && text.contains("move the file away"), "{text}");
    }
}
