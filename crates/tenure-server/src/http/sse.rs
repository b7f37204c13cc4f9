//! Streams of events: text that any HTTP client can read line by line.
//!
//! A stream ends with an event that says why: `error` with the error, or `leaving` when the server goes
//! and the client should go on elsewhere. While nothing happens there is a comment now and then, so that
//! both ends notice when the other is gone.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{BoxStream, Stream, StreamExt};
use http::HeaderMap;
use serde::Serialize;

use super::extract::invalid;
use crate::Fault;
use crate::api::{StreamAuthorisation, StreamEnd};
use crate::limits::Taken;

const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// An event with this name and data.
pub(super) fn event(name: &str, data: &impl Serialize) -> Event {
    // None of our types can fail to become JSON.
    let event = Event::default().event(name);
    event.json_data(data).unwrap_or_else(|_| Event::default().event("error").data("{}"))
}

/// What happened in one commit: its revision, and what to tell of it.
pub(super) struct Commit {
    pub(super) revision: u64,
    pub(super) events: Vec<Event>,
}

impl Commit {
    /// Nothing of interest, up to this revision.
    pub(super) fn nothing(revision: u64) -> Self {
        Self { revision, events: Vec::new() }
    }
}

/// A watch as events. Where a client can go on from what it heard, its start and the last event of every
/// commit have the revision as their id, which comes back as `Last-Event-ID`: a client that breaks off
/// within a commit gets all of it again. Where nothing happened there is an id alone, which clients of such
/// streams remember and do not report.
pub(super) fn watched(
    start: Event,
    revision: u64,
    resumes: bool,
    commits: impl Stream<Item = Result<Commit, Fault>> + Send + 'static,
) -> BoxStream<'static, Result<Event, Fault>> {
    let start = Commit { revision, events: vec![start] };
    let commits = futures::stream::once(std::future::ready(Ok(start))).chain(commits);
    let events = commits.flat_map(move |told| {
        let events: Vec<Result<Event, Fault>> = match told {
            Ok(Commit { revision, mut events }) => {
                let last = match (events.pop(), resumes) {
                    (last, true) => Some(last.unwrap_or_default().id(revision.to_string())),
                    (last, false) => last,
                };
                events.into_iter().chain(last).map(Ok).collect()
            }
            Err(fault) => vec![Err(fault)],
        };
        futures::stream::iter(events)
    });
    events.boxed()
}

/// Where a client that comes back stopped reading; it outdoes `after`, which is where it once began.
pub(super) fn last_event(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let revision = value.to_str().ok().and_then(|text| text.parse().ok());
    let revision = revision.ok_or_else(|| invalid("last-event-id", "it is not a revision"))?;
    Ok(Some(revision))
}

/// Sends events: see [`StreamAuthorisation::stream`].
pub(super) fn stream(
    authorisation: StreamAuthorisation,
    room: Taken,
    events: BoxStream<'static, Result<Event, Fault>>,
) -> Response {
    let events = authorisation.stream(room, events).map(|told| {
        Ok::<_, Infallible>(told.unwrap_or_else(|end| match end {
            StreamEnd::Leaving => Event::default().event("leaving").data("{}"),
            StreamEnd::Failed(fault) => event("error", &fault),
        }))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(COMMENT_EVERY)).into_response()
}
