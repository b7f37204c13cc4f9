//! Reaping: what is left to do for leases that ended without a release.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure::lease::{LeaseInfo, Metadata};
use tenure::store::Commit;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::ok;
use super::error::ErrorBody;
use super::extract::{Json, Params, Requester};
use super::leases::ListParams;
use super::requests::CommitRequest;
use crate::Fault;
use crate::api::Api;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::default().routes(routes!(orphans)).routes(routes!(reap))
}

/// A lease as it was, of which something is left to do.
#[derive(Serialize, ToSchema)]
#[schema(as = Orphan)]
struct OrphanView<'a> {
    scope: &'a str,
    /// `name#start`.
    holder: String,
    token: u64,
    /// Unique to that acquisition.
    nonce: &'a str,
    /// Of what is left, not of the lease.
    revision: u64,
    acquired_at_ms: i64,
    metadata: &'a Metadata,
}

impl<'a> From<&'a LeaseInfo> for OrphanView<'a> {
    fn from(info: &'a LeaseInfo) -> Self {
        Self {
            scope: &info.id,
            holder: info.holder.to_string(),
            token: info.token,
            nonce: &info.nonce,
            revision: info.revision,
            acquired_at_ms: info.acquired_at_ms,
            metadata: &info.metadata,
        }
    }
}

/// What is left to reap, in order of scope.
#[derive(Serialize, ToSchema)]
#[schema(as = OrphanList)]
struct OrphanListView<'a> {
    orphans: Vec<OrphanView<'a>>,
}

/// What is left to reap: leases that were reapable and ended without a release.
#[utoipa::path(get, path = "/v1/leases/orphans", tag = "leases", operation_id = "listOrphans",
    params(ListParams),
    responses(
        (status = 200, body = OrphanListView),
        (status = 501, body = ErrorBody, description = "unsupported: nothing is left on this store"),
        (status = "default", body = ErrorBody)))]
async fn orphans(
    requester: Requester,
    Params(params): Params<ListParams>,
) -> Result<Response, Fault> {
    let namespace = params.namespace()?;
    let listing = requester.view.orphans(namespace.as_ref(), params.children);
    let orphans = requester.read(listing).await?;
    Ok(ok(&OrphanListView { orphans: orphans.iter().map(OrphanView::from).collect() }))
}

/// Which remains, and what is to happen for them.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReapRequest {
    /// These three as the list has them.
    scope: String,
    nonce: String,
    revision: u64,
    /// Applies together with the removal, or not at all.
    commit: Option<CommitRequest>,
}

/// Whether it was there to reap.
#[derive(Serialize, ToSchema)]
struct Reaped {
    /// False if it had been reaped: by somebody else, or by an earlier request whose answer was lost.
    reaped: bool,
}

/// Reaps one lease, together with a commit: all or nothing, and once, however many reap.
#[utoipa::path(post, path = "/v1/leases/reap", tag = "leases", operation_id = "reapLease",
    request_body = ReapRequest,
    responses(
        (status = 200, body = Reaped),
        (status = 423, body = ErrorBody, description = "held: it has not ended"),
        (status = "default", body = ErrorBody)))]
async fn reap(requester: Requester, Json(request): Json<ReapRequest>) -> Result<Response, Fault> {
    let ReapRequest { scope, nonce, revision, commit } = request;
    let commit = commit.map_or_else(|| Ok(Commit::new()), CommitRequest::commit)?;
    let reaped = requester.write(requester.view.reap(&scope, &nonce, revision, commit)).await?;
    Ok(ok(&Reaped { reaped }))
}
