//! What is still on its way when a request is refused.
//!
//! Whoever is refused in HTTP/2 before its body was read has its stream reset, and there are clients that
//! take that for a failure and lose the answer (curl among them). So a small body is heard before it is
//! answered: for a moment, within a bound, and for so many at once. Whoever announces more, or waits to be
//! told to go on, is answered at once. gRPC has rules of its own for this, and streams that stay open.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::Semaphore;

use crate::http::speaks_grpc;

/// So many bytes are listened to.
const MOST: u64 = 64 * 1024;
/// For so long.
const WITHIN: Duration = Duration::from_secs(1);
/// Of so many requests at once; the others are answered without it.
const AT_ONCE: usize = 1_024;

/// Room to listen to those who are refused.
pub(crate) struct Ears {
    places: Semaphore,
}

impl Default for Ears {
    fn default() -> Self {
        Self { places: Semaphore::new(AT_ONCE) }
    }
}

impl Ears {
    /// Listens to the rest of a body.
    pub(crate) async fn hear_out(&self, body: Incoming) {
        if let Ok(_place) = self.places.try_acquire() {
            let _ = tokio::time::timeout(WITHIN, hear(body)).await;
        }
    }
}

async fn hear(mut body: Incoming) {
    let mut heard = 0;
    while let Some(Ok(frame)) = body.frame().await {
        heard += frame.data_ref().map_or(0, |data| data.len() as u64);
        if heard > MOST {
            return;
        }
    }
}

/// Whether what is left of this request is to be heard if it is refused.
pub(crate) fn concerns(request: &::http::Request<Incoming>) -> bool {
    request.version() == ::http::Version::HTTP_2
        && !request.body().is_end_stream()
        && request.body().size_hint().lower() <= MOST
        && !request.headers().contains_key(::http::header::EXPECT)
        && !speaks_grpc(request.headers())
}

/// A body that comes back when it is dropped before its end.
pub(crate) struct Lent {
    body: Option<Incoming>,
    lender: Lender,
}

/// Gets it back.
#[derive(Clone, Default)]
pub(crate) struct Lender {
    back: Arc<Mutex<Option<Incoming>>>,
}

impl Lender {
    pub(crate) fn lend(&self, body: Incoming) -> Lent {
        Lent { body: Some(body), lender: self.clone() }
    }

    /// What is left of the body, if it is back.
    pub(crate) fn left(&self) -> Option<Incoming> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.lender.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl HttpBody for Lent {
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
