//! Elections: who leads. To campaign is to acquire the scope, to resign is to release it.

use axum::response::Response;
use futures::stream::StreamExt;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use tenure::lease::LeaseInfo;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Params, Requester};
use super::leases::ScopeParams;
use super::terms::LeaseView;
use super::{poll, sse};
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
async fn leader(
    requester: Requester,
    Params(params): Params<ScopeParams>,
) -> Result<Response, Fault> {
    let scope = scope(&params.scope)?;
    let leader = requester.read(requester.view.leader(&scope)).await?;
    Ok(ok(&LeaderView { leader: leader.as_ref().map(LeaseView::from) }))
}

/// Whom to observe.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ObserveParams {
    /// For instance `billing.nightly/close`.
    scope: String,
    /// Of a long poll: the `revision` of the answer before, or 0 for nobody. It waits for another; without
    /// it, the answer comes at once.
    after: Option<u64>,
    /// Of a long poll: how long to wait for something to change; 30 seconds unless given.
    wait_ms: Option<u64>,
}

/// Who leads, as a poll tells it.
#[derive(Serialize, ToSchema)]
struct ObservedView<'a> {
    /// Null if nobody does.
    leader: Option<LeaseView<'a>>,
    /// Of the leader's lease, to go on from with `after`; 0 if nobody leads.
    revision: u64,
}

/// Who leads, now and with every change. With `Accept: text/event-stream` a stream of events `leader`, at
/// the end `error` or `leaving`; else one answer, as soon as it is not what was known or the wait is
/// over, to go on from with `after`.
#[utoipa::path(get, path = "/v1/elections/observe", tag = "elections", operation_id = "observe",
    params(ObserveParams),
    responses(
        (status = 200, content(
            (ObservedView = "application/json"), (LeaderEvent = "text/event-stream"))),
        (status = "default", body = ErrorBody)))]
async fn observe(
    requester: Requester,
    Params(params): Params<ObserveParams>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    if !poll::wants_stream(&headers) {
        return poll(&requester, &params).await;
    }
    let room = requester.view.take(Use::Stream)?;
    let (leaders, authorisation) = requester.view.observe(&scope(&params.scope)?).await?;
    let events = leaders.map(|leader| {
        let leader: Option<LeaseInfo> = leader?;
        let leader = leader.as_ref().map(LeaseView::from);
        Ok(sse::event("leader", &LeaderEvent { leader }))
    });
    Ok(sse::stream(authorisation, room, events.boxed()))
}

/// Waits until somebody else leads than is known, for a while.
async fn poll(requester: &Requester, params: &ObserveParams) -> Result<Response, Fault> {
    let _room = requester.view.take(Use::Wait)?;
    let (mut leaders, authorisation) = requester.view.observe(&scope(&params.scope)?).await?;
    let revision = |leader: &Option<LeaseInfo>| leader.as_ref().map_or(0, |info| info.revision);
    let mut leader = None;
    // The first is who leads now.
    let looking = async {
        while let Some(now) = leaders.next().await {
            leader = now?;
            if params.after != Some(revision(&leader)) {
                break;
            }
        }
        Ok::<_, Fault>(())
    };
    if let Some(looked) =
        poll::within(requester, poll::wait(requester, params.wait_ms), looking).await
    {
        looked?;
    }
    authorisation.check()?;
    let revision = revision(&leader);
    Ok(ok(&ObservedView { leader: leader.as_ref().map(LeaseView::from), revision }))
}
