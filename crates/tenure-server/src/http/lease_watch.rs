//! What happens to leases: as a stream of events, or by asking again and again (long poll).

use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures::stream::StreamExt;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use tenure::lease::{LeaseBatch, LeaseEvent};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Params, Requester};
use super::leases::Done;
use super::terms::LeaseView;
use super::views::cause;
use super::{poll, sse};
use crate::Fault;
use crate::api::Api;
use crate::api::watch_progress::{Item, with_progress};
use crate::limits::Use;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::default().routes(routes!(watch))
}

/// Which leases to watch.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WatchParams {
    /// Scopes that start with this.
    #[serde(default)]
    prefix: String,
    /// Everything after this revision; from now on unless given.
    after: Option<u64>,
    /// Of a long poll: how long to wait for something to happen; 30 seconds unless given.
    wait_ms: Option<u64>,
}

/// A lease that has no holder any more.
#[derive(Serialize, ToSchema)]
struct EndedView<'a> {
    scope: &'a str,
    /// `deleted`, `expired` or `unspecified`.
    cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<LeaseView<'a>>,
}

/// One thing that happened to a lease, as a poll tells it.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum HappenedView<'a> {
    /// It has a holder, or its holder changed something about it.
    Held { lease: LeaseView<'a> },
    /// It has none any more.
    Ended(EndedView<'a>),
}

/// What happened to leases, in order.
#[derive(Serialize, ToSchema)]
struct HappenedAll<'a> {
    /// Up to which all has been told, to go on from with `after`. Absent where the store keeps no history.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    events: Vec<HappenedView<'a>>,
}

/// What happens to leases. With `Accept: text/event-stream` a stream of events: `start`, then `held` with
/// a lease and `ended` with its scope, at the end `error` or `leaving`. The id of an event is the revision
/// up to which all has been told; a store that keeps no history gives none, and a stream that broke
/// begins anew. Else one answer, as soon as something has happened or the wait is over, to go on from with
/// `after`; what happens between two polls is told only where the store keeps a history.
#[utoipa::path(get, path = "/v1/leases/watch", tag = "leases", operation_id = "watchLeases",
    params(WatchParams, ("last-event-id" = Option<u64>, Header, description = "Stands for `after`")),
    responses(
        (status = 200, content(
            (HappenedAll = "application/json"), (LeaseView = "text/event-stream"))),
        (status = 410, body = ErrorBody, description = "compacted: list again"),
        (status = 501, body = ErrorBody, description = "unsupported: no history is kept"),
        (status = "default", body = ErrorBody)))]
async fn watch(
    requester: Requester,
    Params(params): Params<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let after = sse::last_event(&headers)?.or(params.after);
    if !poll::wants_stream(&headers) {
        let wait = poll::wait(&requester, params.wait_ms);
        return poll(&requester, &params.prefix, after, wait).await;
    }
    let room = requester.view.take(Use::Stream)?;
    let (watch, authorisation) = requester.view.watch_lease_batches(&params.prefix, after).await?;
    let start = sse::event("start", &Done {});
    let revision = watch.start();
    let commits = with_progress(watch).map(|told| {
        let batch = match told {
            Item::Event(batch) => batch?,
            Item::Progress(revision) => return Ok(sse::Commit::nothing(revision)),
        };
        let events = batch.events.iter().map(event).collect();
        Ok(sse::Commit { revision: batch.revision, events })
    });
    let events = sse::watched(start, revision, resumes(&requester), commits);
    Ok(sse::stream(authorisation, room, events))
}

/// Whether a client can go on from what it heard.
fn resumes(requester: &Requester) -> bool {
    requester.view.store().capabilities().history.is_some()
}

fn event(event: &LeaseEvent) -> Event {
    match view(event) {
        HappenedView::Held { lease } => sse::event("held", &lease),
        HappenedView::Ended(ended) => sse::event("ended", &ended),
    }
}

fn view(event: &LeaseEvent) -> HappenedView<'_> {
    match event {
        LeaseEvent::Held(info) => HappenedView::Held { lease: info.into() },
        LeaseEvent::Ended { id, cause: why, last } => {
            let last = last.as_ref().map(LeaseView::from);
            HappenedView::Ended(EndedView { scope: id, cause: cause(*why), last })
        }
    }
}

/// Waits for something to happen, for a while.
async fn poll(
    requester: &Requester,
    prefix: &str,
    after: Option<u64>,
    wait: Duration,
) -> Result<Response, Fault> {
    let _room = requester.view.take(Use::Wait)?;
    let (mut watch, authorisation) = requester.view.watch_lease_batches(prefix, after).await?;
    let batches = poll::gather(requester, wait, &mut watch).await?;
    authorisation.check()?;
    let revision = watch.told();
    let events = batches.iter().flat_map(|batch| batch.events.iter().map(view));
    let revision = resumes(requester).then_some(revision);
    Ok(ok(&HappenedAll { revision, events: events.collect() }))
}

impl poll::Happened for LeaseBatch {
    fn size(&self) -> (usize, usize) {
        // Roughly: names, and what holders tell of themselves.
        let bytes = self.events.iter().map(|event| match event {
            LeaseEvent::Held(info) | LeaseEvent::Ended { last: Some(info), .. } => {
                let told = info.metadata.iter().map(|(key, value)| key.len() + value.len());
                256 + info.id.len() + told.sum::<usize>()
            }
            LeaseEvent::Ended { .. } => 256,
        });
        (self.events.len(), bytes.sum())
    }
}
