//! `tenure.v1.Elections`: who leads, over gRPC.

use std::pin::pin;

use futures::StreamExt;
use tenure_proto::v1;
use tenure_proto::v1::elections_server::Elections;
use tonic::{Request, Response, Status};

use super::convert::leader_of;
use super::{Answers, Service, stream};
use crate::Fault;
use crate::api::scope;
use crate::limits::Use;

#[tonic::async_trait]
impl Elections for Service {
    async fn leader(
        &self,
        request: Request<v1::LeaderRequest>,
    ) -> Result<Response<v1::LeaderResponse>, Status> {
        let view = self.view(&request)?;
        let scope = scope(&request.get_ref().scope).map_err(Fault::from)?;
        let leader = view.read(pin!(view.leader(&scope))).await?;
        Ok(Response::new(leader_of(leader.as_ref())))
    }

    type ObserveStream = Answers<v1::LeaderResponse>;

    async fn observe(
        &self,
        request: Request<v1::ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let view = self.view(&request)?;
        let room = view.take(Use::Stream)?;
        let scope = scope(&request.get_ref().scope).map_err(Fault::from)?;
        let (leaders, authorisation) = view.observe(&scope).await?;
        let leaders = leaders.map(|leader| match leader {
            Ok(leader) => Ok(leader_of(leader.as_ref())),
            Err(error) => Err(Fault::from(error)),
        });
        Ok(Response::new(stream(authorisation, room, leaders)))
    }
}
