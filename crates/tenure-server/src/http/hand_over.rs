//! Asking a holder to stop its work and to hand over what it holds.

use std::time::Duration;

use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure::lease::Namespace;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Json, Requester};
use super::terms::LeaseView;
use crate::Fault;
use crate::api::{Api, HandOverTerms, scope};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::default().routes(routes!(lease)).routes(routes!(slot))
}

/// Of which scope, to whom, and how long to wait for it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AskToHandOverRequest {
    scope: String,
    /// `name` or `name#start` of somebody who waits; the first in line unless given.
    successor: Option<String>,
    /// Only from the tenure under this token: whoever came after it is left alone.
    expect_token: Option<u64>,
    /// How long to wait until it is done; a minute unless given.
    wait_ms: Option<u64>,
}

/// Of which slot, to whom, and how long to wait for it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AskSlotToHandOverRequest {
    group: String,
    /// Which slot, for somebody who waits for any.
    index: u32,
    /// `name` or `name#start` of somebody who waits; the first in line unless given.
    successor: Option<String>,
    /// Only from the tenure under this token: whoever came after it is left alone.
    expect_token: Option<u64>,
    /// How long to wait until it is done; a minute unless given.
    wait_ms: Option<u64>,
}

/// Who holds it now.
#[derive(Serialize, ToSchema)]
struct HandedOver<'a> {
    lease: LeaseView<'a>,
}

fn wait(wait_ms: Option<u64>) -> Option<Duration> {
    wait_ms.map(Duration::from_millis)
}

/// Asks whoever holds a scope to stop its work and to hand it over, and waits until that is done. It takes
/// leave to revoke. Closing the connection does not take the request back: it goes when the wait is over.
#[utoipa::path(post, path = "/v1/leases/ask-to-hand-over", tag = "leases",
    operation_id = "askToHandOverLease",
    request_body = AskToHandOverRequest,
    responses(
        (status = 200, body = HandedOver),
        (status = 404, body = ErrorBody, description = "not_found: nobody holds it"),
        (status = 410, body = ErrorBody, description = "lost: that tenure has ended otherwise"),
        (status = 423, body = ErrorBody, description = "held: the holder did not begin to stop in time"),
        (status = 504, body = ErrorBody, description = "unknown: it stops its work, and is not done"),
        (status = "default", body = ErrorBody)))]
async fn lease(
    requester: Requester,
    Json(request): Json<AskToHandOverRequest>,
) -> Result<Response, Fault> {
    let AskToHandOverRequest { successor, expect_token, wait_ms, .. } = request;
    let asked = HandOverTerms { successor, expect_token, wait: wait(wait_ms) };
    let now = requester.view.ask_to_hand_over(&scope(&request.scope)?, &asked).await?;
    Ok(ok(&HandedOver { lease: (&now).into() }))
}

/// The same for a slot.
#[utoipa::path(post, path = "/v1/slots/ask-to-hand-over", tag = "slots",
    operation_id = "askToHandOverSlot",
    request_body = AskSlotToHandOverRequest,
    responses(
        (status = 200, body = HandedOver),
        (status = 404, body = ErrorBody, description = "not_found: nobody holds it"),
        (status = 410, body = ErrorBody, description = "lost: that tenure has ended otherwise"),
        (status = 423, body = ErrorBody, description = "held: the holder did not begin to stop in time"),
        (status = 504, body = ErrorBody, description = "unknown: it stops its work, and is not done"),
        (status = "default", body = ErrorBody)))]
async fn slot(
    requester: Requester,
    Json(request): Json<AskSlotToHandOverRequest>,
) -> Result<Response, Fault> {
    let AskSlotToHandOverRequest { successor, expect_token, wait_ms, .. } = request;
    let asked = HandOverTerms { successor, expect_token, wait: wait(wait_ms) };
    let group: Namespace = request.group.parse()?;
    let now = requester.view.ask_slot_to_hand_over(&group, request.index, &asked).await?;
    Ok(ok(&HandedOver { lease: (&now).into() }))
}
