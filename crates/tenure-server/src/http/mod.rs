//! The HTTP front door: JSON in, JSON out, and streams of events.
//!
//! Handlers are thin: they read a request, ask [`crate::api::View`], which checks permissions and
//! limits, and write the answer. Every error has the same body, also for what never reaches a handler.

mod answer;
mod elections;
mod error;
mod extract;
mod hand_over;
mod lease_watch;
mod leases;
mod objects;
mod openapi;
mod ops;
mod poll;
mod reap;
mod requests;
mod slots;
mod sse;
mod terms;
mod views;
mod watch;

pub(crate) use error::speaks_grpc;
pub(crate) use openapi::paths;
pub(crate) use ops::open_routes;

use std::sync::Arc;

use axum::Router;
use utoipa_axum::router::OpenApiRouter;

use crate::api::Api;
use crate::metrics::Metrics;

/// Everything under `/v1`, what operators look at, and the answer where there is nothing.
pub(crate) fn routes(api: &Api, metrics: &Arc<Metrics>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .with_state(api.clone())
        .merge(ops::routes(api, metrics))
        .merge(openapi::route())
        .method_not_allowed_fallback(error::no_method)
        .fallback(error::no_route)
}

fn documented() -> OpenApiRouter<Api> {
    OpenApiRouter::default()
        .merge(objects::routes())
        .merge(watch::routes())
        .merge(leases::routes())
        .merge(hand_over::routes())
        .merge(lease_watch::routes())
        .merge(reap::routes())
        .merge(slots::routes())
        .merge(elections::routes())
}
