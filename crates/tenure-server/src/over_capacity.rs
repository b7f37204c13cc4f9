//! Refuses connections beyond the limit.
//!
//! A client whose connection is cut without an answer cannot tell a full server from a broken one, and most
//! connect again at once. So a few at a time are let in just far enough to be told that the server is full
//! and when to come back: in HTTP with 429, in gRPC with RESOURCE_EXHAUSTED. Then the connection ends. All
//! of that has a short timeout. Connections beyond those few are closed without an answer, because answering
//! must not cost what it saves.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::IntoResponse as _;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::dispatch::Body;
use crate::drain::{self, Drains};
use crate::metrics::Refusals;
use crate::{Fault, http};

/// Connections that are answered at the same time.
const AT_ONCE: usize = 64;
/// What each of them has for the handshake of TLS, its request and the answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// When to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Calls that one of them may make at once; none of them gets anywhere.
const STREAMS: u32 = 16;

/// Answers connections beyond the limit.
#[derive(Clone)]
pub(crate) struct OverCapacity {
    places: Arc<Semaphore>,
    refusals: Refusals,
}

impl OverCapacity {
    pub(crate) fn new(refusals: Refusals) -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE)), refusals }
    }

    /// A place to answer one more. Without one, the connection is counted as closed.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            self.refusals.closed();
        }
        place
    }

    /// Refuses this connection, if it sends a request in time.
    pub(crate) async fn refuse(self, stream: TcpStream, acceptor: Option<TlsAcceptor>) {
        let answered = Answered::default();
        let refusing = async {
            match acceptor {
                None => answer(TokioIo::new(stream), &answered).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(TokioIo::new(stream), &answered).await;
                    }
                }
            }
        };
        let _ = tokio::time::timeout(TIMEOUT, refusing).await;
        if answered.0.answered.load(Ordering::Relaxed) {
            self.refusals.answered();
        } else {
            self.refusals.closed();
        }
    }
}

/// Whether an answer was given.
#[derive(Clone, Default)]
struct Answered(Arc<Flag>);

#[derive(Default)]
struct Flag {
    answered: AtomicBool,
    changed: Notify,
}

impl Answered {
    fn set(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
        self.0.changed.notify_one();
    }
}

/// Gives the same answer to whatever is asked, and ends the connection.
async fn answer(io: impl Read + Write + Unpin + Send + 'static, answered: &Answered) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(TIMEOUT).keep_alive(false);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
    let drains = Arc::new(Drains::default());
    let service = service_fn(|request: ::http::Request<Incoming>| {
        let (answer, answered) = (full(http::speaks_grpc(request.headers())), answered.clone());
        let drains = Arc::clone(&drains);
        async move {
            if drain::applies(&request) {
                drains.drain(request.into_body()).await;
            }
            answered.set();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = answered.0.changed.notified() => {}
    }
    // What was answered is sent, and in HTTP/2 a word that nothing else is taken.
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// The answer that the server is full, in gRPC or HTTP.
fn full(grpc: bool) -> ::http::Response<Body> {
    let what = "as many connections are open as the server has room for".into();
    let fault = Fault::Overloaded { what, retry_after: RETRY_AFTER };
    match grpc {
        true => tonic::Status::from(fault).into_http().map(Either::Left),
        false => fault.into_response().map(Either::Right),
    }
}
