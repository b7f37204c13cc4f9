//! `tenure.v1.Slots`: slots over gRPC.

use std::pin::pin;

use tenure::lease::Namespace;
use tenure_proto::convert::{lease_of, ms_down, waiter_of};
use tenure_proto::v1;
use tenure_proto::v1::slots_server::Slots;
use tonic::{Request, Response, Status};

use super::Service;
use super::convert::{asked, handing_over};
use crate::Fault;

fn group(text: &str) -> Result<Namespace, Fault> {
    Ok(text.parse()?)
}

#[tonic::async_trait]
impl Slots for Service {
    async fn acquire(
        &self,
        request: Request<v1::AcquireSlotRequest>,
    ) -> Result<Response<v1::AcquireSlotResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let (group, asked) = (group(&request.group)?, asked(request.terms)?);
        let acquiring = pin!(view.acquire_slot(&group, request.count, &asked));
        let (grant, index) = view.acquiring(&asked, acquiring).await?;
        let remaining_ms = ms_down(grant.remaining);
        let grant = Some((&grant).into());
        Ok(Response::new(v1::AcquireSlotResponse { grant, index, remaining_ms }))
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let group = group(&request.group)?;
        let resizing = view.resize(&group, request.expect_version, request.count);
        view.write(pin!(resizing)).await?;
        Ok(Response::new(v1::ResizeResponse {}))
    }

    async fn ask_to_hand_over(
        &self,
        request: Request<v1::AskSlotToHandOverRequest>,
    ) -> Result<Response<v1::AskToHandOverResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let (group, asked) = (group(&request.group)?, handing_over(request.terms));
        let now = view.ask_slot_to_hand_over(&group, request.index, &asked).await?;
        Ok(Response::new(v1::AskToHandOverResponse { lease: Some(lease_of(&now)) }))
    }

    async fn show(
        &self,
        request: Request<v1::ShowSlotsRequest>,
    ) -> Result<Response<v1::ShowSlotsResponse>, Status> {
        let view = self.view(&request)?;
        let group = group(&request.get_ref().group)?;
        let shown = view.read(pin!(view.show_slots(&group))).await?;
        let holders = shown.holders.iter();
        let holders = holders
            .map(|slot| v1::Slot { index: slot.index, lease: Some(lease_of(&slot.lease)) })
            .collect();
        let waiters = shown.waiters.iter().map(waiter_of).collect();
        let (count, version) = (shown.size.map(|it| it.count), shown.size.map(|it| it.version));
        Ok(Response::new(v1::ShowSlotsResponse { count, holders, waiters, version }))
    }
}
