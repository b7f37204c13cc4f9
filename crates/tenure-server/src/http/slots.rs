//! Slots: at most N holders of a group.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure::lease::Namespace;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Json, Params, Requester};
use super::leases::Done;
use super::terms::{AcquireSlotRequest, AcquiredView, LeaseView, WaiterView};
use crate::Fault;
use crate::api::Api;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::default().routes(routes!(acquire)).routes(routes!(resize)).routes(routes!(show))
}

/// Acquires a slot for an owner. Its grant is renewed, released and handed over like that of a lease.
#[utoipa::path(post, path = "/v1/slots/acquire", tag = "slots", operation_id = "acquireSlot",
    request_body = AcquireSlotRequest,
    responses(
        (status = 200, body = AcquiredView),
        (status = 423, body = ErrorBody, description = "held: none is free"),
        (status = "default", body = ErrorBody)))]
async fn acquire(
    requester: Requester,
    Json(mut request): Json<AcquireSlotRequest>,
) -> Result<Response, Fault> {
    let asked = request.asked();
    let group: Namespace = request.group.parse()?;
    let acquiring = requester.view.acquire_slot(&group, request.count, &asked);
    let (grant, index) = requester.acquire(&asked, acquiring).await?;
    Ok(ok(&AcquiredView::new(&grant, Some(index))))
}

/// How many slots a group is to have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ResizeRequest {
    group: String,
    count: u32,
    /// Unless the group has changed since `show` told this version.
    expect_version: Option<u64>,
}

/// Changes how many slots a group has, while they are held. Shrinking evicts nobody.
#[utoipa::path(post, path = "/v1/slots/resize", tag = "slots", operation_id = "resizeSlots",
    request_body = ResizeRequest,
    responses(
        (status = 200, body = Done),
        (status = 409, body = ErrorBody, description = "conflict: it has changed since"),
        (status = "default", body = ErrorBody)))]
async fn resize(
    requester: Requester,
    Json(request): Json<ResizeRequest>,
) -> Result<Response, Fault> {
    let group: Namespace = request.group.parse()?;
    let resizing = requester.view.resize(&group, request.expect_version, request.count);
    requester.write(resizing).await?;
    Ok(ok(&Done {}))
}

/// Which group.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GroupParams {
    /// A namespace, for instance `search.indexer`.
    group: String,
}

/// A slot that is held.
#[derive(Serialize, ToSchema)]
struct SlotView<'a> {
    index: u32,
    lease: LeaseView<'a>,
}

/// A group of slots.
#[derive(Serialize, ToSchema)]
struct SlotsView<'a> {
    /// Absent if the group does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// Changes with the count; for a resize to expect.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    holders: Vec<SlotView<'a>>,
    /// First come first.
    waiters: Vec<WaiterView>,
}

/// How many slots a group has, who holds which, and who waits.
#[utoipa::path(get, path = "/v1/slots/show", tag = "slots", operation_id = "showSlots",
    params(GroupParams),
    responses((status = 200, body = SlotsView), (status = "default", body = ErrorBody)))]
async fn show(
    requester: Requester,
    Params(params): Params<GroupParams>,
) -> Result<Response, Fault> {
    let group: Namespace = params.group.parse()?;
    let shown = requester.read(requester.view.show_slots(&group)).await?;
    let holders = shown.holders.iter();
    let holders = holders.map(|slot| SlotView { index: slot.index, lease: (&slot.lease).into() });
    Ok(ok(&SlotsView {
        count: shown.size.map(|size| size.count),
        version: shown.size.map(|size| size.version),
        holders: holders.collect(),
        waiters: shown.waiters.iter().map(WaiterView::from).collect(),
    }))
}
