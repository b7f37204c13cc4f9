//! A message as the server keeps it, read back or republished.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use tenure::store::Cause;
use tenure::{Error, Key, Object, Result};

use crate::publish::SETTLE;
use crate::server_time::{self, ServerTime, nanos};
use crate::{BACKEND, envelope};

/// How long the message lives, in whole seconds.
pub(crate) const TTL: &str = "Nats-TTL";
/// The sequence that the subject's last message must have, 0 for none.
pub(crate) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// The subject that [`EXPECTED`] is about, if it is not the message's own.
pub(crate) const EXPECTED_OF: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
/// Set on every marker: the server's, and ours, so that the server takes ours for one when it ends.
pub(crate) const MARKER: &str = "Nats-Marker-Reason";
/// What other clients of the bucket know a deletion by.
pub(crate) const OPERATION: &str = "KV-Operation";
/// Set on what may have met the end of the life that it replaced: a marker may be under way that takes
/// along whatever it finds.
pub(crate) const LATE: &str = "Tenure-Late";
/// The server's reason on a marker for a life that ended.
const MAX_AGE: &str = "MaxAge";

/// An answer to `STREAM.MSG.GET`.
#[derive(Debug, Deserialize)]
pub(crate) struct GetReply {
    pub(crate) error: Option<ApiError>,
    message: Option<RawMessage>,
}

/// How the servers say no.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ApiError {
    #[serde(default)]
    pub(crate) err_code: u64,
    #[serde(default)]
    pub(crate) description: String,
}

/// There is no such message.
const NO_MESSAGE: u64 = 10037;

#[derive(Debug, Deserialize)]
struct RawMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    time: String,
}

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    /// When it was stored, by the server's clock.
    pub(crate) time_ns: i128,
    life: Option<Duration>,
    /// Why the object is gone, if this is a marker.
    pub(crate) gone: Option<Cause>,
    /// Whether it may have met the end of the life that it replaced.
    is_late: bool,
    payload: Bytes,
}

/// What is known of one subject: the state at one sequence, which is a fact for ever. Whether it is
/// still the present state, only the next write's success tells.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The subject's last sequence, 0 if there is no message.
    pub(crate) sequence: u64,
    /// The object, if it is there.
    pub(crate) object: Option<Arc<Object>>,
    /// Before this instant of our steady clock its life cannot have ended; `None` without a life.
    pub(crate) lives_until: Option<Duration>,
    /// Until this instant of our steady clock a marker for a life before this one may take along what
    /// replaces it; `None` if there is none under way.
    pub(crate) unsettled_until: Option<Duration>,
}

impl Known {
    /// Nothing was ever there, or nothing is known.
    pub(crate) const NOTHING: Self =
        Self { sequence: 0, object: None, lives_until: None, unsettled_until: None };
}

impl GetReply {
    /// The message, if there is one.
    pub(crate) fn message(self) -> Result<Option<Stored>> {
        match (self.error, self.message) {
            (Some(error), _) if error.err_code == NO_MESSAGE => Ok(None),
            (Some(error), _) => Err(Error::unavailable(BACKEND, error.description)),
            (None, Some(raw)) => Stored::from_raw(raw).map(Some),
            (None, None) => Err(Error::unavailable(BACKEND, "the server's answer holds nothing")),
        }
    }
}

impl Stored {
    fn from_raw(raw: RawMessage) -> Result<Self> {
        let odd = |what: &str| {
            Error::corrupt(BACKEND, format!("message {} has an unreadable {what}", raw.seq))
        };
        let headers = STANDARD.decode(&raw.hdrs).map_err(|_| odd("header"))?;
        let headers = String::from_utf8_lossy(&headers);
        let payload = STANDARD.decode(&raw.data).map_err(|_| odd("body"))?;
        let time_ns = server_time::parse(&raw.time).ok_or_else(|| odd("time"))?;
        let header = |name: &str| {
            headers.lines().skip(1).find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let (life, gone) = marks(header);
        let is_late = header(LATE).is_some();
        Ok(Self {
            subject: raw.subject,
            sequence: raw.seq,
            time_ns,
            life,
            gone,
            is_late,
            payload: payload.into(),
        })
    }

    /// A message that the server republished as it stored it; `None` if it is none.
    pub(crate) fn republished(headers: &HeaderMap, payload: Bytes) -> Option<Self> {
        let header = |name: &str| headers.get(name).map(|value| value.as_str());
        let (life, gone) = marks(header);
        Some(Self {
            subject: header("Nats-Subject")?.to_owned(),
            sequence: header("Nats-Sequence")?.parse().ok()?,
            time_ns: server_time::parse(header("Nats-Time-Stamp")?)?,
            life,
            gone,
            is_late: header(LATE).is_some(),
            payload,
        })
    }

    /// What it tells about its key.
    pub(crate) fn known(&self, key: Key, time: &ServerTime) -> Result<Known> {
        // How old it is, we do not know: it counts from now.
        let unsettled_until = self.is_late.then(|| time.uptime() + SETTLE);
        let none = Known { sequence: self.sequence, unsettled_until, ..Known::NOTHING };
        if self.gone.is_some() {
            return Ok(none);
        }
        let object = envelope::decode(key, self.sequence, &self.payload)?;
        let lives_until = self.life.map(|life| time.not_before(self.time_ns + nanos(life)));
        Ok(Known { object: Some(Arc::new(object)), lives_until, ..none })
    }
}

fn marks<'a>(header: impl Fn(&str) -> Option<&'a str>) -> (Option<Duration>, Option<Cause>) {
    let life = header(TTL).and_then(|ttl| ttl.parse().ok()).map(Duration::from_secs);
    let gone = match (header(MARKER), header(OPERATION)) {
        (Some(MAX_AGE), _) => Some(Cause::Expired),
        (Some(_), _) | (_, Some("DEL" | "PURGE")) => Some(Cause::Deleted),
        _ => None,
    };
    (life, gone)
}
