//! Connections for which there is no place.
//!
//! Whoever is cut off without a word cannot tell a full server from one that is broken, and most ask again
//! at once. So a few at a time are let in just far enough to be told that the server is full and when to
//! come back: in HTTP with 429, in gRPC with RESOURCE_EXHAUSTED, after which the connection ends. They have
//! little time for it. Beyond that few, there is no word after all: telling must not cost what it saves.

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

use crate::front::Body;
use crate::metrics::Refusals;
use crate::unheard::{self, Ears};
use crate::{Fault, http};

/// So many are told at the same time.
const AT_ONCE: usize = 64;
/// So long each of them has, for the handshake of TLS, its request and the answer.
const WITHIN: Duration = Duration::from_secs(2);
/// When to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Calls that one of them may make at once; none of them gets anywhere.
const STREAMS: u32 = 16;

/// Tells those who come too many.
#[derive(Clone)]
pub(crate) struct Doorkeeper {
    places: Arc<Semaphore>,
    refusals: Refusals,
}

impl Doorkeeper {
    pub(crate) fn new(refusals: Refusals) -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE)), refusals }
    }

    /// Room to tell one more; if there is none, that one is counted as turned away.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            self.refusals.closed();
        }
        place
    }

    /// Tells this one, if it asks for anything in time.
    pub(crate) async fn tell(self, stream: TcpStream, acceptor: Option<TlsAcceptor>) {
        let told = Told::default();
        let telling = async {
            match acceptor {
                None => answer(TokioIo::new(stream), &told).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(TokioIo::new(stream), &told).await;
                    }
                }
            }
        };
        let _ = tokio::time::timeout(WITHIN, telling).await;
        if told.0.answered.load(Ordering::Relaxed) {
            self.refusals.answered();
        } else {
            self.refusals.closed();
        }
    }
}

/// Whether an answer was given.
#[derive(Clone, Default)]
struct Told(Arc<Answered>);

#[derive(Default)]
struct Answered {
    answered: AtomicBool,
    news: Notify,
}

impl Told {
    fn set(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
        self.0.news.notify_one();
    }
}

/// Gives the same answer to whatever is asked, and ends the connection.
async fn answer(io: impl Read + Write + Unpin + Send + 'static, told: &Told) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(WITHIN).keep_alive(false);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
    let ears = Arc::new(Ears::default());
    let service = service_fn(|request: ::http::Request<Incoming>| {
        let (answer, told) = (full(http::speaks_grpc(request.headers())), told.clone());
        let ears = Arc::clone(&ears);
        async move {
            if unheard::concerns(&request) {
                ears.hear_out(request.into_body()).await;
            }
            told.set();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = told.0.news.notified() => {}
    }
    // What was answered is sent, and in HTTP/2 a word that nothing else is taken.
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// That the server is full, as whoever asks understands it.
fn full(grpc: bool) -> ::http::Response<Body> {
    let what = "as many connections are open as the server has room for".into();
    let fault = Fault::Overloaded { what, retry_after: RETRY_AFTER };
    match grpc {
        true => tonic::Status::from(fault).into_http().map(Either::Left),
        false => fault.into_response().map(Either::Right),
    }
}
