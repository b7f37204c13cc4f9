//! A body that ends with the work it belongs to.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::HeaderMap;
use hyper::body::Frame;
use tonic::body::Body;

use super::context::{Closing, LeaseContext};
use super::ended::Ended;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a body does when the work has ended before it.
enum Manner {
    /// It breaks off: whatever we ask for or were about to send is of no use any more.
    BreakOff,
    /// It tells the caller why, as the status of the call.
    Tell,
}

/// Polls a body in a context, and drops it when nothing may be done in that context any more.
struct Bound {
    /// Gone once it is at its end.
    inner: Option<Body>,
    ended: BoxFuture<'static, Ended>,
    context: LeaseContext,
    manner: Manner,
    /// Ends the work along with the body.
    closing: Option<Closing>,
}

/// What a caller sends or receives under a lease.
pub(super) fn asked(inner: Body, context: &LeaseContext) -> Body {
    bound(inner, context, Manner::BreakOff, None)
}

/// What a service answers under a lease. The work goes on while the answer does.
pub(super) fn answered(inner: Body, context: &LeaseContext, closing: Closing) -> Body {
    bound(inner, context, Manner::Tell, Some(closing))
}

fn bound(inner: Body, context: &LeaseContext, manner: Manner, closing: Option<Closing>) -> Body {
    if hyper::body::Body::is_end_stream(&inner) {
        return inner;
    }
    let (ended, context) = (context.ended(), context.clone());
    Body::new(Bound { inner: Some(inner), ended, context, manner, closing })
}

impl Bound {
    fn stop(&mut self) {
        self.inner = None;
        self.closing = None;
    }

    fn broken_off(&mut self, ended: &Ended) -> Result<Frame<Bytes>, BoxError> {
        self.stop();
        let status = ended.status();
        match self.manner {
            Manner::BreakOff => Err(status.into()),
            Manner::Tell => {
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers)?;
                Ok(Frame::trailers(trailers))
            }
        }
    }
}

impl hyper::body::Body for Bound {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        if let Poll::Ready(ended) = this.ended.as_mut().poll(cx) {
            return Poll::Ready(Some(this.broken_off(&ended)));
        }
        let polled = this.context.within(|| Pin::new(inner).poll_frame(cx));
        if let Poll::Ready(None) = polled {
            this.stop();
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }
}
