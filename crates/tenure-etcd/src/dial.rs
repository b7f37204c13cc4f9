//! Opening a connection: TCP, TLS where it is asked for, and HTTP/2 on top.
//!
//! It lives on the thread or runtime it is opened for and ends with the last that uses it. While calls
//! are under way, a ping now and then finds out whether the other side is still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use tenure::backend::home::Home;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::Fault;
use crate::gathered::Gathered;
use crate::tls::Tls;

/// Between looks whether the other side is there; more often, and servers object.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// What one watch may leave unread before its server holds back.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// So large that watches nobody reads do not hold up the others on their connection.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// A connection to ask on.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) send: SendRequest<Bytes>,
    /// How many calls and streams are open: servers object to pings while there are none.
    open: Arc<AtomicUsize>,
}

/// A call or stream that is open.
pub(crate) struct Open(Arc<AtomicUsize>);

impl Line {
    /// Connects to `host:port`.
    pub(crate) async fn dial(address: &str, tls: Option<&Tls>, home: &Home) -> Result<Self, Fault> {
        let failed =
            |error: &dyn std::fmt::Display| Fault::Elsewhere(format!("{address}: {error}"));
        let tcp = TcpStream::connect(address).await.map_err(|error| failed(&error))?;
        tcp.set_nodelay(true).map_err(|error| failed(&error))?;
        let line = match tls {
            None => Self::begin(tcp, home).await,
            Some(tls) => {
                let config = tls.config().map_err(Fault::No)?;
                let name = tls.name(address).map_err(Fault::No)?;
                let connecting = TlsConnector::from(config).connect(name, tcp);
                let stream = connecting.await.map_err(|error| failed(&error))?;
                Self::begin(stream, home).await
            }
        };
        line.map_err(|error| failed(&error))
    }

    async fn begin<T>(io: T, home: &Home) -> Result<Self, h2::Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (send, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake::<_, Bytes>(Gathered(io))
            .await?;
        let open = Arc::<AtomicUsize>::default();
        let pings = connection.ping_pong();
        home.spawn(drive(connection, pings, Arc::clone(&open)));
        Ok(Self { send, open })
    }

    pub(crate) fn open(&self) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(&self.open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads and writes until the connection ends, or the other side has been silent for too long: then
/// it is dropped, and every call on it fails.
async fn drive<T>(connection: Connection<T, Bytes>, pings: Option<PingPong>, open: Arc<AtomicUsize>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let looking = async move {
        let Some(mut pings) = pings else { return std::future::pending().await };
        loop {
            tokio::time::sleep(PING_EVERY).await;
            if open.load(Ordering::Relaxed) > 0 {
                let pong = tokio::time::timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await;
                if !matches!(pong, Ok(Ok(_))) {
                    return;
                }
            }
        }
    };
    tokio::select! {
        ended = connection => tracing::debug!(?ended, "a connection ended"),
        () = looking => tracing::debug!("a connection is dead"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, IoSlice};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::future::join_all;
    use http::{Request, Response};
    use tokio::io::ReadBuf;

    use super::*;

    /// Counts what would be calls of the kernel.
    struct Counted<T> {
        io: T,
        writes: Arc<AtomicUsize>,
    }

    impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_read(cx, into)
        }
    }

    impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.io).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn calls_that_are_ready_together_leave_together() {
        const CALLS: usize = 24;
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            let mut server = h2::server::handshake(far).await.unwrap();
            while let Some(Ok((_, mut answer))) = server.accept().await {
                answer.send_response(Response::new(()), true).unwrap();
            }
        });
        let writes = Arc::<AtomicUsize>::default();
        let io = Counted { io: near, writes: Arc::clone(&writes) };
        let line = Line::begin(io, &Home::here()).await.unwrap();
        let call = || async {
            let _open = line.open();
            let mut send = line.send.clone().ready().await.unwrap();
            let request = Request::post("http://etcd/").body(()).unwrap();
            let (response, mut body) = send.send_request(request, false).unwrap();
            body.send_data(Bytes::from(vec![0; 500]), true).unwrap();
            response.await.unwrap();
        };
        // Alone first, until both sides have agreed on everything.
        call().await;
        let before = writes.load(Ordering::Relaxed);
        join_all((0..CALLS).map(|_| call())).await;
        let took = writes.load(Ordering::Relaxed) - before;
        assert!(took <= CALLS / 4, "{CALLS} calls took {took} writes");
    }
}
