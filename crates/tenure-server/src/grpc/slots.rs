//! `tenure.v1.Slots`: slots over gRPC.

use tenure::lease::Namespace;
use tenure_proto::convert::{lease_of, ms_down, waiter_of};
use tenure_proto::v1;
use tenure_proto::v1::slots_server::Slots;
use tonic::{Request, Response, Status};

use super::convert::asked;
use super::view;
use crate::Fault;
use crate::api::Api;

pub(crate) struct Service {
    api: Api,
}

impl Service {
    pub(crate) fn new(api: Api) -> Self {
        Self { api }
    }
}

fn group(text: &str) -> Result<Namespace, Fault> {
    Ok(text.parse()?)
}

#[tonic::async_trait]
impl Slots for Service {
    async fn acquire(
        &self,
        request: Request<v1::AcquireSlotRequest>,
    ) -> Result<Response<v1::AcquireSlotResponse>, Status> {
        let view = view(&self.api, &request)?;
        let request = request.into_inner();
        let (group, asked) = (group(&request.group)?, asked(request.terms)?);
        let (deed, index) = view.acquire_slot(&group, request.count, &asked).await?;
        let remaining_ms = ms_down(deed.remaining);
        let deed = Some((&deed).into());
        Ok(Response::new(v1::AcquireSlotResponse { deed, index, remaining_ms }))
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeResponse>, Status> {
        let view = view(&self.api, &request)?;
        let _room = self.api.room().request()?;
        let request = request.into_inner();
        view.resize(&group(&request.group)?, request.count).await?;
        Ok(Response::new(v1::ResizeResponse {}))
    }

    async fn show(
        &self,
        request: Request<v1::ShowSlotsRequest>,
    ) -> Result<Response<v1::ShowSlotsResponse>, Status> {
        let view = view(&self.api, &request)?;
        let _room = self.api.room().request()?;
        let shown = view.show_slots(&group(&request.get_ref().group)?).await?;
        let holders = shown.holders.iter();
        let holders = holders
            .map(|slot| v1::Slot { index: slot.index, lease: Some(lease_of(&slot.lease)) })
            .collect();
        let waiters = shown.waiters.iter().map(waiter_of).collect();
        Ok(Response::new(v1::ShowSlotsResponse { count: shown.count, holders, waiters }))
    }
}
