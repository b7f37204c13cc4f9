//! The gRPC side: each service decodes a request, asks [`crate::api::View`], and encodes the answer.

mod cancelled;
mod convert;
mod elections;
mod exchange;
mod health;
mod leases;
mod services;
mod session;
mod slots;
mod store;
mod stream_limit;

pub(crate) use services::Services;

use std::pin::Pin;

use futures::stream::{Stream, StreamExt};
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::Fault;
use crate::api::{Api, StreamAuthorisation, StreamEnd, View};
use crate::auth::Caller;
use crate::limits::Taken;
use crate::ready::Readiness;

/// Reflection too, for the router.
pub(crate) fn routes(
    api: &Api,
    services: &Services,
) -> Result<Routes, tonic_reflection::server::Error> {
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tenure_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Many tools know only the draft: Python's library, and older versions of others.
    let (reflection, draft) = (described().build_v1()?, described().build_v1alpha()?);
    Ok(Routes::new(services.store.clone())
        .add_service(cancelled::CancelledStreams(services.leases.clone()))
        .add_service(services.slots.clone())
        .add_service(services.elections.clone())
        .add_service(stream_limit::StreamLimit { service: reflection, api: api.clone() })
        .add_service(stream_limit::StreamLimit { service: draft, api: api.clone() }))
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream of answers: see [`StreamAuthorisation::stream`]. One that ends by itself says that the server
/// leaves, so that the client goes on elsewhere.
fn stream<T: Send + 'static>(
    authorisation: StreamAuthorisation,
    room: Taken,
    items: impl Stream<Item = Result<T, Fault>> + Send + 'static,
) -> Answers<T> {
    let items = items.chain(futures::stream::once(async { Err(Fault::leaving()) }));
    let answers = authorisation.stream(room, items);
    Box::pin(answers.map(|answer| {
        answer.map_err(|end| match end {
            StreamEnd::Leaving => Fault::leaving().into(),
            StreamEnd::Failed(fault) => fault.into(),
        })
    }))
}

/// Health, which asks nobody who they are.
pub(crate) fn open_routes(api: &Api, readiness: &Readiness) -> Routes {
    let most = api.room().limits().message_bytes;
    let health = HealthServer::new(health::Service::new(readiness.health(), api.room()));
    Routes::new(health.max_decoding_message_size(most))
}

/// All services of `tenure.v1`.
#[derive(Clone)]
pub(crate) struct Service {
    api: Api,
}

impl Service {
    fn new(api: &Api) -> Self {
        Self { api: api.clone() }
    }

    /// What the caller of a request sees.
    fn view<T>(&self, request: &tonic::Request<T>) -> Result<View, Status> {
        let caller = request.extensions().get::<Caller>();
        let caller = caller.ok_or_else(|| Status::internal("a request without a caller"))?;
        Ok(self.api.view(caller)?)
    }

    /// The same, with room to work on the request.
    fn view_with_room<T>(&self, request: &tonic::Request<T>) -> Result<(View, Taken), Status> {
        Ok((self.view(request)?, self.api.room().request()?))
    }
}
