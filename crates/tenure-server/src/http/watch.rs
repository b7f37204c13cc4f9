//! What happens to objects: as a stream of events, or by asking again and again (long poll).

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures::stream::StreamExt;
use http::HeaderMap;
use tenure::store::{Batch, Event, WatchRequest};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Params, Requester};
use super::requests::WatchParams;
use super::views::{BatchView, EventView, StartView};
use super::{poll, sse};
use crate::Fault;
use crate::api::Api;
use crate::api::watch_progress::{Item, with_progress};
use crate::limits::Use;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(watch))
}

/// What happens from a revision on: in order, nothing missed, nothing twice. With
/// `Accept: text/event-stream` a stream of events (`start`, then `batch`, with the revision as id, at
/// the end `error` or `leaving`); else one answer, as soon as something has happened or the wait is
/// over, to go on from with `after`.
#[utoipa::path(get, path = "/v1/watch", tag = "objects", operation_id = "watch",
    params(WatchParams, ("last-event-id" = Option<u64>, Header, description = "Stands for `after`")),
    responses(
        (status = 200, content((BatchView = "application/json"), (BatchView = "text/event-stream"))),
        (status = 410, body = ErrorBody, description = "compacted: list again"),
        (status = 501, body = ErrorBody, description = "unsupported: no history is kept"),
        (status = "default", body = ErrorBody)))]
async fn watch(
    requester: Requester,
    Params(params): Params<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let after = sse::last_event(&headers)?.or(params.after);
    let request = WatchRequest { kind: params.kind, prefix: params.prefix, after };
    if !poll::wants_stream(&headers) {
        return poll(&requester, &request, poll::wait(&requester, params.wait_ms)).await;
    }
    let room = requester.view.take(Use::Stream)?;
    let (watch, authorisation) = requester.view.watch(&request).await?;
    let start = sse::event("start", &StartView { revision: watch.start() });
    let revision = watch.start();
    let commits = with_progress(watch).map(|told| {
        let batch = match told {
            Item::Event(batch) => batch?,
            Item::Progress(revision) => return Ok(sse::Commit::nothing(revision)),
        };
        let events = vec![sse::event("batch", &BatchView::from(&*batch))];
        Ok(sse::Commit { revision: batch.revision, events })
    });
    let events = sse::watched(start, revision, true, commits);
    Ok(sse::stream(authorisation, room, events))
}

/// Waits for something to happen, for a while.
async fn poll(
    requester: &Requester,
    request: &WatchRequest,
    wait: Duration,
) -> Result<Response, Fault> {
    let _room = requester.view.take(Use::Wait)?;
    let (mut watch, authorisation) = requester.view.watch(request).await?;
    let batches = poll::gather(requester, wait, &mut watch).await?;
    authorisation.check()?;
    let revision = watch.told();
    let events = batches.iter().flat_map(|batch| batch.events.iter().map(EventView::from));
    Ok(ok(&BatchView { revision, events: events.collect() }))
}

impl poll::Happened for Arc<Batch> {
    fn size(&self) -> (usize, usize) {
        let bytes = self.events.iter().map(|event| match event {
            Event::Put(object) => object.size(),
            Event::Delete { last, .. } => last.as_ref().map_or(128, |object| object.size()),
        });
        (self.events.len(), bytes.sum())
    }
}
