//! The OpenAPI document. Routes are registered together with their description, so none is missing.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{documented, ops};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "Who holds what, until when: leases, slots, elections and versioned objects."
    ),
    tags(
        (name = "objects", description = "Versioned objects with conditions, time to live and watch"),
        (name = "leases", description = "A scope held by one owner until a deadline, with a token"),
        (name = "slots", description = "At most N holders of a group"),
        (name = "elections", description = "A scope whose holder leads"),
        (name = "operations", description = "For whoever runs the server")
    )
)]
struct About;

/// The paths of all routes, as the router knows them.
pub(crate) fn paths() -> Vec<String> {
    whole().paths.paths.into_keys().collect()
}

fn whole() -> utoipa::openapi::OpenApi {
    let mut whole = About::openapi();
    whole.merge(documented().into_openapi());
    whole.merge(ops::guarded().into_openapi());
    whole.merge(ops::open().into_openapi());
    whole.merge(served().into_openapi());
    whole
}

fn served() -> OpenApiRouter<Bytes> {
    OpenApiRouter::default().routes(routes!(openapi))
}

pub(super) fn route() -> Router {
    let mut document = whole();
    // A path that takes slashes is written `{*id}` by the router and `{id}` by everybody else.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths =
        paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    let text = document.to_json().unwrap_or_default();
    served().split_for_parts().0.with_state(Bytes::from(text))
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "operations", operation_id = "openapi",
    responses((status = 200, content_type = "application/json")))]
async fn openapi(State(document): State<Bytes>) -> Response {
    let mut response = Response::new(Body::from(document));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
