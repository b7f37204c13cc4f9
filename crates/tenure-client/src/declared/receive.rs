//! Services that work under the lease of their caller, and no longer than it.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use tenure::clock::{SharedClock, SystemClock};
use tenure::store::Store;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{BoxError, Layer, Service};

use super::carried::CarriedLease;
use super::context::{Deadline, LeaseContext};
use super::elsewhere::Elsewhere;
use super::{body, metadata, timeout};

/// A layer for a gRPC server: a handler that is called under a lease works under it.
///
/// The handler finds the leases of its caller in [`LeaseContext::current`] and in the extensions of the
/// request. Its work, the stream that it answers with included, is dropped when the caller goes away or
/// gives up and when the call's deadline comes. What it does nevertheless, for instance on a task of its
/// own, it can [fence](LeaseContext::fence): such a commit does not apply once the lease is lost.
///
/// With [`ReceiveLease::checking`] it also looks at the lease in the store, and so drops the work even if
/// the caller is frozen or cut off and cannot say that it lost it.
///
/// A call that carries no lease is left as it is; one whose metadata cannot be understood is refused with
/// `INVALID_ARGUMENT`.
///
/// ```no_run
/// # async fn example<S>(ledger: S) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_client::{ReceiveLease, ServerStore};
/// use tower::ServiceBuilder;
///
/// let store = ServerStore::connect("http://127.0.0.1:8368").await?.into_store();
/// // Or `Server::builder().layer(…)` of tonic's transport.
/// let service = ServiceBuilder::new().layer(ReceiveLease::checking(store)).service(ledger);
/// # let _ = service;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReceiveLease {
    store: Option<Store>,
}

impl ReceiveLease {
    /// Believes the caller.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the leases of calls that take long in this store, the one that the callers hold them in.
    pub fn checking(store: Store) -> Self {
        Self { store: Some(store) }
    }

    fn clock(&self) -> SharedClock {
        self.store.as_ref().map_or_else(SystemClock::shared, |store| Arc::clone(store.clock()))
    }

    /// The context of this call; `None` if it carries no lease.
    fn context(&self, headers: &http::HeaderMap) -> tenure::Result<Option<LeaseContext>> {
        let told = metadata::read(headers)?;
        if told.is_empty() {
            return Ok(None);
        }
        let clock = self.clock();
        let leases: Vec<_> = told
            .into_iter()
            .map(|told| match &self.store {
                Some(store) => Elsewhere::checked(told, store.clone()),
                None => Elsewhere::told(told, Arc::clone(&clock)),
            })
            .map(CarriedLease::elsewhere)
            .collect();
        let deadline = timeout::read(headers).map(|left| {
            let at = clock.uptime().saturating_add(left);
            Deadline { clock, at }
        });
        Ok(Some(LeaseContext::new(None, leases, deadline)))
    }
}

impl<S> Layer<S> for ReceiveLease {
    type Service = Receiving<S>;

    fn layer(&self, inner: S) -> Receiving<S> {
        Receiving { inner, layer: self.clone() }
    }
}

/// A service with a [`ReceiveLease`].
#[derive(Clone, Debug)]
pub struct Receiving<S> {
    inner: S,
    layer: ReceiveLease,
}

impl<S: NamedService> NamedService for Receiving<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, Q, B> Service<http::Request<Q>> for Receiving<S>
where
    S: Service<http::Request<Q>, Response = http::Response<B>>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Q>) -> Self::Future {
        let context = match self.layer.context(request.headers()) {
            Ok(Some(context)) => context,
            Ok(None) => {
                let call = self.inner.call(request);
                return call.map_ok(|response| response.map(Body::new)).boxed();
            }
            Err(error) => {
                let refusal = tenure_proto::status::of(&error).into_http();
                return async move { Ok(refusal) }.boxed();
            }
        };
        request.extensions_mut().insert(context.clone());
        let call = context.within(|| self.inner.call(request));
        async move {
            let closing = context.until_dropped();
            match context.run(call).await {
                Ok(Ok(response)) => {
                    Ok(response.map(|answer| body::answered(Body::new(answer), &context, closing)))
                }
                Ok(Err(error)) => Err(error),
                Err(ended) => Ok(ended.status().into_http()),
            }
        }
        .boxed()
    }
}
