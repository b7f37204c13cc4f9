//! A timeout for the bodies of requests, and a limit on how many may be waited for.
//!
//! A request counts among those that are worked on once it is here as a whole. Until then its body takes
//! memory for as long as its sender likes. So the number of bodies that are waited for is limited, and each
//! has the time of a request to arrive. A body that is there when it is read costs nothing. Streams of a
//! client may be silent for as long as they live; they have a limit of their own.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use hyper::body::{Frame, SizeHint};
use tenure::Error;
use tokio::time::Sleep;
use tonic::Status;

use crate::limits::{Room, Taken};
use crate::{Fault, http};

/// Calls whose client sends a stream.
const STREAMS: [&str; 2] = ["/tenure.v1.Leases/Session", "/tenure.v1.Store/Exchange"];
/// Reflection talks back and forth, too.
const REFLECTION: &str = "/grpc.reflection.";

/// A layer that puts the timeout and the limit on the body of a request.
pub(crate) async fn layer(State(room): State<Arc<Room>>, request: Request) -> Request {
    if request.body().is_end_stream() { request } else { wrap(request, &room).map(Body::new) }
}

/// The same for a request of any kind.
pub(crate) fn wrap<B>(
    request: ::http::Request<B>,
    room: &Arc<Room>,
) -> ::http::Request<TimedBody<B>> {
    let path = request.uri().path();
    let streams = STREAMS.contains(&path) || path.starts_with(REFLECTION);
    let room = (!streams).then(|| Arc::clone(room));
    let grpc = http::speaks_grpc(request.headers());
    request.map(|body| TimedBody { body, room, grpc, waiting: None, failed: false })
}

/// The fault that a body broke off with, if it is one of ours.
pub(crate) fn fault(error: BoxError) -> Result<Fault, String> {
    let told = error.to_string();
    let inner = error.downcast::<axum::Error>().ok().map(|broken| broken.into_inner());
    inner.and_then(|inner| inner.downcast::<Fault>().ok()).map(|fault| *fault).ok_or(told)
}

/// A body that breaks off unless it arrives in time and there is room to wait for it.
pub(crate) struct TimedBody<B> {
    body: B,
    /// Nothing for a stream, which comes when it comes.
    room: Option<Arc<Room>>,
    grpc: bool,
    /// Since it was first waited for.
    waiting: Option<(Taken, Pin<Box<Sleep>>)>,
    failed: bool,
}

impl<B> TimedBody<B> {
    /// Waits for the rest, if the limit and the timeout allow it.
    fn wait(&mut self, context: &mut Context<'_>) -> Result<(), Fault> {
        let Some(room) = &self.room else { return Ok(()) };
        let limit = room.limits().request_timeout;
        let (_, deadline) = match &mut self.waiting {
            Some(waiting) => waiting,
            none => none.insert((room.body()?, Box::pin(tokio::time::sleep(limit)))),
        };
        if deadline.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        Err(Error::invalid("body", format!("it did not arrive within {limit:?}")).into())
    }

    /// The error for the reader of the body, in the form that it passes on.
    fn fail(&mut self, fault: Fault) -> BoxError {
        (self.failed, self.waiting) = (true, None);
        if self.grpc { Status::from(fault).into() } else { fault.into() }
    }
}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> HttpBody for TimedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.failed {
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => {
                if frame.is_none() || this.body.is_end_stream() {
                    this.waiting = None;
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => match this.wait(context) {
                Ok(()) => Poll::Pending,
                Err(fault) => Poll::Ready(Some(Err(this.fail(fault)))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failed || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_call_with_a_stream_from_the_client_is_known() {
        let all = FileDescriptorSet::decode(tenure_proto::DESCRIPTORS).unwrap();
        let mut streams = Vec::new();
        for file in &all.file {
            for service in &file.service {
                let calls = service.method.iter().filter(|call| call.client_streaming());
                streams.extend(
                    calls.map(|c| format!("/{}.{}/{}", file.package(), service.name(), c.name())),
                );
            }
        }
        streams.sort();
        assert_eq!(streams, STREAMS);
    }
}
