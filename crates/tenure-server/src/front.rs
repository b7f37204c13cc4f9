//! What every request passes: who asks is found out, and it goes to whoever works on it.
//!
//! gRPC calls of this server's own services take a short way. The router is for the rest: it is made for
//! many routes with layers of their own, and costs as much as a whole call.

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
use crate::grpc::Services;
use crate::limits::Room;
use crate::metrics::Metrics;
use crate::unheard::{self, Ears, Lender};
use crate::{Fault, arriving, http};

/// An answer of gRPC, or any other.
pub(crate) type Body = Either<tonic::body::Body, axum::body::Body>;

/// The way in. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Front {
    shared: Arc<Shared>,
}

struct Shared {
    gate: Arc<Gate>,
    room: Arc<Room>,
    metrics: Arc<Metrics>,
    services: Services,
    router: Router,
    ears: Ears,
}

impl Front {
    pub(crate) fn new(
        gate: Arc<Gate>,
        api: &Api,
        metrics: Arc<Metrics>,
        services: Services,
        router: Router,
    ) -> Self {
        let room = Arc::clone(api.room());
        let ears = Ears::default();
        Self { shared: Arc::new(Shared { gate, room, metrics, services, router, ears }) }
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
        if unheard::concerns(&request) {
            return self.heard_out(request);
        }
        let answered = self.shared.router.clone().call(request);
        async move { Ok(answered.await?.map(Either::Right)) }.boxed()
    }

    /// Answers a request whose body is heard even if nobody wants to read it.
    fn heard_out(
        &self,
        request: ::http::Request<Incoming>,
    ) -> BoxFuture<'static, Result<::http::Response<Body>, Infallible>> {
        let (shared, lender) = (Arc::clone(&self.shared), Lender::default());
        let answered = shared.router.clone().call(request.map(|body| lender.lend(body)));
        async move {
            let answer = answered.await?;
            let refused = answer.status().is_client_error() || answer.status().is_server_error();
            if let Some(left) = lender.left().filter(|_| refused) {
                shared.ears.hear_out(left).await;
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
        let admitted = self.gate.admit(&mut request, peer).await;
        let response = match admitted {
            Ok(()) => {
                let request = arriving::wrap(request, &self.room).map(tonic::body::Body::new);
                self.services.call(request).await
            }
            Err(fault) => tonic::Status::from(fault).into_http(),
        };
        self.metrics.end(begun, &response);
        response
    }
}

/// Lets in whoever may come in.
pub(crate) struct Gate {
    authenticator: Authenticator,
}

impl Gate {
    pub(crate) fn new(authenticator: Authenticator) -> Self {
        Self { authenticator }
    }

    /// Finds out who asks, for whoever works on the request.
    async fn admit<B>(&self, request: &mut ::http::Request<B>, peer: &Peer) -> Result<(), Fault> {
        let (uri, headers) = (request.uri(), request.headers());
        browser::check(uri, headers, self.authenticator.is_on())?;
        let caller = self.authenticator.admit(uri.path(), headers, peer).await?;
        // Whoever works on it needs no secrets, and so cannot log any.
        request.headers_mut().remove(::http::header::AUTHORIZATION);
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// The same on the way through the router.
pub(crate) async fn admit(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(peer) = request.extensions().get::<Arc<Peer>>().cloned() else {
        return ::http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match gate.admit(&mut request, &peer).await {
        Ok(()) => next.run(request).await,
        Err(fault) if http::speaks_grpc(request.headers()) => {
            tonic::Status::from(fault).into_http()
        }
        Err(fault) => fault.into_response(),
    }
}
