//! The headers of a request, written once and in order.

use std::fmt::{Display, Write as _};

use async_nats::HeaderMap;

/// How a block of headers begins.
const VERSION: &str = "NATS/1.0";
const END: &str = "\r\n";
/// What the headers of a write take, and a little more.
const USUAL: usize = 192;

/// Headers as they go over the connection, but for the empty line at the end. Names and values are ours
/// or encoded, so they hold no line breaks.
pub(crate) struct Head(String);

impl Head {
    pub(crate) fn new() -> Self {
        let mut text = String::with_capacity(USUAL);
        text.push_str(VERSION);
        text.push_str(END);
        Self(text)
    }

    pub(crate) fn add(&mut self, name: &str, value: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{name}: {value}{END}");
    }

    /// With the empty line that ends it.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [self.0.as_bytes(), END.as_bytes()]
    }

    /// For the client library.
    pub(crate) fn to_map(&self) -> HeaderMap {
        let lines = self.0.lines().skip(1);
        let mut map = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            map.insert(name, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let mut head = Head::new();
        head.add("Nats-TTL", 30);
        head.add("Nats-Expected-Last-Subject-Sequence-Subject", "$KV.b.kind.a=3A b");
        let bytes = head.parts().concat();
        let text = "NATS/1.0\r\nNats-TTL: 30\r\n\
                    Nats-Expected-Last-Subject-Sequence-Subject: $KV.b.kind.a=3A b\r\n\r\n";
        assert_eq!(bytes, text.as_bytes());
        let map = head.to_map();
        assert_eq!(map.len(), 2);
        let value = map.get("Nats-Expected-Last-Subject-Sequence-Subject");
        assert_eq!(value.map(|value| value.as_str()), Some("$KV.b.kind.a=3A b"));
    }
}
