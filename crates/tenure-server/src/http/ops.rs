//! What operators and their machines look at: metrics, whether the process lives, whether it is ready.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use http::{StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::{json, ok};
use super::error::ErrorBody;
use super::extract::Requester;
use crate::Fault;
use crate::api::Api;
use crate::auth::Action;
use crate::metrics::Metrics;
use crate::ready::{Readiness, Ready};

/// For those who may observe the server.
pub(super) fn guarded() -> OpenApiRouter<Api> {
    OpenApiRouter::default().routes(routes!(metrics))
}

pub(super) fn routes(api: &Api, metrics: &Arc<Metrics>) -> Router {
    let (router, _) = guarded().split_for_parts();
    router.with_state(api.clone()).layer(Extension(Arc::clone(metrics)))
}

/// Routes without credentials: what restarts a server or routes around it has none.
pub(super) fn open() -> OpenApiRouter<Readiness> {
    OpenApiRouter::default().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Routes that ask nobody who they are.
pub(crate) fn open_routes(readiness: &Readiness) -> Router {
    let (router, _) = open().split_for_parts();
    let router = router.with_state(readiness.clone());
    router.method_not_allowed_fallback(super::error::no_method)
}

/// Counters and timers in the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses(
        (status = 200, content_type = "application/openmetrics-text"),
        (status = "default", body = ErrorBody)))]
async fn metrics(
    requester: Requester,
    Extension(metrics): Extension<Arc<Metrics>>,
) -> Result<Response, Fault> {
    requester.view.require(Action::ServerObserve, "metrics")?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = metrics.text(requester.view.api().room());
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// A process that works.
#[derive(Serialize, ToSchema)]
struct Health {
    status: &'static str,
}

/// Whether the process works. It says nothing about the store.
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "healthz",
    responses((status = 200, body = Health)))]
async fn healthz() -> Response {
    ok(&Health { status: "ok" })
}

/// Whether the server can do its work: the store answers, and it is not about to leave.
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "readyz",
    responses((status = 200, body = Ready), (status = 503, body = Ready)))]
async fn readyz(State(readiness): State<Readiness>) -> Response {
    let ready = readiness.ask().await;
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &ready)
}
