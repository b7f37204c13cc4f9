//! `tenure.v1.Store`: objects over gRPC.

use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, TryFutureExt};
use tenure::store::{Commit, Query, Touch, WatchRequest, check_writer};
use tenure::{Error, Key};
use tenure_proto::convert::need;
use tenure_proto::v1;
use tenure_proto::v1::store_server::Store;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, until_leaving, view};
use crate::Fault;
use crate::api::{Api, View};
use crate::limits::Use;

/// Calls of one exchange that are worked on at once; the client is held back beyond that.
const CALLS: usize = 1_024;
/// Messages that a slow reader may leave unread before it is held back.
const UNREAD: usize = 16;

pub(crate) struct Service {
    api: Api,
}

impl Service {
    pub(crate) fn new(api: Api) -> Self {
        Self { api }
    }
}

#[tonic::async_trait]
impl Store for Service {
    async fn capabilities(
        &self,
        request: Request<v1::CapabilitiesRequest>,
    ) -> Result<Response<v1::CapabilitiesResponse>, Status> {
        let view = view(&self.api, &request)?;
        // A client below the level that this program demands of a store is refused like any writer.
        let level = request.get_ref().writer_level;
        if level > 0 {
            check_writer("server", level).map_err(Fault::from)?;
        }
        Ok(Response::new(view.store().capabilities().into()))
    }

    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        let view = view(&self.api, &request)?;
        let _room = self.api.room().request()?;
        Ok(Response::new(get(&view, request.into_inner()).await?))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let view = view(&self.api, &request)?;
        let _room = self.api.room().request()?;
        let query = Query::try_from(request.into_inner()).map_err(Fault::from)?;
        Ok(Response::new((&view.list(&query).await?).into()))
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        let view = view(&self.api, &request)?;
        let _room = self.api.room().request()?;
        Ok(Response::new(commit(&view, request.into_inner()).await?))
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        let view = view(&self.api, &request)?;
        let _room = self.api.room().request()?;
        Ok(Response::new(touch(&view, request.into_inner()).await?))
    }

    type WatchStream = Answers<v1::WatchResponse>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let view = view(&self.api, &request)?;
        let room = view.take(Use::Stream)?;
        let watch = view.watch(&WatchRequest::from(request.into_inner())).await?;
        let first = v1::WatchResponse { revision: watch.start(), events: Vec::new() };
        let batches = watch.map(|batch| match batch {
            Ok(batch) => Ok((&*batch).into()),
            Err(error) => Err(Fault::from(error).into()),
        });
        let first = futures::stream::once(futures::future::ready(Ok(first)));
        Ok(Response::new(until_leaving(&view, room, first.chain(batches))))
    }

    type ExchangeStream = Answers<v1::ExchangeResponse>;

    async fn exchange(
        &self,
        request: Request<Streaming<v1::ExchangeRequest>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let view = view(&self.api, &request)?;
        let room = view.take(Use::Stream)?;
        let (answers, outgoing) = mpsc::channel(UNREAD);
        let incoming = request.into_inner();
        tokio::spawn(async move {
            let _room = room;
            exchange(view, incoming, answers).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

/// Works on the calls of a stream until its client closes it. A server that leaves says so, and goes on
/// until the client has closed its side: what was sent is answered.
async fn exchange(
    view: View,
    mut incoming: Streaming<v1::ExchangeRequest>,
    answers: mpsc::Sender<Result<v1::ExchangeResponse, Status>>,
) {
    let mut running = FuturesUnordered::new();
    let shutdown = view.api().shutdown().clone();
    let leaves = shutdown.leaving();
    tokio::pin!(leaves);
    let (mut open, mut told) = (true, false);
    while open || !running.is_empty() {
        tokio::select! {
            biased;
            Some(answer) = running.next(), if !running.is_empty() => {
                let mut done = vec![answer];
                while let Some(Some(answer)) = running.next().now_or_never() {
                    done.push(answer);
                }
                let message = v1::ExchangeResponse { answers: done, leaving: false };
                if answers.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            message = incoming.message(), if open && running.len() < CALLS => match message {
                Ok(Some(message)) => {
                    running.extend(message.calls.into_iter().map(|call| answer(&view, call)));
                }
                Ok(None) | Err(_) => open = false,
            },
            () = &mut leaves, if open && !told => {
                told = true;
                let message = v1::ExchangeResponse { answers: Vec::new(), leaving: true };
                if answers.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn answer(view: &View, call: v1::Call) -> v1::Answer {
    use v1::answer::Answer;
    use v1::call::Call;
    let answer = match call.call {
        Some(Call::Get(request)) => get(view, request).map_ok(Answer::Get).await,
        Some(Call::Commit(request)) => commit(view, request).map_ok(Answer::Commit).await,
        Some(Call::Touch(request)) => touch(view, request).map_ok(Answer::Touch).await,
        None => Err(Error::invalid("call", "it is missing from the message").into()),
    };
    let answer = answer.unwrap_or_else(|fault| Answer::Error(fault.wire()));
    v1::Answer { id: call.id, answer: Some(answer) }
}

async fn get(view: &View, request: v1::GetRequest) -> Result<v1::GetResponse, Fault> {
    let key = Key::from(need(request.key, "key")?);
    let object = view.get(&key).await?;
    Ok(v1::GetResponse { object: object.as_ref().map(Into::into) })
}

async fn commit(view: &View, request: v1::CommitRequest) -> Result<v1::CommitResponse, Fault> {
    Ok(view.commit(Commit::try_from(request)?).await?.into())
}

async fn touch(view: &View, request: v1::TouchRequest) -> Result<v1::TouchResponse, Fault> {
    let touches: Vec<Touch> = request.try_into()?;
    Ok(view.touch(touches).await?.into())
}
