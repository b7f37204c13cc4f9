//! Objects: read, list, put, delete, commit, touch.

use axum::response::Response;
use http::{HeaderMap, HeaderName, header};
use serde::Serialize;
use tenure::store::{Expect, IdRange, Query, Written};
use tenure::{Error, Result};
use tenure_proto::v1;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::{ok, versioned};
use super::error::ErrorBody;
use super::extract::{Json, Params, PathKey, PathKind, Requester};
use super::requests::{CommitRequest, DeleteParams, ListParams, PutRequest, TouchesRequest};
use super::views::{CommittedView, ObjectView, PageView, TouchedAllView, WrittenView};
use crate::Fault;
use crate::api::Api;

/// Objects a page unless the request says otherwise.
const PAGE: usize = 100;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(get, put, delete))
        .routes(routes!(list))
        .routes(routes!(commit))
        .routes(routes!(touch))
        .routes(routes!(capabilities))
}

/// One object.
#[utoipa::path(get, path = "/v1/objects/{kind}/{*id}", tag = "objects", operation_id = "getObject",
    params(("kind" = String, Path), ("id" = String, Path, description = "May contain slashes")),
    responses(
        (status = 200, body = ObjectView, headers(("etag" = String, description = "The version, in quotes"))),
        (status = 404, body = ErrorBody, description = "not_found"),
        (status = "default", body = ErrorBody)))]
async fn get(requester: Requester, PathKey(key): PathKey) -> Result<Response, Fault> {
    match requester.read(requester.view.get(&key)).await? {
        Some(object) => Ok(versioned(&ObjectView::from(&object), object.version)),
        None => Err(Error::NotFound { key }.into()),
    }
}

/// A page of objects in bytewise order of id.
#[utoipa::path(get, path = "/v1/objects/{kind}", tag = "objects", operation_id = "listObjects",
    params(("kind" = String, Path), ListParams),
    responses((status = 200, body = PageView), (status = "default", body = ErrorBody)))]
async fn list(
    requester: Requester,
    PathKind(kind): PathKind,
    Params(params): Params<ListParams>,
) -> Result<Response, Fault> {
    let query = Query {
        kind,
        range: IdRange { prefix: params.prefix, ..IdRange::default() },
        name: params.name,
        selector: match params.selector.as_str() {
            "" => Default::default(),
            text => text.parse()?,
        },
        after: params.after,
        limit: params.limit.unwrap_or(PAGE),
    };
    let page = requester.read(requester.view.list(&query)).await?;
    Ok(ok(&PageView::from(&page)))
}

/// Creates an object or replaces all of it. `If-Match: "VERSION"` stands for `expect_version`,
/// `If-None-Match: *` for `expect_absent`.
#[utoipa::path(put, path = "/v1/objects/{kind}/{*id}", tag = "objects", operation_id = "putObject",
    params(("kind" = String, Path), ("id" = String, Path, description = "May contain slashes")),
    request_body = PutRequest,
    responses(
        (status = 200, body = WrittenView, headers(("etag" = String, description = "The version, in quotes"))),
        (status = 409, body = ErrorBody, description = "already_exists, conflict, name_taken"),
        (status = 410, body = ErrorBody, description = "lost: the fence no longer holds"),
        (status = "default", body = ErrorBody)))]
async fn put(
    requester: Requester,
    PathKey(key): PathKey,
    headers: HeaderMap,
    Json(request): Json<PutRequest>,
) -> Result<Response, Fault> {
    let commit = request.commit(key, condition(&headers)?)?;
    written(requester.write(requester.view.commit(commit)).await?.writes.pop())
}

/// Deletes an object. Deleting what is not there is not an error, unless something was expected of it.
#[utoipa::path(delete, path = "/v1/objects/{kind}/{*id}", tag = "objects", operation_id = "deleteObject",
    params(("kind" = String, Path), ("id" = String, Path, description = "May contain slashes"), DeleteParams),
    responses(
        (status = 200, body = WrittenView),
        (status = 409, body = ErrorBody, description = "conflict"),
        (status = "default", body = ErrorBody)))]
async fn delete(
    requester: Requester,
    PathKey(key): PathKey,
    Params(params): Params<DeleteParams>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let commit = params.commit(key, condition(&headers)?)?;
    written(requester.write(requester.view.commit(commit)).await?.writes.pop())
}

/// The answer to a commit of one write.
fn written(written: Option<Written>) -> Result<Response, Fault> {
    let nothing = || Error::unknown("server", "the store did not say what it wrote");
    let written = written.ok_or_else(nothing)?;
    Ok(match written {
        Written::Put(result) | Written::Unchanged(result) => {
            versioned(&WrittenView::from(written), result.version)
        }
        Written::Deleted { .. } | Written::Absent => ok(&WrittenView::from(written)),
    })
}

/// Checks and writes, all or nothing.
#[utoipa::path(post, path = "/v1/commit", tag = "objects", operation_id = "commit",
    request_body = CommitRequest,
    responses((status = 200, body = CommittedView), (status = "default", body = ErrorBody)))]
async fn commit(
    requester: Requester,
    Json(request): Json<CommitRequest>,
) -> Result<Response, Fault> {
    let committed = requester.write(requester.view.commit(request.commit()?)).await?;
    Ok(ok(&CommittedView::from(committed)))
}

/// Starts the life of objects anew, many at once. Each stands alone.
#[utoipa::path(post, path = "/v1/touch", tag = "objects", operation_id = "touch",
    request_body = TouchesRequest,
    responses((status = 200, body = TouchedAllView), (status = "default", body = ErrorBody)))]
async fn touch(
    requester: Requester,
    Json(request): Json<TouchesRequest>,
) -> Result<Response, Fault> {
    let touched = requester.write(requester.view.touch(request.into())).await?;
    Ok(ok(&TouchedAllView::from(touched)))
}

/// What the headers expect of the object.
fn condition(headers: &HeaderMap) -> Result<Option<Expect>> {
    let text = |name: &HeaderName| match headers.get(name) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Ok(text) => Ok(Some(text.trim())),
            Err(_) => Err(Error::invalid(name.as_str(), "it is not text")),
        },
    };
    let matches = match text(&header::IF_MATCH)? {
        None => None,
        Some("*") => Some(Expect::Exists),
        Some(tag) => Some(Expect::Version(version(tag)?)),
    };
    match (matches, text(&header::IF_NONE_MATCH)?) {
        (matches, None) => Ok(matches),
        (None, Some("*")) => Ok(Some(Expect::Absent)),
        (None, Some(_)) => Err(Error::invalid("if-none-match", "only * is understood")),
        (Some(_), Some(_)) => {
            Err(Error::invalid("if-match", "it contradicts if-none-match; give one of them"))
        }
    }
}

/// The version in an entity tag.
fn version(tag: &str) -> Result<u64> {
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    inner.and_then(|inner| inner.parse().ok()).ok_or_else(|| {
        Error::invalid("if-match", "it must be one version in quotes, as ETag says it: \"3\"")
    })
}

/// What the store behind this server promises, and its limits.
#[derive(Serialize, ToSchema)]
#[schema(as = Capabilities)]
struct CapabilitiesView {
    backend: String,
    objects: bool,
    multi_object_commits: bool,
    names: bool,
    labels: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_min_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_granularity_ms: Option<u64>,
    touch_keeps_revision: bool,
    /// Absent if there is no history; 0 if it is bounded by size alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    history_ms: Option<u64>,
    notifies_all: bool,
    expiry_clock: String,
    durability: String,
    flushed_every_ms: u64,
    /// How many servers keep what was committed, as far as that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<u32>,
    limits: LimitsView,
    /// The server's own version.
    version: String,
}

#[derive(Default, Serialize, ToSchema)]
#[schema(as = Limits)]
struct LimitsView {
    kind_bytes: u64,
    id_bytes: u64,
    name_bytes: u64,
    labels: u64,
    label_bytes: u64,
    payload_bytes: u64,
    commit_operations: u64,
    commit_bytes: u64,
    touches: u64,
    page_objects: u64,
    ttl_max_ms: u64,
}

impl From<v1::Limits> for LimitsView {
    fn from(limits: v1::Limits) -> Self {
        Self {
            kind_bytes: limits.kind_bytes,
            id_bytes: limits.id_bytes,
            name_bytes: limits.name_bytes,
            labels: limits.labels,
            label_bytes: limits.label_bytes,
            payload_bytes: limits.payload_bytes,
            commit_operations: limits.commit_operations,
            commit_bytes: limits.commit_bytes,
            touches: limits.touches,
            page_objects: limits.page_objects,
            ttl_max_ms: limits.ttl_max_ms,
        }
    }
}

/// What the store behind this server promises.
#[utoipa::path(get, path = "/v1/capabilities", tag = "objects", operation_id = "capabilities",
    responses((status = 200, body = CapabilitiesView), (status = "default", body = ErrorBody)))]
async fn capabilities(requester: Requester) -> Response {
    let caps = v1::CapabilitiesResponse::from(&requester.view.capabilities());
    ok(&CapabilitiesView {
        backend: caps.backend,
        objects: caps.objects,
        multi_object_commits: caps.multi_object_commits,
        names: caps.names,
        labels: caps.labels,
        ttl_min_ms: caps.ttl_min_ms,
        ttl_granularity_ms: caps.ttl_granularity_ms,
        touch_keeps_revision: caps.touch_keeps_revision,
        history_ms: caps.history_ms,
        notifies_all: caps.notifies_all,
        expiry_clock: caps.expiry_clock,
        durability: caps.durability,
        flushed_every_ms: caps.flushed_every_ms,
        replicas: caps.replicas,
        limits: caps.limits.map(LimitsView::from).unwrap_or_default(),
        version: caps.version,
    })
}
