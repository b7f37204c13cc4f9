//! The one way to change anything: a message that names the sequence it replaces.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Deserialize;
use tenure::{Error, Object, Result};

use crate::BACKEND;
use crate::bucket::MARKER_LIFE;
use crate::connection::{RequestFailure, parse};
use crate::envelope::{self, OWN};
use crate::shared::Shared;
use crate::stored::{ApiError, EXPECTED, EXPECTED_OF, Known, LATE, MARKER, OPERATION, TTL};

/// The subject's last message is another one.
const WRONG_SEQUENCE: u64 = 10071;
/// The same where a write to the subject is on its way through the replicas.
const WRONG_SEQUENCE_IN_FLIGHT: u64 = 10164;
/// The bucket takes no time to live any more.
const NO_LIVES: u64 = 10166;
/// The bucket, the account or the server is full.
const FULL: [u64; 6] = [10023, 10028, 10047, 10077, 10002, 10122];
/// A write that may have met the end of the life it replaced is looked after this much later.
pub(crate) const SETTLE: Duration = Duration::from_millis(250);
/// A write that is sent so shortly before that end may come to the server after it.
const NEARLY: Duration = Duration::from_millis(500);

/// What to put in the place of what is known.
#[derive(Clone, Debug)]
pub(crate) enum Replacement {
    /// This object, for so long.
    Object { object: Arc<Object>, life: Option<Duration> },
    /// Nothing.
    Marker,
}

/// What came of it.
pub(crate) enum Published {
    /// It is in place, and this is known now.
    Stored(Known),
    /// Something else was there; nothing happened.
    Refused,
}

#[derive(Debug, Deserialize)]
struct Ack {
    error: Option<ApiError>,
    #[serde(default)]
    seq: u64,
}

impl Shared {
    /// Puts something in the place of `base`, if that is still what is there.
    pub(crate) async fn publish(
        &self,
        subject: &str,
        base: &Known,
        replacement: Replacement,
    ) -> Result<Published> {
        let sent = self.time.uptime();
        let (headers, payload) = message(base, &replacement, sent);
        let timeout = self.options.reply_timeout;
        let reply = self.request(subject, Some(headers), payload, timeout).await;
        let ack = acknowledged(&reply.map_err(RequestFailure::for_write)?)?;
        if let Some(error) = ack.error {
            self.cache.remove(subject);
            return refusal(&error).map(|()| Published::Refused);
        }
        if ack.seq == 0 {
            return Err(Error::unknown(BACKEND, "the server's answer holds no sequence"));
        }
        let mut known = result(replacement, ack.seq, sent);
        let now = self.time.uptime();
        let is_late = base.lives_until.is_some_and(|end| now >= end);
        if is_late || base.unsettled_until.is_some_and(|end| sent < end) {
            known.unsettled_until = Some(now + SETTLE);
        }
        self.cache.update(subject, known.clone());
        if known.unsettled_until.is_some() && known.object.is_some() {
            Box::pin(self.confirm(subject, &known)).await?;
        }
        Ok(Published::Stored(known))
    }

    /// Has the replicas agree that `base` is still what is there, and changes nothing: a message at a
    /// subject that holds no object names the sequence of the other one. A leader that was deposed and
    /// does not know it may answer a read with the past; this it cannot get stored. A server that
    /// is in no cluster is alone, and its read is the present.
    pub(crate) async fn is_still(&self, subject: &str, base: &Known) -> Result<bool> {
        if !self.is_clustered() {
            return Ok(true);
        }
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, HeaderValue::from(base.sequence));
        headers.insert(EXPECTED_OF, subject);
        // To other clients of the bucket there is nothing.
        headers.insert(OPERATION, "PURGE");
        let (agreed, timeout) = (self.subjects.agreed(), self.options.reply_timeout);
        let reply = self.request(&agreed, Some(headers), Bytes::new(), timeout).await;
        let reply = reply.map_err(RequestFailure::for_read)?;
        match parse::<Ack>(&reply)?.error {
            Some(error) => refusal(&error).map(|()| false),
            None => Ok(true),
        }
    }

    /// The server ends a life by publishing a marker that names no sequence. One that was under way
    /// when this write replaced the object takes the new one along. That can only be if the answer
    /// came after the earliest possible end of the old life, or if the same holds for the write that
    /// this one replaced a moment ago. Then it is looked after.
    async fn confirm(&self, subject: &str, written: &Known) -> Result<()> {
        tokio::time::sleep(SETTLE).await;
        let slow =
            |_| Error::unknown(BACKEND, "it was not answered in time whether it is in place");
        let look = self.is_in_place(subject, written);
        let found = tokio::time::timeout(self.rest(), look).await.map_err(slow)?;
        if found.map_err(|error| Error::unknown(BACKEND, error))? {
            return Ok(());
        }
        self.cache.remove(subject);
        let why = "it was written as the old life ended, and may have ended with it";
        Err(Error::unknown(BACKEND, why))
    }

    /// Whether an object that was written is still there, or what somebody made of it since.
    async fn is_in_place(&self, subject: &str, written: &Known) -> Result<bool> {
        let Some(object) = &written.object else { return Ok(true) };
        let now = self.look(subject, &object.key).await?;
        Ok(descends(&now, written) && self.is_still(subject, &now).await?)
    }
}

/// Whether this is what was written, or came of it: every message of an object replaced the one before
/// it, and an object that was gone in between was created anew. What somebody else created or deleted
/// since says nothing, because an end may have come before.
fn descends(now: &Known, written: &Known) -> bool {
    let created = |known: &Known| known.object.as_ref().map(|object| object.created_revision);
    let is_same_life = now.object.is_some() && created(now) == created(written);
    now.sequence == written.sequence || (now.sequence > written.sequence && is_same_life)
}

/// The answer to a write. One that cannot be read says nothing about what was stored.
fn acknowledged(payload: &[u8]) -> Result<Ack> {
    parse(payload).map_err(|error| Error::unknown(BACKEND, error))
}

fn message(base: &Known, replacement: &Replacement, now: Duration) -> (HeaderMap, Bytes) {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED, HeaderValue::from(base.sequence));
    let is_late = base.lives_until.is_some_and(|end| now + NEARLY >= end);
    if is_late || base.unsettled_until.is_some_and(|end| now < end) {
        headers.insert(LATE, "1");
    }
    match replacement {
        Replacement::Object { object, life } => {
            if let Some(life) = life {
                headers.insert(TTL, HeaderValue::from(life.as_secs().max(1)));
            }
            (headers, envelope::encode(object))
        }
        Replacement::Marker => {
            headers.insert(OPERATION, "PURGE");
            headers.insert(MARKER, "Remove");
            headers.insert(TTL, HeaderValue::from(MARKER_LIFE.as_secs()));
            (headers, Bytes::new())
        }
    }
}

fn result(replacement: Replacement, sequence: u64, sent: Duration) -> Known {
    match replacement {
        Replacement::Marker => Known { sequence, ..Known::NOTHING },
        Replacement::Object { mut object, life } => {
            // What is only prolonged has all its numbers, and others may share it.
            if object.revision == OWN {
                envelope::settle(Arc::make_mut(&mut object), sequence);
            }
            let lives_until = life.map(|life| sent + life);
            Known { sequence, object: Some(object), lives_until, unsettled_until: None }
        }
    }
}

/// What an error of the server means; a wrong sequence is an answer, not an error.
fn refusal(error: &ApiError) -> Result<()> {
    let told = || format!("{} (error {})", error.description, error.err_code);
    match error.err_code {
        WRONG_SEQUENCE | WRONG_SEQUENCE_IN_FLIGHT => Ok(()),
        NO_LIVES => Err(Error::Refused {
            backend: BACKEND,
            reason: format!(
                "{}; somebody changed the bucket, and leases would never expire: mend it with nats \
                 stream edit and --allow-msg-ttl",
                told()
            ),
        }),
        code if FULL.contains(&code) => Err(Error::Full { backend: BACKEND, reason: told() }),
        _ => Err(Error::unavailable(BACKEND, told())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_read_settles_nothing() {
        for odd in [&b""[..], b"+OK", b"{\"seq\":\"seven\"}", b"{\"seq\":7"] {
            let error = acknowledged(odd).unwrap_err();
            assert!(error.is_unknown(), "{error}");
        }
        assert_eq!(acknowledged(b"{\"stream\":\"KV_b\",\"seq\":7}").unwrap().seq, 7);
    }

    #[test]
    fn errors_of_the_server_are_told_apart() {
        let code = |err_code| refusal(&ApiError { err_code, description: "x".into() });
        assert!(code(10071).is_ok() && code(10164).is_ok());
        assert!(matches!(code(10077), Err(Error::Full { .. })));
        // It is this bucket that has no lives; the backend does.
        let refused = code(10166).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
        assert!(refused.to_string().contains("--allow-msg-ttl"), "{refused}");
        assert!(matches!(code(1), Err(Error::Unavailable { .. })));
    }
}
