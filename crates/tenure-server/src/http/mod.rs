//! The HTTP front door.

use axum::Router;

use crate::api::Api;

/// Everything under `/v1`, and what operators look at.
pub(crate) fn routes(_api: &Api) -> Router {
    Router::new()
}
