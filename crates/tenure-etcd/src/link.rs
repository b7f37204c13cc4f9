//! One connection to one server: single calls, streams, and keep-alives.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::error::Fault;
use crate::keeper::{Keeper, Renewed};
use tenure::store::home::Home;

/// Streams that carry keep-alives. A server works through each of them one by one, and one that is
/// not the leader asks the leader for every single one.
const KEEPERS: usize = 4;
/// A page of the largest objects; the store bounds what it asks for by itself.
pub(crate) const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// A connection. It may break; whoever notices tells [`crate::endpoints::Endpoints`].
pub(crate) struct Link {
    /// Which of the servers.
    pub(crate) server: usize,
    /// Somebody is finding out whether it still answers.
    pub(crate) suspected: AtomicBool,
    wire: Wire,
    keepers: Vec<Keeper>,
}

/// The channel and who we are on it.
#[derive(Clone)]
pub(crate) struct Wire {
    pub(crate) channel: Channel,
    pub(crate) token: Option<MetadataValue<Ascii>>,
}

impl Link {
    pub(crate) fn new(server: usize, wire: Wire, home: &Arc<Home>) -> Self {
        let keepers =
            (0..KEEPERS).map(|_| Keeper::new(wire.clone(), Arc::downgrade(home))).collect();
        Self { server, suspected: AtomicBool::new(false), wire, keepers }
    }

    /// One question, one answer.
    pub(crate) async fn call<Q, R>(&self, path: &'static str, question: Q) -> Result<R, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.wire.call(path, question).await
    }

    /// A stream in each direction.
    pub(crate) async fn stream<Q, R>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<R>, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.wire.stream(path, questions).await
    }

    /// Starts the life of an etcd lease anew.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<Renewed, Fault> {
        let keeper = lease.unsigned_abs() as usize % self.keepers.len();
        self.keepers[keeper].keep_alive(lease).await
    }
}

impl Wire {
    fn request<Q>(&self, question: Q) -> Request<Q> {
        let mut request = Request::new(question);
        let metadata = request.metadata_mut();
        // A server that has lost the others says so at once, instead of letting us wait.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        request
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Fault> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        // Before it is ready nothing has left.
        grpc.ready().await.map_err(|error| Fault::Elsewhere(format!("no connection: {error}")))?;
        Ok(grpc)
    }

    pub(crate) async fn call<Q, R>(&self, path: &'static str, question: Q) -> Result<R, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(self.request(question), path, codec).await?.into_inner())
    }

    pub(crate) async fn stream<Q, R>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<R>, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.streaming(self.request(questions), path, codec).await?.into_inner())
    }
}
