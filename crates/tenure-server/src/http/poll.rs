//! Long polls: one answer as soon as something has happened, or when the wait is over.
//!
//! A client that wants a stream of events instead says so in `Accept`.

use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use http::{HeaderMap, header};

use super::extract::Requester;

/// How long a poll waits unless it says otherwise.
const USUAL: Duration = Duration::from_secs(30);
/// Once a poll has so many events it is answered, even if there are more.
const EVENTS: usize = 1_000;
/// The same for the size of what they are about.
const BYTES: usize = 4 * 1024 * 1024;

/// Whether the client wants a stream of events.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/event-stream"))
}

/// How long this poll may wait.
pub(super) fn wait(requester: &Requester, wait_ms: Option<u64>) -> Duration {
    let asked = wait_ms.map_or(USUAL, Duration::from_millis);
    asked.min(requester.view.api().room().limits().wait_max)
}

/// Waits for something, unless the wait is over or the server leaves before it happens.
pub(super) async fn within<T>(
    requester: &Requester,
    wait: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let done = requester.view.api().shutdown().or(tokio::time::timeout(wait, work)).await;
    done.and_then(Result::ok)
}

/// Something that happened, and how much of an answer it takes: events, and bytes.
pub(super) trait Happened {
    fn size(&self) -> (usize, usize);
}

/// What happens first, and what is there already with it. An error that is not the first waits for the next
/// poll, which meets it first.
pub(super) async fn gather<T: Happened, E>(
    requester: &Requester,
    wait: Duration,
    watch: &mut (impl Stream<Item = Result<T, E>> + Unpin),
) -> Result<Vec<T>, E> {
    let Some(Some(first)) = within(requester, wait, watch.next()).await else {
        return Ok(Vec::new());
    };
    let mut all = vec![first?];
    let (mut events, mut bytes) = all.first().map_or((0, 0), Happened::size);
    while events < EVENTS && bytes < BYTES {
        let Some(Some(Ok(next))) = watch.next().now_or_never() else { break };
        let more = next.size();
        (events, bytes) = (events + more.0, bytes + more.1);
        all.push(next);
    }
    Ok(all)
}
