//! One connection to a server: TCP, and TLS where the address says `https`.
//!
//! The transport opens it when it is first used and again when it breaks. Opening is bounded in time, the
//! handshake of TLS included. Its errors say in words what failed; `diagnose` turns them into advice.

use std::io;
use std::time::Duration;

use http::Uri;
use hyper::rt::Executor;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tenure::{Error, Result};
use tenure_net::tls::ClientTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint};
use tower::{Service as _, ServiceExt as _, service_fn};

use crate::Options;

/// Whether the server is still there is asked this often, and an answer expected this soon: one that is
/// frozen or cut off is left within the sum, so that leases of some seconds outlive it.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// What one watch may leave unread before the server holds back.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// So large that watches nobody reads do not hold up the others on their connection.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The protocol that servers speak inside TLS.
pub(crate) const PROTOCOL: &[u8] = b"h2";
/// What is said of a server that speaks TLS and not this protocol.
pub(crate) const NO_HTTP2: &str = "HTTP/2 was not negotiated";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A task of the transport.
pub(crate) type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that is made when it is first used, and made again when it breaks. The transport's tasks
/// run on the executor.
pub(crate) fn channel(
    options: &Options,
    server: &str,
    tls: Option<ClientTls>,
    executor: impl Executor<Task> + Send + Sync + 'static,
) -> Result<Channel> {
    let invalid = |reason: String| Error::invalid(format!("server {server:?}"), reason);
    let origin: Uri = server.parse().map_err(|error| invalid(format!("{error}")))?;
    // Encryption is the connector's work, so to the transport below the address is a plain one.
    let place = server.rsplit_once('/').map_or(server, |(_, place)| place);
    let endpoint = Endpoint::from_shared(format!("http://{place}"))
        .map_err(|error| invalid(error.to_string()))?
        .origin(origin)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .executor(executor);
    let timeout = options.connect_timeout;
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(timeout));
    let connector = service_fn(move |uri: Uri| {
        let opening = open(tcp.clone(), tls.clone(), uri);
        async move {
            let opened = tokio::time::timeout(timeout, opening).await;
            opened.unwrap_or_else(|_| Err("not connected in time".into()))
        }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

async fn open(
    mut tcp: HttpConnector,
    tls: Option<ClientTls>,
    uri: Uri,
) -> Result<TokioIo<Box<dyn Io>>, Failure> {
    let stream = tcp.ready().await?.call(uri.clone()).await?.into_inner();
    let Some(tls) = tls else { return Ok(TokioIo::new(Box::new(stream))) };
    let stream = tls.connect(uri.host().unwrap_or_default(), stream).await?;
    if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) {
        return Err(io::Error::other(NO_HTTP2).into());
    }
    Ok(TokioIo::new(Box::new(stream)))
}

/// A connection, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
