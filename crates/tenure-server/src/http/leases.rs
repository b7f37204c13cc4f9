//! Leases: acquire, renew, release and everything about who holds what.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure::lease::{Metadata, Namespace};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Json, Params, Requester};
use super::terms::{
    AcquireRequest, AcquiredView, LeaseGrantView, LeaseView, ReleaseRequest, RenewRequest,
    RenewedAllView, RenewedView, WaiterView,
};
use crate::Fault;
use crate::api::{Api, scope};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::default()
        .routes(routes!(acquire))
        .routes(routes!(renew))
        .routes(routes!(release))
        .routes(routes!(hand_over))
        .routes(routes!(proclaim))
        .routes(routes!(revoke))
        .routes(routes!(list))
        .routes(routes!(show))
}

/// Nothing more to say than that it is done.
#[derive(Serialize, ToSchema)]
pub(super) struct Done {}

/// Acquires a scope for an owner. The connection stays open during the wait; closing it gives up.
#[utoipa::path(post, path = "/v1/leases/acquire", tag = "leases", operation_id = "acquireLease",
    request_body = AcquireRequest,
    responses(
        (status = 200, body = AcquiredView),
        (status = 423, body = ErrorBody, description = "held: somebody else has it"),
        (status = "default", body = ErrorBody)))]
async fn acquire(
    requester: Requester,
    Json(mut request): Json<AcquireRequest>,
) -> Result<Response, Fault> {
    let asked = request.asked();
    let scope = scope(&request.scope)?;
    let grant = requester.acquire(&asked, requester.view.acquire(&scope, &asked)).await?;
    Ok(ok(&AcquiredView::new(&grant, None)))
}

/// Starts the lives of leases anew, many at once. Each stands alone.
#[utoipa::path(post, path = "/v1/leases/renew", tag = "leases", operation_id = "renewLeases",
    request_body = RenewRequest,
    responses((status = 200, body = RenewedAllView), (status = "default", body = ErrorBody)))]
async fn renew(requester: Requester, Json(request): Json<RenewRequest>) -> Result<Response, Fault> {
    let grants = request.grants.iter().map(LeaseGrantView::grant).collect();
    let renewed = requester.write(requester.view.renew_given(grants)).await?;
    Ok(ok(&RenewedAllView::from(renewed)))
}

/// Lets go, after the work has stopped.
#[utoipa::path(post, path = "/v1/leases/release", tag = "leases", operation_id = "releaseLease",
    request_body = ReleaseRequest,
    responses(
        (status = 200, body = Done),
        (status = 410, body = ErrorBody, description = "lost: it was not held any more"),
        (status = "default", body = ErrorBody)))]
async fn release(
    requester: Requester,
    Json(request): Json<ReleaseRequest>,
) -> Result<Response, Fault> {
    let outcome = request.outcome()?;
    let grant = request.grant.grant()?;
    requester.write(requester.view.release(&grant, outcome)).await?;
    Ok(ok(&Done {}))
}

/// Passes a lease on to somebody who waits for it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HandOverRequest {
    grant: LeaseGrantView,
    /// `name` or `name#start` of somebody who waits.
    successor: String,
}

/// Passes a lease on to somebody who waits for it, without a gap or an overlap.
#[utoipa::path(post, path = "/v1/leases/hand-over", tag = "leases", operation_id = "handOverLease",
    request_body = HandOverRequest,
    responses((status = 200, body = Done), (status = "default", body = ErrorBody)))]
async fn hand_over(
    requester: Requester,
    Json(request): Json<HandOverRequest>,
) -> Result<Response, Fault> {
    let grant = request.grant.grant()?;
    requester.write(requester.view.hand_over(&grant, &request.successor)).await?;
    Ok(ok(&Done {}))
}

/// Something else to tell everybody about the holder, in place of what was told.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProclaimRequest {
    grant: LeaseGrantView,
    metadata: Metadata,
}

/// Tells everybody something else about the holder.
#[utoipa::path(post, path = "/v1/leases/proclaim", tag = "leases", operation_id = "proclaim",
    request_body = ProclaimRequest,
    responses((status = 200, body = RenewedView), (status = "default", body = ErrorBody)))]
async fn proclaim(
    requester: Requester,
    Json(request): Json<ProclaimRequest>,
) -> Result<Response, Fault> {
    let grant = request.grant.grant()?;
    let renewed = requester.write(requester.view.proclaim(&grant, request.metadata)).await?;
    Ok(ok(&RenewedView::from(&renewed)))
}

/// Ends somebody's tenure.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RevokeRequest {
    scope: String,
    /// For the holder to read.
    #[serde(default)]
    reason: String,
    /// Only the tenure under this token: whoever came after it is left alone.
    expect_token: Option<u64>,
}

/// Whether there was a holder.
#[derive(Serialize, ToSchema)]
struct Revoked {
    revoked: bool,
}

/// Ends somebody's tenure. Its fenced commits fail at once.
#[utoipa::path(post, path = "/v1/leases/revoke", tag = "leases", operation_id = "revokeLease",
    request_body = RevokeRequest,
    responses(
        (status = 200, body = Revoked),
        (status = 410, body = ErrorBody, description = "lost: another token holds it by now"),
        (status = "default", body = ErrorBody)))]
async fn revoke(
    requester: Requester,
    Json(request): Json<RevokeRequest>,
) -> Result<Response, Fault> {
    let scope = scope(&request.scope)?;
    let revoking = requester.view.revoke(&scope, request.expect_token, &request.reason);
    let revoked = requester.write(revoking).await?;
    Ok(ok(&Revoked { revoked }))
}

/// Which leases to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// All if empty.
    #[serde(default)]
    namespace: String,
    /// Those of the namespaces below it, too.
    #[serde(default)]
    pub(super) children: bool,
}

impl ListParams {
    /// Which namespace; without one, all of them.
    pub(super) fn namespace(&self) -> Result<Option<Namespace>, Fault> {
        Ok((!self.namespace.is_empty()).then(|| self.namespace.parse()).transpose()?)
    }
}

/// Leases, in order of scope.
#[derive(Serialize, ToSchema)]
struct LeasesView<'a> {
    leases: Vec<LeaseView<'a>>,
}

/// Every lease of a namespace.
#[utoipa::path(get, path = "/v1/leases", tag = "leases", operation_id = "listLeases",
    params(ListParams),
    responses((status = 200, body = LeasesView), (status = "default", body = ErrorBody)))]
async fn list(requester: Requester, Params(params): Params<ListParams>) -> Result<Response, Fault> {
    let namespace = params.namespace()?;
    let leases = requester.view.leases(namespace.as_ref(), params.children);
    let leases = requester.read(leases).await?;
    Ok(ok(&LeasesView { leases: leases.iter().map(LeaseView::from).collect() }))
}

/// Which scope.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ScopeParams {
    /// For instance `billing.nightly/close`.
    pub(super) scope: String,
}

/// Who holds a scope, and who waits for it.
#[derive(Serialize, ToSchema)]
struct StatusView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<LeaseView<'a>>,
    /// First come first.
    waiters: Vec<WaiterView>,
}

/// Who holds a scope, and who waits for it since when.
#[utoipa::path(get, path = "/v1/leases/show", tag = "leases", operation_id = "showLease",
    params(ScopeParams),
    responses((status = 200, body = StatusView), (status = "default", body = ErrorBody)))]
async fn show(
    requester: Requester,
    Params(params): Params<ScopeParams>,
) -> Result<Response, Fault> {
    let scope = scope(&params.scope)?;
    let shown = requester.read(requester.view.show(&scope)).await?;
    let holder = shown.holder.as_ref().map(LeaseView::from);
    Ok(ok(&StatusView { holder, waiters: shown.waiters.iter().map(WaiterView::from).collect() }))
}
