//! Reads the rest of a body whose request is refused.
//!
//! If an HTTP/2 request is refused before its body was read, its stream is reset. Some clients take that for
//! a failure and lose the answer, curl among them. So a small body is read before the answer: within a
//! timeout, a number of bytes, and a number of requests at once. A request that announces more, or waits to
//! be told to go on, is answered at once. gRPC has rules of its own for this, and streams that stay open.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::Semaphore;

use crate::http::speaks_grpc;

/// Bytes that are read of one body.
const MAX_BYTES: u64 = 64 * 1024;
/// How long reading one body may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Bodies that are read at once. Requests beyond that are answered without.
const AT_ONCE: usize = 1_024;

/// The limit on how many bodies are drained at once.
pub(crate) struct Drains {
    places: Semaphore,
}

impl Default for Drains {
    fn default() -> Self {
        Self { places: Semaphore::new(AT_ONCE) }
    }
}

impl Drains {
    /// Reads the rest of a body and throws it away.
    pub(crate) async fn drain(&self, body: Incoming) {
        if let Ok(_place) = self.places.try_acquire() {
            discard(body, TIMEOUT, MAX_BYTES).await;
        }
    }
}

/// Reads a body and throws it away, within a timeout and a number of bytes.
pub(crate) async fn discard(
    mut body: impl HttpBody<Data = Bytes> + Unpin,
    timeout: Duration,
    max_bytes: u64,
) {
    let reading = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            if bytes > max_bytes {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(timeout, reading).await;
}

/// Whether the body of this request is to be drained if the request is refused.
pub(crate) fn applies(request: &::http::Request<Incoming>) -> bool {
    request.version() == ::http::Version::HTTP_2
        && !request.body().is_end_stream()
        && request.body().size_hint().lower() <= MAX_BYTES
        && !request.headers().contains_key(::http::header::EXPECT)
        && !speaks_grpc(request.headers())
}

/// A body that comes back when it is dropped before its end.
pub(crate) struct BorrowedBody {
    body: Option<Incoming>,
    back_to: BodyReturn,
}

/// Where a borrowed body comes back to.
#[derive(Clone, Default)]
pub(crate) struct BodyReturn {
    back: Arc<Mutex<Option<Incoming>>>,
}

impl BodyReturn {
    pub(crate) fn lend(&self, body: Incoming) -> BorrowedBody {
        BorrowedBody { body: Some(body), back_to: self.clone() }
    }

    /// What is left of the body, if it is back.
    pub(crate) fn left(&self) -> Option<Incoming> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for BorrowedBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.back_to.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl HttpBody for BorrowedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}
