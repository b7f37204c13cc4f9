//! Keys as NATS subjects.
//!
//! An object lives at `$KV.BUCKET.KIND.ID`, kind and id one token each, so that a subject filter
//! selects a kind. What a token may not hold is written `=XX`, the byte in hexadecimal; what comes
//! out is a valid key for every other client of the bucket, and it can be turned back.

use tenure::Key;

/// The subjects of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Subjects {
    bucket: String,
    stored: String,
    republished: String,
}

impl Subjects {
    pub(crate) fn new(bucket: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            stored: format!("$KV.{bucket}."),
            republished: format!("$TENURE.{bucket}."),
        }
    }

    /// The bucket as it was named.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The stream under the bucket.
    pub(crate) fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    /// Where an object is kept.
    pub(crate) fn of(&self, key: &Key) -> String {
        let mut subject = String::with_capacity(
            self.stored.len() + key.kind.len() + key.id.len() + 1 + key.id.len() / 4,
        );
        subject.push_str(&self.stored);
        encode(&key.kind, &mut subject);
        subject.push('.');
        encode(&key.id, &mut subject);
        subject
    }

    /// All objects of a kind.
    pub(crate) fn of_kind(&self, kind: &str) -> String {
        let mut subject = self.stored.clone();
        encode(kind, &mut subject);
        subject.push_str(".*");
        subject
    }

    /// All objects.
    pub(crate) fn all(&self) -> String {
        format!("{}>", self.stored)
    }

    /// Where replicas agree on what they hold, one token after the bucket: no object is kept there.
    pub(crate) fn agreed(&self) -> String {
        format!("{}agreed", self.stored)
    }

    /// Where the server republishes what it stored.
    pub(crate) fn republished(&self) -> String {
        format!("{}>", self.republished)
    }

    /// The key kept at a subject; `None` if it is none of ours.
    pub(crate) fn key(&self, subject: &str) -> Option<Key> {
        let (kind, id) = subject.strip_prefix(&self.stored)?.split_once('.')?;
        Some(Key { kind: decode(kind)?, id: decode(id)? })
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/')
}

fn encode(text: &str, into: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if is_plain(byte) {
            into.push(char::from(byte));
        } else {
            into.push('=');
            into.push(char::from(HEX[usize::from(byte >> 4)]));
            into.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

fn decode(token: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'=' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_survives_the_way_there_and_back() {
        let subjects = Subjects::new("b");
        for id in
            ["plain-1_2/3", "a.b", "*", ">", " ", "=", "=2E", "ü/日本", "%", "a..b", "$KV.b.x"]
        {
            let key = Key::new("kind.with *", id);
            let subject = subjects.of(&key);
            let tokens: Vec<_> = subject.split('.').collect();
            assert_eq!(tokens.len(), 4, "{subject}");
            assert!(subject.bytes().all(|b| b.is_ascii_graphic() && b != b'*' && b != b'>'));
            assert_eq!(subjects.key(&subject), Some(key));
        }
        assert_eq!(subjects.of(&Key::new("lease", "a.b/c")), "$KV.b.lease.a=2Eb/c");
        assert_eq!(subjects.of_kind("a b"), "$KV.b.a=20b.*");
    }

    #[test]
    fn what_is_not_ours_is_not_taken_for_ours() {
        let subjects = Subjects::new("b");
        for foreign in ["$KV.other.a.b", "$KV.b.alone", "$KV.b.a.=G1", "$KV.b.a.=F", "$KV.b.a."] {
            assert_eq!(subjects.key(foreign), None, "{foreign}");
        }
    }
}
