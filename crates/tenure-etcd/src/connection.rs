//! A connection to one etcd server: calls, streams and keep-alives over tonic.
//!
//! It is made once. tonic would connect again by itself where a connection has ended, but a new one has
//! neither logged in nor shown that its server belongs to a majority, and a keep-alive counts only beside
//! a read over the same connection. So a connection that has ended fails all further calls, certainly
//! without sending them, and [`crate::endpoints::Endpoints`] makes another one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tenure::Error;
use tenure::backend::home::Home;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{CallError, innermost};
use crate::keep_alive::{KeepAlives, Renewed};
use crate::tls::Tls;

/// A page of the largest objects; the store bounds what it asks for by itself.
pub(crate) const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// Between pings while calls or streams are open; more often, and servers object.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// What one watch may leave unread before its server holds back.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// So large that watches nobody reads do not hold up the others on their connection.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Streams that carry keep-alives. A server works through each of them one by one, and one that is
/// not the leader asks the leader for every single one.
const KEEP_ALIVE_STREAMS: usize = 4;

/// A connection that has logged in. A caller that finds it broken tells [`crate::endpoints::Endpoints`].
pub(crate) struct Connection {
    /// Which of the servers.
    pub(crate) server: usize,
    /// A probe is under way that finds out whether it still answers.
    pub(crate) probing: AtomicBool,
    client: Client,
    keep_alives: Vec<KeepAlives>,
}

impl Connection {
    pub(crate) fn new(server: usize, client: Client, home: &Arc<Home>) -> Self {
        let keep_alives = (0..KEEP_ALIVE_STREAMS)
            .map(|_| KeepAlives::new(client.clone(), Arc::downgrade(home)))
            .collect();
        Self { server, probing: AtomicBool::new(false), client, keep_alives }
    }

    /// One request, one answer.
    pub(crate) async fn call<Q, R>(&self, path: &'static str, request: Q) -> Result<R, CallError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.client.call(path, request).await
    }

    /// A stream in each direction.
    pub(crate) async fn stream<Q, R>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Answers<R>, CallError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.client.stream(path, requests).await
    }

    /// Starts the life of an etcd lease anew.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<Renewed, CallError> {
        let stream = lease.unsigned_abs() as usize % self.keep_alives.len();
        self.keep_alives[stream].keep_alive(lease).await
    }
}

/// tonic's client on one connection, and what every call says of itself.
#[derive(Clone)]
pub(crate) struct Client {
    grpc: Grpc<Channel>,
    metadata: MetadataMap,
}

impl Client {
    /// Connects to `host:port`. The connection lives on the runtime that this runs on, and ends with the
    /// last clone.
    pub(crate) async fn connect(address: &str, tls: Option<&Tls>) -> Result<Self, CallError> {
        let endpoint = endpoint(address, tls).map_err(CallError::Final)?;
        let failed =
            |error: &dyn std::fmt::Display| CallError::TryElsewhere(format!("{address}: {error}"));
        let tcp = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
        tcp.set_nodelay(true).map_err(|error| failed(&error))?;
        let mut tcp = Some(TokioIo::new(tcp));
        let once = tower::service_fn(move |_| {
            let ended = || io::Error::new(io::ErrorKind::NotConnected, "the connection has ended");
            std::future::ready(tcp.take().ok_or_else(ended))
        });
        let channel = endpoint.connect_with_connector(once).await;
        let channel = channel.map_err(|error| failed(&innermost(&error)))?;
        let mut metadata = MetadataMap::new();
        // A server that has lost the others says so at once, instead of letting us wait.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        let grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
        Ok(Self { grpc, metadata })
    }

    /// Shows this token, which a login gave, with every call.
    pub(crate) fn set_token(&mut self, token: &str) -> Result<(), CallError> {
        let unusable = |_| CallError::TryElsewhere("the server gave an unusable token".into());
        let mut token: MetadataValue<_> = token.parse().map_err(unusable)?;
        token.set_sensitive(true);
        self.metadata.insert("token", token);
        Ok(())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        request
    }

    async fn ready(&self) -> Result<Grpc<Channel>, CallError> {
        let mut grpc = self.grpc.clone();
        let ended = |error| CallError::TryElsewhere(innermost(&error));
        grpc.ready().await.map_err(ended)?;
        Ok(grpc)
    }

    pub(crate) async fn call<Q, R>(&self, path: &'static str, message: Q) -> Result<R, CallError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let (mut grpc, path) = (self.ready().await?, PathAndQuery::from_static(path));
        let answer = grpc.unary(self.request(message), path, ProstCodec::<Q, R>::default()).await?;
        Ok(answer.into_inner())
    }

    pub(crate) async fn stream<Q, R>(
        &self,
        path: &'static str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Answers<R>, CallError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let (mut grpc, path) = (self.ready().await?, PathAndQuery::from_static(path));
        let (wanted, unwanted) = oneshot::channel::<()>();
        let messages = self.request(messages.take_until(unwanted));
        let answer = grpc.streaming(messages, path, ProstCodec::<Q, R>::default()).await?;
        Ok(Answers { answers: answer.into_inner(), _wanted: wanted })
    }
}

/// The answers of a stream. No more requests are sent once it is dropped, so that the server ends it.
pub(crate) struct Answers<R> {
    answers: Streaming<R>,
    _wanted: oneshot::Sender<()>,
}

impl<R> Stream for Answers<R> {
    type Item = Result<R, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.answers).poll_next(cx).map_err(CallError::from)
    }
}

fn endpoint(address: &str, tls: Option<&Tls>) -> tenure::Result<Endpoint> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let wrong = |error: tonic::transport::Error| {
        Error::invalid(format!("etcd server {address:?}"), innermost(&error))
    };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(wrong)?;
    let endpoint = match tls {
        None => endpoint,
        Some(tls) => endpoint.tls_config(tls.config()?).map_err(wrong)?,
    };
    Ok(endpoint
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{LeaseLife, LeaseRequest, path};
    use crate::tls::Pem;

    #[test]
    fn the_name_to_prove_is_the_host_unless_another_is_given() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let ca = Some(Pem::Text(made.cert.pem().into()));
        let tls = |name: &str| {
            let mut tls = Tls::default();
            (tls.ca, tls.server_name) =
                (ca.clone(), Some(name.to_owned()).filter(|n| !n.is_empty()));
            tls
        };
        for address in ["one.example:2379", "[::1]:2379", "127.0.0.1:2379"] {
            assert!(endpoint(address, Some(&tls(""))).is_ok(), "{address}");
        }
        // No certificate can bear these, so the other name is what counts.
        for (address, name) in
            [("not a name:1", ""), ("a_b-.example:1", ""), ("127.0.0.1:1", "a b")]
        {
            assert!(endpoint(address, Some(&tls(name))).is_err(), "{address} {name}");
        }
        assert!(endpoint("a_b-.example:1", Some(&tls("other.example"))).is_ok());
        assert!(endpoint("not a name:1", None).is_err());
    }

    /// A connection that has ended is not made again behind our back, and says that it sent nothing.
    #[tokio::test]
    async fn a_connection_is_made_once() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = Client::connect(&address, None).await.unwrap();
        drop(listener.accept().await.unwrap());
        let call = || client.call::<_, LeaseLife>(path::TIME_TO_LIVE, LeaseRequest { id: 1 });
        let mut errors = Vec::new();
        while !matches!(errors.last(), Some(CallError::TryElsewhere(_))) {
            errors.push(call().await.unwrap_err());
            assert!(errors.len() < 10, "{errors:?}");
        }
        // The next that comes is this, so nobody came before.
        let next = TcpStream::connect(&address).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().1, next.local_addr().unwrap());
    }
}
