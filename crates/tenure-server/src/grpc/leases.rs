//! `tenure.v1.Leases`: leases over gRPC.

use std::pin::pin;

use futures::StreamExt;
use tenure::lease::{LeaseGrant, Namespace, ReleaseOutcome as Outcome};
use tenure::store::Commit;
use tenure_proto::convert::{lease_of, ms_down, need, orphan_of, waiter_of};
use tenure_proto::v1;
use tenure_proto::v1::leases_server::Leases;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{asked, event_of, handing_over, renewed_of};
use super::{Answers, Service, session, stream};
use crate::Fault;
use crate::api::scope;
use crate::limits::Use;

/// The grant of a request, which must have one.
fn grant(grant: Option<v1::LeaseGrant>) -> Result<LeaseGrant, Fault> {
    Ok(need(grant, "grant")?.try_into()?)
}

/// The namespace of a request; without one it is about all of them.
fn namespace(text: &str) -> Result<Option<Namespace>, Fault> {
    Ok((!text.is_empty()).then(|| text.parse()).transpose()?)
}

#[tonic::async_trait]
impl Leases for Service {
    async fn acquire(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let scope = scope(&request.scope).map_err(Fault::from)?;
        let asked = asked(request.terms)?;
        let grant = view.acquiring(&asked, pin!(view.acquire(&scope, &asked))).await?;
        let remaining_ms = ms_down(grant.remaining);
        Ok(Response::new(v1::AcquireResponse { grant: Some((&grant).into()), remaining_ms }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let view = self.view(&request)?;
        let grants = request.into_inner().grants.into_iter().map(LeaseGrant::try_from).collect();
        let renewed = view.write(pin!(view.renew_given(grants))).await?.into_iter();
        Ok(Response::new(v1::RenewResponse { renewed: renewed.map(renewed_of).collect() }))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        use v1::release_request::Outcome as Given;
        let view = self.view(&request)?;
        let request = request.into_inner();
        let outcome = match &request.outcome {
            None => Outcome::Plain,
            Some(Given::Ok(value)) => Outcome::Ok(value),
            Some(Given::Fail(error)) => Outcome::Fail(error),
        };
        let grant = grant(request.grant.clone())?;
        view.write(pin!(view.release(&grant, outcome))).await?;
        Ok(Response::new(v1::ReleaseResponse {}))
    }

    async fn hand_over(
        &self,
        request: Request<v1::HandOverRequest>,
    ) -> Result<Response<v1::HandOverResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let grant = grant(request.grant)?;
        view.write(pin!(view.hand_over(&grant, &request.successor))).await?;
        Ok(Response::new(v1::HandOverResponse {}))
    }

    async fn ask_to_hand_over(
        &self,
        request: Request<v1::AskToHandOverRequest>,
    ) -> Result<Response<v1::AskToHandOverResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let scope = scope(&request.scope).map_err(Fault::from)?;
        let now = view.ask_to_hand_over(&scope, &handing_over(request.terms)).await?;
        Ok(Response::new(v1::AskToHandOverResponse { lease: Some(lease_of(&now)) }))
    }

    async fn proclaim(
        &self,
        request: Request<v1::ProclaimRequest>,
    ) -> Result<Response<v1::ProclaimResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let grant = grant(request.grant)?;
        let renewed = view.write(pin!(view.proclaim(&grant, request.metadata))).await?;
        Ok(Response::new(v1::ProclaimResponse { renewal: Some((&renewed).into()) }))
    }

    async fn revoke(
        &self,
        request: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let scope = scope(&request.scope).map_err(Fault::from)?;
        let revoking = view.revoke(&scope, request.expect_token, &request.reason);
        let revoked = view.write(pin!(revoking)).await?;
        Ok(Response::new(v1::RevokeResponse { revoked }))
    }

    async fn show(
        &self,
        request: Request<v1::ShowRequest>,
    ) -> Result<Response<v1::ShowResponse>, Status> {
        let view = self.view(&request)?;
        let scope = scope(&request.get_ref().scope).map_err(Fault::from)?;
        let shown = view.read(pin!(view.show(&scope))).await?;
        Ok(Response::new(v1::ShowResponse {
            holder: shown.holder.as_ref().map(lease_of),
            waiters: shown.waiters.iter().map(waiter_of).collect(),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListLeasesRequest>,
    ) -> Result<Response<v1::ListLeasesResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let namespace = namespace(&request.namespace)?;
        let listing = pin!(view.leases(namespace.as_ref(), request.children));
        let leases = view.read(listing).await?;
        Ok(Response::new(v1::ListLeasesResponse { leases: leases.iter().map(lease_of).collect() }))
    }

    async fn list_orphans(
        &self,
        request: Request<v1::ListOrphansRequest>,
    ) -> Result<Response<v1::ListOrphansResponse>, Status> {
        let view = self.view(&request)?;
        let request = request.into_inner();
        let namespace = namespace(&request.namespace)?;
        let listing = pin!(view.orphans(namespace.as_ref(), request.children));
        let orphans = view.read(listing).await?.iter().map(orphan_of).collect();
        Ok(Response::new(v1::ListOrphansResponse { orphans }))
    }

    async fn reap(
        &self,
        request: Request<v1::ReapRequest>,
    ) -> Result<Response<v1::ReapResponse>, Status> {
        let view = self.view(&request)?;
        let v1::ReapRequest { scope, nonce, revision, commit } = request.into_inner();
        let commit = Commit::try_from(commit.unwrap_or_default()).map_err(Fault::from)?;
        let reaped = view.write(pin!(view.reap(&scope, &nonce, revision, commit))).await?;
        Ok(Response::new(v1::ReapResponse { reaped }))
    }

    type WatchStream = Answers<v1::LeaseEvent>;

    async fn watch(
        &self,
        request: Request<v1::WatchLeasesRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let view = self.view(&request)?;
        let room = view.take(Use::Stream)?;
        let request = request.into_inner();
        let (events, authorisation) = view.watch_leases(&request.prefix, request.after).await?;
        let events = events.map(|event| match event {
            Ok(event) => Ok(event_of(&event)),
            Err(error) => Err(Fault::from(error)),
        });
        let first = futures::stream::once(async { Ok(v1::LeaseEvent::default()) });
        Ok(Response::new(stream(authorisation, room, first.chain(events))))
    }

    type SessionStream = Answers<v1::SessionResponse>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let view = self.view(&request)?;
        let room = view.take(Use::Stream)?;
        Ok(Response::new(session::start(view, room, request.into_inner())))
    }
}
