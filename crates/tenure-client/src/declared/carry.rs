//! Calls made under a lease carry it, and end with it.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use tonic::body::Body;
use tower::{BoxError, Layer, Service};

use super::context::LeaseContext;
use super::{body, metadata, timeout};

/// A layer for a gRPC channel: each call made under a lease carries it and ends with it.
///
/// A call is made under a lease if it is made on a task that works under one, see [`LeaseContext`], or
/// if a context was put into the extensions of its request. It then
///
/// - carries the leases in its metadata, for a [`super::ReceiveLease`] on the other side;
/// - has a deadline no later than the one of the work, if that has one;
/// - is dropped when a lease is lost or the work ends, which cancels it on the other side, too.
///
/// A call made under no lease is left as it is.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_client::CarryLease;
/// use tonic::transport::Endpoint;
/// use tower::Layer;
///
/// let channel = Endpoint::from_static("http://ledger:8080").connect_lazy();
/// let channel = CarryLease::new().layer(channel);
/// // For any generated client: LedgerClient::new(channel)
/// # let _ = channel;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CarryLease {}

impl CarryLease {
    /// The layer.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<S> Layer<S> for CarryLease {
    type Service = Carrying<S>;

    fn layer(&self, inner: S) -> Carrying<S> {
        Carrying { inner }
    }
}

/// A channel with a [`CarryLease`].
#[derive(Clone, Debug)]
pub struct Carrying<S> {
    inner: S,
}

impl<S, B> Service<http::Request<Body>> for Carrying<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let given = request.extensions().get::<LeaseContext>().cloned();
        let Some(context) = given.or_else(LeaseContext::current) else {
            let call = self.inner.call(request).err_into();
            return call.map_ok(|response| response.map(Body::new)).boxed();
        };
        let request = match prepare(request, &context) {
            Ok(request) => request,
            Err(status) => return async move { Err((*status).into()) }.boxed(),
        };
        let call = self.inner.call(request);
        async move {
            let response = tokio::select! {
                biased;
                ended = context.ended() => return Err(ended.status().into()),
                response = call => response.map_err(Into::into)?,
            };
            Ok(response.map(|answer| body::asked(Body::new(answer), &context)))
        }
        .boxed()
    }
}

/// The request as it goes out under a lease.
fn prepare(
    mut request: http::Request<Body>,
    context: &LeaseContext,
) -> Result<http::Request<Body>, Box<tonic::Status>> {
    if let Some(ended) = context.end() {
        return Err(Box::new(ended.status()));
    }
    metadata::write(context, request.headers_mut())
        .map_err(|error| Box::new(tenure_proto::status::of(&error)))?;
    if let Some(left) = context.time_left() {
        timeout::shorten(request.headers_mut(), left);
    }
    Ok(request.map(|question| body::asked(question, context)))
}
