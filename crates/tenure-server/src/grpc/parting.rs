//! Tells a client that closes its side from one that goes away.
//!
//! The codec below takes a request stream that was cancelled for one that was closed. To a session that
//! is the difference between "done with these leases" and "nobody knows", so it is told as an error here.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

/// A service that is told how its clients part.
#[derive(Clone)]
pub(super) struct Told<S>(pub(super) S);

impl<S: NamedService> NamedService for Told<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Told<S>
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
        self.0.call(request.map(|body| Body::new(body.map_err(gone))))
    }
}

fn gone(status: Status) -> Status {
    match status.code() {
        Code::Cancelled => Status::aborted(format!("the client went away: {}", status.message())),
        _ => status,
    }
}
