//! `grpc.health.v1.Health`, which needs no credentials.
//!
//! So its watches have a small limit of their own.

use std::sync::Arc;

use futures::StreamExt as _;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::HealthService;

use super::Answers;
use crate::auth::Peer;
use crate::limits::{Room, Use};

pub(super) struct Service {
    health: HealthService,
    room: Arc<Room>,
}

impl Service {
    pub(super) fn new(health: HealthService, room: &Arc<Room>) -> Self {
        Self { health, room: Arc::clone(room) }
    }
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.health.check(request).await
    }

    type WatchStream = Answers<HealthCheckResponse>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let peer = request.extensions().get::<Arc<Peer>>();
        let address = peer.map_or_else(String::new, |peer| peer.address.ip().to_string());
        let room = self.room.take(Use::Probe, &address)?;
        let watch = self.health.watch(request).await?.into_inner();
        let kept = watch.map(move |told| {
            let _room = &room;
            told
        });
        Ok(Response::new(Box::pin(kept)))
    }
}
