//! The gRPC front door.

mod store;

use tenure_proto::v1;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::api::{Api, View};
use crate::auth::Caller;
use crate::ready::Readiness;

/// All services on one port, with reflection and health.
pub(crate) fn routes(api: &Api) -> Result<Routes, tonic_reflection::server::Error> {
    let most = api.room().limits().message_bytes;
    let store = v1::store_server::StoreServer::new(store::Service::new(api.clone()))
        .max_decoding_message_size(most)
        .max_encoding_message_size(usize::MAX);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tenure_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    Ok(Routes::new(store).add_service(reflection))
}

/// Health, which asks nobody who they are.
pub(crate) fn open_routes(readiness: &Readiness) -> Routes {
    Routes::new(HealthServer::new(readiness.health()))
}

/// What the caller of a request sees.
pub(crate) fn view<T>(api: &Api, request: &tonic::Request<T>) -> Result<View, Status> {
    let caller = request.extensions().get::<Caller>();
    let caller = caller.ok_or_else(|| Status::internal("a request without a caller"))?;
    Ok(api.view(caller)?)
}
