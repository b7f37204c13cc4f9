//! Where things are kept.
//!
//! Under the store's prefix, objects live at `o/KIND/ID`, names at `n/KIND/NAME` (their value is the
//! id that has the name), and `writer` holds the lowest writer level the store accepts. A kind has no
//! `/`, so the parts cannot be confused, and ids sort as bytes, which is etcd's own order.

use tenure::Key;

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(crate) fn object(&self, key: &Key) -> Vec<u8> {
        [&self.prefix, "/o/", &key.kind, "/", &key.id].concat().into_bytes()
    }

    pub(crate) fn name(&self, kind: &str, name: &str) -> Vec<u8> {
        [&self.prefix, "/n/", kind, "/", name].concat().into_bytes()
    }

    pub(crate) fn writer(&self) -> Vec<u8> {
        [&self.prefix, "/writer"].concat().into_bytes()
    }

    /// Where ids of this kind with this prefix begin; of all kinds without one.
    pub(crate) fn start(&self, kind: Option<&str>, prefix: &str) -> Vec<u8> {
        match kind {
            Some(kind) => format!("{}/o/{kind}/{prefix}", self.prefix),
            None => format!("{}/o/", self.prefix),
        }
        .into_bytes()
    }

    /// The object that a key of ours belongs to.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(key).ok()?;
        let rest = text.strip_prefix(self.prefix.as_str())?.strip_prefix("/o/")?;
        let (kind, id) = rest.split_once('/')?;
        Some(Key::new(kind, id))
    }
}

/// The first key behind all that start with this.
pub(crate) fn end_of(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Everything: etcd's way to say it.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_there_and_back() {
        let keys = Keys::new("a/b");
        for (kind, id) in [("lease", "x/y#z"), ("k", "\u{10ffff}"), ("k%", "/")] {
            let key = Key::new(kind, id);
            assert_eq!(keys.parse(&keys.object(&key)), Some(key));
        }
        assert_eq!(keys.parse(b"a/b/n/k/x"), None);
        assert_eq!(keys.parse(b"a/bc/o/k/x"), None);
    }

    #[test]
    fn a_range_ends_right_behind_its_prefix() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
    }
}
