//! The services of `tenure.v1`, and the short way to them.

use http::{Request, Response};
use tenure_proto::v1::elections_server::ElectionsServer;
use tenure_proto::v1::leases_server::LeasesServer;
use tenure_proto::v1::slots_server::SlotsServer;
use tenure_proto::v1::store_server::StoreServer;
use tonic::body::Body;
use tower::Service as _;

use super::{Service, cancelled};
use crate::api::Api;

/// What the paths of all of them begin with.
const PACKAGE: &str = "/tenure.v1.";
const STORE: &str = "Store";
const LEASES: &str = "Leases";
const SLOTS: &str = "Slots";
const ELECTIONS: &str = "Elections";
/// The one method to which it matters whether its client closes or cancels.
const SESSION: &str = "Session";

/// All of them.
#[derive(Clone)]
pub(crate) struct Services {
    pub(super) store: StoreServer<Service>,
    pub(super) leases: LeasesServer<Service>,
    pub(super) slots: SlotsServer<Service>,
    pub(super) elections: ElectionsServer<Service>,
}

impl Services {
    pub(crate) fn new(api: &Api) -> Self {
        let (service, most) = (Service::new(api), api.room().limits().message_bytes);
        Self {
            store: StoreServer::new(service.clone())
                .max_decoding_message_size(most)
                .max_encoding_message_size(usize::MAX),
            leases: LeasesServer::new(service.clone())
                .max_decoding_message_size(most)
                .max_encoding_message_size(usize::MAX),
            slots: SlotsServer::new(service.clone())
                .max_decoding_message_size(most)
                .max_encoding_message_size(usize::MAX),
            elections: ElectionsServer::new(service)
                .max_decoding_message_size(most)
                .max_encoding_message_size(usize::MAX),
        }
    }

    /// Whether this path is one of theirs.
    pub(crate) fn has(path: &str) -> bool {
        matches!(parts(path), Some((STORE | LEASES | SLOTS | ELECTIONS, _)))
    }

    /// Answers a call. Each knows its methods, and says so if it does not have one.
    pub(crate) async fn call(&self, request: Request<Body>) -> Response<Body> {
        let Ok(response) = match parts(request.uri().path()) {
            Some((STORE, _)) => self.store.clone().call(request).await,
            Some((LEASES, SESSION)) => {
                cancelled::CancelledStreams(self.leases.clone()).call(request).await
            }
            Some((LEASES, _)) => self.leases.clone().call(request).await,
            Some((SLOTS, _)) => self.slots.clone().call(request).await,
            Some((ELECTIONS, _)) => self.elections.clone().call(request).await,
            _ => Ok(tonic::Status::unimplemented("there is no such service").into_http()),
        };
        response
    }
}

/// Service and method.
fn parts(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(PACKAGE)?.split_once('/')
}
