//! Dispatches each request: finds out who asks, and hands it to what answers it.
//!
//! gRPC calls of this server's own services go to them directly. Everything else goes through the router,
//! which costs as much as a whole call.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::future::{BoxFuture, FutureExt as _};
use http_body_util::Either;
use hyper::body::Incoming;
use tower::Service as _;

use crate::api::Api;
use crate::auth::{Authenticator, Peer, browser};
use crate::drain::{self, BodyReturn, Drains};
use crate::grpc::Services;
use crate::limits::Room;
use crate::metrics::Metrics;
use crate::{Fault, body_timeout, http};

/// An answer of gRPC, or any other.
pub(crate) type Body = Either<tonic::body::Body, axum::body::Body>;

/// Answers the requests of all connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    admission: Arc<Admission>,
    room: Arc<Room>,
    metrics: Arc<Metrics>,
    services: Services,
    router: Router,
    drains: Drains,
}

impl Dispatcher {
    pub(crate) fn new(
        admission: Arc<Admission>,
        api: &Api,
        metrics: Arc<Metrics>,
        services: Services,
        router: Router,
    ) -> Self {
        let room = Arc::clone(api.room());
        let drains = Drains::default();
        Self { shared: Arc::new(Shared { admission, room, metrics, services, router, drains }) }
    }

    /// Answers one request of a connection to this peer.
    pub(crate) fn call(
        &self,
        mut request: ::http::Request<Incoming>,
        peer: &Arc<Peer>,
    ) -> BoxFuture<'static, Result<::http::Response<Body>, Infallible>> {
        if Services::has(request.uri().path()) && http::speaks_grpc(request.headers()) {
            let (shared, peer) = (Arc::clone(&self.shared), Arc::clone(peer));
            return async move { Ok(shared.grpc(request, &peer).await.map(Either::Left)) }.boxed();
        }
        request.extensions_mut().insert(Arc::clone(peer));
        if drain::applies(&request) {
            return self.call_with_drain(request);
        }
        let answered = self.shared.router.clone().call(request);
        async move { Ok(answered.await?.map(Either::Right)) }.boxed()
    }

    /// Answers a request whose body is drained if it is refused unread.
    fn call_with_drain(
        &self,
        request: ::http::Request<Incoming>,
    ) -> BoxFuture<'static, Result<::http::Response<Body>, Infallible>> {
        let (shared, body_return) = (Arc::clone(&self.shared), BodyReturn::default());
        let answered = shared.router.clone().call(request.map(|body| body_return.lend(body)));
        async move {
            let answer = answered.await?;
            let refused = answer.status().is_client_error() || answer.status().is_server_error();
            if let Some(left) = body_return.left().filter(|_| refused) {
                shared.drains.drain(left).await;
            }
            Ok(answer.map(Either::Right))
        }
        .boxed()
    }
}

impl Shared {
    async fn grpc(
        &self,
        mut request: ::http::Request<Incoming>,
        peer: &Peer,
    ) -> ::http::Response<tonic::body::Body> {
        let begun = self.metrics.begin(request.method(), Some(request.uri().path()));
        let admitted = self.admission.admit(&mut request, peer).await;
        let response = match admitted {
            Ok(()) => {
                let request = body_timeout::wrap(request, &self.room).map(tonic::body::Body::new);
                self.services.call(request).await
            }
            Err(fault) => tonic::Status::from(fault).into_http(),
        };
        self.metrics.end(begun, &response);
        response
    }
}

/// Finds out who asks, and refuses those who may not.
pub(crate) struct Admission {
    authenticator: Authenticator,
}

impl Admission {
    pub(crate) fn new(authenticator: Authenticator) -> Self {
        Self { authenticator }
    }

    /// Adds the caller to the request.
    async fn admit<B>(&self, request: &mut ::http::Request<B>, peer: &Peer) -> Result<(), Fault> {
        let (uri, headers) = (request.uri(), request.headers());
        browser::check(uri, headers, self.authenticator.is_on())?;
        let caller = self.authenticator.admit(uri.path(), headers, peer).await?;
        // Handlers do not need the secret, and so cannot log it.
        request.headers_mut().remove(::http::header::AUTHORIZATION);
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// The same as a layer of the router.
pub(crate) async fn admit(
    State(admission): State<Arc<Admission>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(peer) = request.extensions().get::<Arc<Peer>>().cloned() else {
        return ::http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match admission.admit(&mut request, &peer).await {
        Ok(()) => next.run(request).await,
        Err(fault) if http::speaks_grpc(request.headers()) => {
            tonic::Status::from(fault).into_http()
        }
        Err(fault) => fault.into_response(),
    }
}
