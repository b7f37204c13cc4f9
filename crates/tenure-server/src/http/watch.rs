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
use super::ask::{Asker, Params};
use super::error::ErrorBody;
use super::requests::WatchParams;
use super::views::{BatchView, EventView, StartView};
use super::{poll, sse};
use crate::Fault;
use crate::api::Api;
use crate::api::marks::{Told, marked};
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
    asker: Asker,
    Params(params): Params<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let after = sse::last_event(&headers)?.or(params.after);
    let request = WatchRequest { kind: params.kind, prefix: params.prefix, after };
    if !poll::wants_stream(&headers) {
        return poll(&asker, &request, poll::wait(&asker, params.wait_ms)).await;
    }
    let room = asker.view.take(Use::Stream)?;
    let (watch, grounds) = asker.view.watch(&request).await?;
    let start = sse::event("start", &StartView { revision: watch.start() });
    let revision = watch.start();
    let commits = marked(watch).map(|told| {
        let batch = match told {
            Told::Happened(batch) => batch?,
            Told::UpTo(revision) => return Ok(sse::Told::nothing(revision)),
        };
        let events = vec![sse::event("batch", &BatchView::from(&*batch))];
        Ok(sse::Told { revision: batch.revision, events })
    });
    let events = sse::watched(start, revision, true, commits);
    Ok(sse::stream(grounds, room, events))
}

/// Waits for something to happen, for a while.
async fn poll(asker: &Asker, request: &WatchRequest, wait: Duration) -> Result<Response, Fault> {
    let _room = asker.view.take(Use::Wait)?;
    let (mut watch, grounds) = asker.view.watch(request).await?;
    let batches = poll::gather(asker, wait, &mut watch).await?;
    grounds.still()?;
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
