//! The limit on streams, for services that are not ours.
//!
//! Reflection is a stream in both directions for as long as its client likes. So it counts among the streams
//! of its caller until it ends.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use crate::api::Api;
use crate::auth::Caller;
use crate::limits::{Taken, Use};

/// A service whose calls take room for a stream.
#[derive(Clone)]
pub(super) struct StreamLimit<S> {
    pub(super) service: S,
    pub(super) api: Api,
}

impl<S> StreamLimit<S> {
    fn room(&self, request: &http::Request<Body>) -> Result<Taken, Status> {
        let caller = request.extensions().get::<Caller>();
        let caller = caller.ok_or_else(|| Status::internal("a request without a caller"))?;
        Ok(self.api.view(caller)?.take(Use::Stream)?)
    }
}

impl<S: NamedService> NamedService for StreamLimit<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for StreamLimit<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let room = match self.room(&request) {
            Ok(room) => room,
            Err(refused) => return futures::future::ready(Ok(refused.into_http())).boxed(),
        };
        let answering = self.service.call(request);
        async move {
            let response = answering.await?;
            // Kept until the last of the answer is sent, or nobody wants it any more.
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _room = &room;
                    frame
                }))
            }))
        }
        .boxed()
    }
}
