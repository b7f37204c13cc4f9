//! What a server says, taken from the bytes that came so far.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;

/// One line; what a server tells of itself and its cluster is the longest.
const LINE: usize = 256 * 1024;
/// One message. Lists of subjects are the largest.
const MESSAGE: usize = 256 * 1024 * 1024;

/// What a server says about itself, when a connection begins and whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Info {
    #[serde(default)]
    pub(crate) max_payload: usize,
    #[serde(default)]
    pub(crate) tls_required: bool,
    /// To be signed by those who authenticate with a key.
    #[serde(default)]
    pub(crate) nonce: String,
    /// It is about to end, and others should be used.
    #[serde(default)]
    pub(crate) ldm: bool,
}

/// One thing that was said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Info(Box<Info>),
    /// An answer to the request with this number.
    Answer {
        number: u64,
        payload: Bytes,
    },
    /// Nobody was there to hear the request with this number.
    Nobody {
        number: u64,
    },
    Ping,
    Pong,
    /// What is wrong, in the server's words.
    Error(String),
    /// Nothing that concerns anybody here.
    Nothing,
}

/// What was said makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense;

/// Takes the next thing that is there in full. Answers come to `inbox` with a number behind it.
pub(crate) fn next(bytes: &mut BytesMut, inbox: &str) -> Result<Option<Said>, Nonsense> {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        return if bytes.len() > LINE { Err(Nonsense) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| Nonsense)?.trim_end();
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let with_head = match verb {
        "MSG" => false,
        "HMSG" => true,
        _ => {
            let said = plain(verb, rest)?;
            let _ = bytes.split_to(end + 1);
            return Ok(Some(said));
        }
    };
    let delivery = Delivery::read(rest, with_head, inbox).ok_or(Nonsense)?;
    let (begin, size) = (end + 1, delivery.size);
    if bytes.len() < begin + size + 2 {
        bytes.reserve((begin + size + 2).saturating_sub(bytes.len()));
        return Ok(None);
    }
    let _ = bytes.split_to(begin);
    let content = bytes.split_to(size).freeze();
    if *bytes.split_to(2) != *b"\r\n" {
        return Err(Nonsense);
    }
    Ok(Some(delivery.said(&content)))
}

/// What has nothing behind its line.
fn plain(verb: &str, rest: &str) -> Result<Said, Nonsense> {
    Ok(match verb {
        "PING" => Said::Ping,
        "PONG" => Said::Pong,
        "INFO" => Said::Info(serde_json::from_str(rest).map_err(|_| Nonsense)?),
        "-ERR" => Said::Error(rest.trim_matches('\'').to_owned()),
        "+OK" => Said::Nothing,
        _ => return Err(Nonsense),
    })
}

/// The line before a message: `subject sid [reply] [size of the head] size`.
struct Delivery {
    /// `None` if it is no answer of ours.
    number: Option<u64>,
    head: usize,
    size: usize,
}

impl Delivery {
    fn read(rest: &str, with_head: bool, inbox: &str) -> Option<Self> {
        let subject = rest.split(' ').next()?;
        let mut sizes = rest.rsplit(' ').map(str::parse::<usize>);
        let size = sizes.next()?.ok().filter(|size| *size <= MESSAGE)?;
        let head = if with_head { sizes.next()?.ok()? } else { 0 };
        let number = subject.strip_prefix(inbox).and_then(|number| number.parse().ok());
        (head <= size).then_some(Self { number, head, size })
    }

    fn said(self, content: &Bytes) -> Said {
        let Some(number) = self.number else { return Said::Nothing };
        // The status of a head is behind its version: `NATS/1.0 503`.
        if content[..self.head].get(8..12) == Some(b" 503") {
            return Said::Nobody { number };
        }
        Said::Answer { number, payload: content.slice(self.head..) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INBOX: &str = "_INBOX.me.";

    fn all(text: &[u8]) -> Result<Vec<Said>, Nonsense> {
        let mut bytes = BytesMut::from(text);
        let mut said = Vec::new();
        while let Some(next) = next(&mut bytes, INBOX)? {
            said.push(next);
        }
        assert!(bytes.is_empty(), "left: {bytes:?}");
        Ok(said)
    }

    fn answer(number: u64, payload: &'static str) -> Said {
        Said::Answer { number, payload: payload.into() }
    }

    const TALK: &[u8] = b"INFO {\"max_payload\":1024,\"nonce\":\"x\",\"other\":[1]} \r\nPING\r\n+OK\r\n\
        MSG _INBOX.me.7 1 5\r\nhel\nl\r\nMSG _INBOX.me.8 1 reply.to 0\r\n\r\n\
        HMSG _INBOX.me.9 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nMSG _INBOX.other.1 1 1\r\nx\r\n\
        HMSG _INBOX.me.10 1 back 20 22\r\nNATS/1.0\r\na: b c\r\n\r\nhi\r\n-ERR 'Stale Connection'\r\nPONG\r\n";

    #[test]
    fn everything_that_servers_say_is_understood() {
        let info = Info { max_payload: 1024, nonce: "x".into(), ..Info::default() };
        let expected = [
            Said::Info(Box::new(info)),
            Said::Ping,
            Said::Nothing,
            answer(7, "hel\nl"),
            answer(8, ""),
            Said::Nobody { number: 9 },
            Said::Nothing,
            answer(10, "hi"),
            Said::Error("Stale Connection".into()),
            Said::Pong,
        ];
        assert_eq!(all(TALK).unwrap(), expected);
    }

    #[test]
    fn it_does_not_matter_how_it_comes_in_pieces() {
        let whole = all(TALK).unwrap();
        for size in 1..20 {
            let (mut bytes, mut said) = (BytesMut::new(), Vec::new());
            for piece in TALK.chunks(size) {
                bytes.extend_from_slice(piece);
                while let Some(next) = next(&mut bytes, INBOX).unwrap() {
                    said.push(next);
                }
            }
            assert_eq!(said, whole, "in pieces of {size}");
        }
    }

    #[test]
    fn nonsense_is_told_apart() {
        for text in [
            &b"HELLO\r\n"[..],
            b"MSG _INBOX.me.1 1 many\r\n",
            b"MSG _INBOX.me.1 1 3\r\nabcde\r\n",
            b"MSG _INBOX.me.1 1 99999999999\r\n",
            b"HMSG _INBOX.me.1 1 9 3\r\nabc\r\n",
            b"INFO {\r\n",
            b"\xff\xfe\r\n",
        ] {
            let mut bytes = BytesMut::from(text);
            assert_eq!(next(&mut bytes, INBOX), Err(Nonsense), "{}", text.escape_ascii());
        }
        let mut endless = BytesMut::from(&vec![b'x'; LINE + 1][..]);
        assert_eq!(next(&mut endless, INBOX), Err(Nonsense));
    }
}
