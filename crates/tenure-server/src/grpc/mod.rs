//! The gRPC front door.

mod convert;
mod counted;
mod elections;
mod exchange;
mod health;
mod leases;
mod parting;
mod services;
mod session;
mod slots;
mod store;

pub(crate) use services::Services;

use std::pin::Pin;

use futures::stream::{Stream, StreamExt};
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::Fault;
use crate::api::{Api, Grounds, View};
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
        .add_service(parting::Told(services.leases.clone()))
        .add_service(services.slots.clone())
        .add_service(services.elections.clone())
        .add_service(counted::Counted { service: reflection, api: api.clone() })
        .add_service(counted::Counted { service: draft, api: api.clone() }))
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What ends every stream of a server that is leaving.
fn leaving() -> Status {
    Fault::leaving().into()
}

/// A stream that ends when the server leaves or what it rests on is gone, and keeps its room until then.
fn until_leaving<T: Send + 'static>(
    grounds: Grounds,
    room: Taken,
    stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    let known = grounds.clone();
    // What happens between two looks at that is not told either.
    let stream = stream.map(move |item| known.still().map_err(Status::from).and(item));
    let end = Box::pin(async move {
        tokio::select! {
            () = grounds.view().api().shutdown().leaving() => leaving(),
            fault = grounds.gone() => fault.into(),
        }
    });
    let start = Some((Box::pin(stream), end, room));
    Box::pin(futures::stream::unfold(start, |going| async move {
        let (mut stream, mut end, room) = going?;
        let item = tokio::select! {
            biased;
            status = &mut end => Err(status),
            item = stream.next() => item.unwrap_or_else(|| Err(leaving())),
        };
        let going = item.is_ok().then_some((stream, end, room));
        Some((item, going))
    }))
}

/// Health, which asks nobody who they are.
pub(crate) fn open_routes(api: &Api, readiness: &Readiness) -> Routes {
    let most = api.room().limits().message_bytes;
    let health = HealthServer::new(health::Service::new(readiness.health(), api.room()));
    Routes::new(health.max_decoding_message_size(most))
}

/// What the caller of a request sees.
pub(crate) fn view<T>(api: &Api, request: &tonic::Request<T>) -> Result<View, Status> {
    let caller = request.extensions().get::<Caller>();
    let caller = caller.ok_or_else(|| Status::internal("a request without a caller"))?;
    Ok(api.view(caller)?)
}
