//! Errors as HTTP says them: a status, and a body that names the thing, the reason and the next step.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use serde::Serialize;
use tenure::Error;
use tenure_proto::v1;
use utoipa::ToSchema;

use super::answer::json;
use crate::Fault;

/// What every answer that is not a success looks like.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

/// Why something did not happen. Only the fields that the code has are there.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(super) struct ErrorDetail<'a> {
    /// A short stable word, for instance `held`.
    code: &'a str,
    /// For people.
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<ErrorKey<'a>>,
    /// What the condition met.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<ErrorCurrent>,
    /// What was expected: one of `absent`, `exists`, `version`, `revision`, `token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<ErrorExpected>,
    #[serde(skip_serializing_if = "str::is_empty")]
    backend: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    what: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_token: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    scope: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    expires_in_ms: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    capability: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    limit: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    max: u64,
    #[serde(skip_serializing_if = "is_zero")]
    got: u64,
    #[serde(skip_serializing_if = "is_zero")]
    requested: u64,
    #[serde(skip_serializing_if = "is_zero")]
    oldest: u64,
    #[serde(skip_serializing_if = "is_zero")]
    retry_after_ms: u64,
}

#[derive(Serialize, ToSchema)]
struct ErrorKey<'a> {
    kind: &'a str,
    id: &'a str,
}

#[derive(Serialize, ToSchema)]
struct ErrorCurrent {
    version: u64,
    revision: u64,
    token: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ErrorExpected {
    Absent(bool),
    Exists(bool),
    Version(u64),
    Revision(u64),
    Token(u64),
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn expected(expect: &v1::Expect) -> Option<ErrorExpected> {
    use v1::expect::What;
    Some(match expect.what? {
        What::Absent(yes) => ErrorExpected::Absent(yes),
        What::Exists(yes) => ErrorExpected::Exists(yes),
        What::Version(version) => ErrorExpected::Version(version),
        What::Revision(revision) => ErrorExpected::Revision(revision),
        What::Token(token) => ErrorExpected::Token(token),
    })
}

impl<'a> From<&'a v1::Error> for ErrorBody<'a> {
    fn from(error: &'a v1::Error) -> Self {
        let key = |key: &'a v1::Key| ErrorKey { kind: &key.kind, id: &key.id };
        let current = |current: &v1::Current| ErrorCurrent {
            version: current.version,
            revision: current.revision,
            token: current.token,
        };
        let error = ErrorDetail {
            code: &error.code,
            message: &error.message,
            key: error.key.as_ref().map(key),
            current: error.current.as_ref().map(current),
            expected: error.expected.as_ref().and_then(expected),
            backend: &error.backend,
            what: &error.what,
            reason: &error.reason,
            name: &error.name,
            id: &error.id,
            token: error.token,
            current_token: error.current_token,
            scope: &error.scope,
            holder: error.holder.as_deref(),
            expires_in_ms: error.expires_in_ms,
            capability: &error.capability,
            limit: &error.limit,
            max: error.max,
            got: error.got,
            requested: error.requested,
            oldest: error.oldest,
            retry_after_ms: error.retry_after_ms,
        };
        Self { error }
    }
}

impl Serialize for Fault {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ErrorBody::from(&self.wire()).serialize(serializer)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        refusal(self.http_status(), &self.wire())
    }
}

/// A refusal with this status.
fn refusal(status: StatusCode, error: &v1::Error) -> Response {
    let mut response = json(status, &ErrorBody::from(error));
    let headers = response.headers_mut();
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let seconds = error.retry_after_ms.div_ceil(1000).max(1);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The answer to an unknown path, as a gRPC status if the request is a gRPC call.
pub(super) async fn no_route(uri: Uri, headers: http::HeaderMap) -> Response {
    if speaks_grpc(&headers) {
        let status = tonic::Status::unimplemented(format!("there is no {}", uri.path()));
        return status.into_http::<Body>();
    }
    let reason = format!("there is none at {}; /openapi.json lists them all", uri.path());
    refusal(StatusCode::NOT_FOUND, &(&Error::invalid("route", reason)).into())
}

/// Where there is something, but not for this method. What is allowed stands in the `Allow` header.
pub(super) async fn no_method(method: Method, uri: Uri) -> Response {
    let reason =
        format!("{} does not take {method}; /openapi.json lists what it takes", uri.path());
    refusal(StatusCode::METHOD_NOT_ALLOWED, &(&Error::invalid("method", reason)).into())
}

/// Whether a request is a gRPC call.
pub(crate) fn speaks_grpc(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
