//! `tenure.v1.Store`: objects over gRPC.

use futures::StreamExt;
use tenure::Key;
use tenure::backend::check_writer;
use tenure::store::{Commit, Query, Touch, WatchRequest};
use tenure_proto::convert::need;
use tenure_proto::v1;
use tenure_proto::v1::store_server::Store;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, Service, exchange, stream};
use crate::Fault;
use crate::api::View;
use crate::api::watch_progress::{Item, with_progress};
use crate::limits::Use;

#[tonic::async_trait]
impl Store for Service {
    async fn capabilities(
        &self,
        request: Request<v1::CapabilitiesRequest>,
    ) -> Result<Response<v1::CapabilitiesResponse>, Status> {
        let view = self.view(&request)?;
        // A client below the level that this program demands of a store is refused like any writer.
        let level = request.get_ref().writer_level;
        if level > 0 {
            check_writer("server", level).map_err(Fault::from)?;
        }
        Ok(Response::new((&view.capabilities()).into()))
    }

    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        let (view, _room) = self.view_with_room(&request)?;
        Ok(Response::new(get(&view, request.into_inner()).await?))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let (view, _room) = self.view_with_room(&request)?;
        let query = Query::try_from(request.into_inner()).map_err(Fault::from)?;
        Ok(Response::new((&view.list(&query).await?).into()))
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        let (view, _room) = self.view_with_room(&request)?;
        Ok(Response::new(commit(&view, request.into_inner()).await?))
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        let (view, _room) = self.view_with_room(&request)?;
        Ok(Response::new(touch(&view, request.into_inner()).await?))
    }

    type WatchStream = Answers<v1::WatchResponse>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let view = self.view(&request)?;
        let room = view.take(Use::Stream)?;
        let (watch, authorisation) = view.watch(&WatchRequest::from(request.into_inner())).await?;
        let first = v1::WatchResponse { revision: watch.start(), events: Vec::new() };
        let batches = with_progress(watch).map(|told| match told {
            Item::Event(Ok(batch)) => Ok((&*batch).into()),
            Item::Event(Err(error)) => Err(Fault::from(error)),
            Item::Progress(revision) => Ok(v1::WatchResponse { revision, events: Vec::new() }),
        });
        let first = futures::stream::once(futures::future::ready(Ok(first)));
        Ok(Response::new(stream(authorisation, room, first.chain(batches))))
    }

    type ExchangeStream = Answers<v1::ExchangeResponse>;

    async fn exchange(
        &self,
        request: Request<Streaming<v1::ExchangeRequest>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let view = self.view(&request)?;
        let room = view.take(Use::Stream)?;
        Ok(Response::new(exchange::start(view, room, request.into_inner())))
    }
}

pub(super) async fn get(view: &View, request: v1::GetRequest) -> Result<v1::GetResponse, Fault> {
    let key = Key::from(need(request.key, "key")?);
    let object = view.get(&key).await?;
    Ok(v1::GetResponse { object: object.as_ref().map(Into::into) })
}

pub(super) async fn commit(
    view: &View,
    request: v1::CommitRequest,
) -> Result<v1::CommitResponse, Fault> {
    Ok(view.commit(Commit::try_from(request)?).await?.into())
}

pub(super) async fn touch(
    view: &View,
    request: v1::TouchRequest,
) -> Result<v1::TouchResponse, Fault> {
    let touches: Vec<Touch> = request.try_into()?;
    Ok(view.touch(touches).await?.into())
}
