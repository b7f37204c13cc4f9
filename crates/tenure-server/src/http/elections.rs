//! Elections: who leads. To campaign is to acquire the scope, to resign is to release it.

use axum::response::Response;
use futures::stream::StreamExt;
use serde::Serialize;
use tenure::lease::LeaseInfo;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::ask::{Asker, Params};
use super::error::ErrorBody;
use super::leases::ScopeParams;
use super::sse;
use super::terms::LeaseView;
use crate::Fault;
use crate::api::{Api, scope};
use crate::limits::Use;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::default().routes(routes!(leader)).routes(routes!(observe))
}

/// Who leads.
#[derive(Serialize, ToSchema)]
struct LeaderView<'a> {
    /// Absent if nobody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<LeaseView<'a>>,
}

/// Who leads, as an event tells it.
#[derive(Serialize, ToSchema)]
struct LeaderEvent<'a> {
    /// Null if nobody does.
    leader: Option<LeaseView<'a>>,
}

/// Who leads now.
#[utoipa::path(get, path = "/v1/elections/leader", tag = "elections", operation_id = "leader",
    params(ScopeParams),
    responses((status = 200, body = LeaderView), (status = "default", body = ErrorBody)))]
async fn leader(asker: Asker, Params(params): Params<ScopeParams>) -> Result<Response, Fault> {
    let scope = scope(&params.scope)?;
    let leader = asker.read(asker.view.leader(&scope)).await?;
    Ok(ok(&LeaderView { leader: leader.as_ref().map(LeaseView::from) }))
}

/// Who leads, now and with every change: a stream of events `leader`, at the end `error` or `leaving`.
#[utoipa::path(get, path = "/v1/elections/observe", tag = "elections", operation_id = "observe",
    params(ScopeParams),
    responses(
        (status = 200, content((LeaderEvent = "text/event-stream"))),
        (status = "default", body = ErrorBody)))]
async fn observe(asker: Asker, Params(params): Params<ScopeParams>) -> Result<Response, Fault> {
    let room = asker.view.take(Use::Stream)?;
    let (leaders, grounds) = asker.view.observe(&scope(&params.scope)?).await?;
    let events = leaders.map(|leader| {
        let leader: Option<LeaseInfo> = leader?;
        let leader = leader.as_ref().map(LeaseView::from);
        Ok(sse::event("leader", &LeaderEvent { leader }))
    });
    Ok(sse::stream(grounds, room, events.boxed()))
}
