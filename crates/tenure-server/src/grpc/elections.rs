//! `tenure.v1.Elections`: who leads, over gRPC.

use std::pin::pin;

use futures::StreamExt;
use tenure_proto::v1;
use tenure_proto::v1::elections_server::Elections;
use tonic::{Request, Response, Status};

use super::convert::leader_of;
use super::{Answers, until_leaving, view};
use crate::Fault;
use crate::api::{Api, scope};
use crate::limits::Use;

pub(crate) struct Service {
    api: Api,
}

impl Service {
    pub(crate) fn new(api: Api) -> Self {
        Self { api }
    }
}

#[tonic::async_trait]
impl Elections for Service {
    async fn leader(
        &self,
        request: Request<v1::LeaderRequest>,
    ) -> Result<Response<v1::LeaderResponse>, Status> {
        let view = view(&self.api, &request)?;
        let scope = scope(&request.get_ref().scope).map_err(Fault::from)?;
        let leader = view.read(pin!(view.leader(&scope))).await?;
        Ok(Response::new(leader_of(leader.as_ref())))
    }

    type ObserveStream = Answers<v1::LeaderResponse>;

    async fn observe(
        &self,
        request: Request<v1::ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let view = view(&self.api, &request)?;
        let room = view.take(Use::Stream)?;
        let scope = scope(&request.get_ref().scope).map_err(Fault::from)?;
        let (leaders, grounds) = view.observe(&scope).await?;
        let leaders = leaders.map(|leader| match leader {
            Ok(leader) => Ok(leader_of(leader.as_ref())),
            Err(error) => Err(Fault::from(error).into()),
        });
        Ok(Response::new(until_leaving(grounds, room, leaders)))
    }
}
