//! What happens to objects: as a stream of events, or by asking again and again (long poll).

use std::time::Duration;

use axum::response::Response;
use futures::FutureExt;
use futures::stream::StreamExt;
use http::{HeaderMap, header};
use tenure::store::{Batch, Watch, WatchRequest};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::ask::{Asker, Params};
use super::error::ErrorBody;
use super::requests::WatchParams;
use super::sse;
use super::views::{BatchView, EventView, StartView};
use crate::Fault;
use crate::api::Api;
use crate::limits::Use;

/// How long a poll waits unless it says otherwise.
const POLL: Duration = Duration::from_secs(30);
/// Once a poll has so many events it is answered, even if there are more.
const POLL_EVENTS: usize = 1_000;
/// The same for the size of what they are about.
const POLL_BYTES: usize = 4 * 1024 * 1024;

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
    let wait = params.wait_ms.map_or(POLL, Duration::from_millis);
    let after = sse::last_event(&headers)?.or(params.after);
    let request = WatchRequest { kind: params.kind, prefix: params.prefix, after };
    if !wants_stream(&headers) {
        return poll(&asker, &request, wait).await;
    }
    let room = asker.view.take(Use::Stream)?;
    let (watch, grounds) = asker.view.watch(&request).await?;
    let start = sse::event("start", &StartView { revision: watch.start() });
    let revision = watch.start();
    let commits = watch.map(|batch| {
        let batch = batch?;
        let events = vec![sse::event("batch", &BatchView::from(&*batch))];
        Ok(sse::Told { revision: batch.revision, events })
    });
    let events = sse::watched(start, revision, true, commits);
    Ok(sse::stream(grounds, room, events))
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/event-stream"))
}

/// Waits for something to happen, for a while.
async fn poll(asker: &Asker, request: &WatchRequest, wait: Duration) -> Result<Response, Fault> {
    let _room = asker.view.take(Use::Wait)?;
    let api = asker.view.api();
    let wait = wait.min(api.room().limits().wait_max);
    let (mut watch, grounds) = asker.view.watch(request).await?;
    let first = api.shutdown().or(tokio::time::timeout(wait, watch.next())).await;
    let mut batches = Vec::new();
    if let Some(Ok(Some(first))) = first {
        batches.push(first?);
        gather(&mut watch, &mut batches);
    }
    grounds.still()?;
    let revision = batches.last().map_or(watch.start(), |batch| batch.revision);
    let events = batches.iter().flat_map(|batch| batch.events.iter().map(EventView::from));
    Ok(ok(&BatchView { revision, events: events.collect() }))
}

/// Adds what is there already. An error waits for the next poll, which meets it first.
fn gather(watch: &mut Watch, batches: &mut Vec<std::sync::Arc<Batch>>) {
    let size = |batch: &Batch| -> (usize, usize) {
        let bytes = batch.events.iter().map(|event| match event {
            tenure::store::Event::Put(object) => object.size(),
            tenure::store::Event::Delete { last, .. } => last.as_ref().map_or(128, |o| o.size()),
        });
        (batch.events.len(), bytes.sum())
    };
    let (mut events, mut bytes) = batches.first().map_or((0, 0), |batch| size(batch));
    while events < POLL_EVENTS && bytes < POLL_BYTES {
        let Some(Some(Ok(batch))) = watch.next().now_or_never() else { return };
        let more = size(&batch);
        (events, bytes) = (events + more.0, bytes + more.1);
        batches.push(batch);
    }
}
