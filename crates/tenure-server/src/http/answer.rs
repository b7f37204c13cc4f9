//! Answers in JSON.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// A body with this status.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // None of our types can fail to become JSON: no map has keys other than text.
    let (status, text) = match serde_json::to_vec(body) {
        Ok(text) => (status, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A success.
pub(super) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

/// A success that is about this version of an object.
pub(super) fn versioned(body: &impl Serialize, version: u64) -> Response {
    let mut response = ok(body);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
