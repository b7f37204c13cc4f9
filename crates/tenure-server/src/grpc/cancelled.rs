//! Request streams that the client cancels, told apart from those that it closes.
//!
//! The codec below reports a cancelled request stream as a closed one. To a session that is the difference
//! between "done with these leases" and "nobody knows", so here it becomes an error.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

/// A service whose request streams end with an error if the client cancels them.
#[derive(Clone)]
pub(super) struct CancelledStreams<S>(pub(super) S);

impl<S: NamedService> NamedService for CancelledStreams<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for CancelledStreams<S>
where
    S: Service<http::Request<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        self.0.call(request.map(|body| Body::new(body.map_err(cancelled))))
    }
}

fn cancelled(status: Status) -> Status {
    match status.code() {
        Code::Cancelled => Status::aborted(format!("the client went away: {}", status.message())),
        _ => status,
    }
}
