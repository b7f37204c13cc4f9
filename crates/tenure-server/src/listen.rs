//! The port: connections, TLS, who asks, and the way to an orderly end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use prometheus_client::registry::Registry;
use socket2::{SockRef, TcpKeepalive};
use tenure::store::Store;
use tenure::store::measured::StoreMetrics;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::api::Api;
use crate::auth::tls::ServerTls;
use crate::auth::{Authenticator, Peer};
use crate::dispatch::{Admission, Dispatcher, admit};
use crate::first_request::first_request_timeout;
use crate::metrics::{self, Metrics};
use crate::over_capacity::OverCapacity;
use crate::ready::Readiness;
use crate::{Fault, ServerLimits, Shutdown, body_timeout, grpc, http, leading};

/// An HTTP/1 connection that asks for nothing further is closed after this long: later than clients that
/// renew on it now and then, so that they do not meet its end.
const IDLE: Duration = Duration::from_secs(75);
/// Whether the other end of a quiet connection is still there is asked this often.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls and streams that one connection may have open at once.
const STREAMS: u32 = 10_000;
/// What a client may send on one stream before it is held back until it is read.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The same for a connection. It is also what the protocol's guard against floods of small messages goes
/// by: with little room, a burst of a few hundred calls at once would be taken for one.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// After a failure to accept, for instance because there are too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Settings of a server that is about to start.
pub struct Builder {
    store: Store,
    name: Option<String>,
    limits: ServerLimits,
    authenticator: Authenticator,
    tls: Option<ServerTls>,
    shutdown: Shutdown,
    grace: Duration,
    campaigns: bool,
}

impl Builder {
    /// What others call this replica; `HOSTNAME` or a random name unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How much it takes on.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Finds out who asks. Without it, everybody may do everything.
    #[must_use]
    pub fn authenticator(mut self, authenticator: Authenticator) -> Self {
        self.authenticator = authenticator;
        self
    }

    /// Speaks TLS only.
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What begins the end.
    #[must_use]
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Whether it campaigns to lead among the servers of its store. On a store that only this process can
    /// use there is nobody to lead.
    #[must_use]
    pub fn campaigns(mut self, campaigns: bool) -> Self {
        self.campaigns = campaigns;
        self
    }

    /// How long what was begun gets to finish.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// A server, not yet listening.
    pub fn build(self) -> Result<Server, Fault> {
        self.limits.check()?;
        let mut registry = Registry::default();
        let campaigns = self.campaigns && !self.store.capabilities().is_single_process();
        let store = self.store.with_metrics(StoreMetrics::register(&mut registry));
        let api = Api::named(self.name.as_deref(), store, self.limits, self.shutdown)?;
        let metrics = Metrics::new(registry, &api);
        let readiness = Readiness::new(&api)?;
        let refused = |error| tenure::Error::invalid("descriptors", format!("{error}"));
        let admission = Arc::new(Admission::new(self.authenticator));
        // Unknown paths are answered by `http`, also those of gRPC calls.
        let services = grpc::Services::new(&api);
        let calls =
            grpc::routes(&api, &services).map_err(refused)?.into_axum_router().reset_fallback();
        let health = grpc::open_routes(&api, &readiness).into_axum_router().reset_fallback();
        let in_time =
            middleware::map_request_with_state(Arc::clone(api.room()), body_timeout::layer);
        let router = calls
            .merge(http::routes(&api, &metrics))
            .layer(in_time.clone())
            .layer(middleware::from_fn_with_state(Arc::clone(&admission), admit))
            .merge(health.layer(in_time))
            .merge(http::open_routes(&readiness))
            .layer(middleware::from_fn_with_state(Arc::clone(&metrics), metrics::measure));
        let dispatcher = Dispatcher::new(admission, &api, Arc::clone(&metrics), services, router);
        let (tls, grace) = (self.tls, self.grace);
        Ok(Server { api, dispatcher, metrics, readiness, tls, grace, campaigns })
    }
}

/// A server over one store.
pub struct Server {
    api: Api,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    tls: Option<ServerTls>,
    grace: Duration,
    campaigns: bool,
}

impl Server {
    /// A server over this store, to be set up.
    pub fn builder(store: Store) -> Builder {
        Builder {
            store,
            name: None,
            limits: ServerLimits::default(),
            authenticator: Authenticator::default(),
            tls: None,
            shutdown: Shutdown::default(),
            grace: Duration::from_secs(10),
            campaigns: false,
        }
    }

    /// What it serves.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Serves until the shutdown begins and everything is finished, or its grace is over. The store stays
    /// open.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let limits = self.api.room().limits();
        let connections = Arc::new(Semaphore::new(limits.connections));
        let over_capacity = OverCapacity::new(self.metrics.refusals());
        let graceful = GracefulShutdown::new();
        let looking = tokio::spawn(self.readiness.clone().run());
        // Dropped with this.
        let mut leading = JoinSet::new();
        if self.campaigns {
            leading.spawn(leading::campaign(self.api.clone(), listener.local_addr().ok()));
        }
        // Ends what does not end by itself, also when this is dropped.
        let cut = Cut::default();
        while let Some(accepted) = self.api.shutdown().or(listener.accept()).await {
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            keep_asking(&stream);
            let acceptor = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.current()));
            // Connections beyond the limit are refused, not queued.
            let Ok(place) = Arc::clone(&connections).try_acquire_owned() else {
                if let Some(place) = over_capacity.place() {
                    let (over_capacity, cut) = (over_capacity.clone(), cut.0.clone());
                    tokio::spawn(async move {
                        let _place = place;
                        cut.or(over_capacity.refuse(stream, acceptor)).await;
                    });
                }
                continue;
            };
            let dispatcher = self.dispatcher.clone();
            let watcher = graceful.watcher();
            let counted = self.metrics.connection();
            let (cut, timeout) = (cut.0.clone(), limits.header_timeout);
            tokio::spawn(async move {
                let _place = (place, counted);
                let served = connection(stream, address, acceptor, timeout, dispatcher, watcher);
                if let Some(Err(error)) = cut.or(served).await {
                    tracing::debug!(%address, %error, "connection ended");
                }
            });
        }
        drop(listener);
        let drained = tokio::time::timeout(self.grace, graceful.shutdown());
        let resigned = tokio::time::timeout(self.grace, leading.join_next());
        if tokio::join!(drained, resigned).0.is_err() {
            tracing::warn!("connections were cut: they did not end within {:?}", self.grace);
        }
        drop(cut);
        let _ = tokio::time::timeout(self.grace, self.api.settle()).await;
        looking.abort();
        Ok(())
    }
}

/// Dropped, it ends all connections.
#[derive(Default)]
struct Cut(Shutdown);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.begin();
    }
}

/// Turns on TCP keep-alive. HTTP/2 has pings of its own; but a client that waits over HTTP/1 is silent, and
/// would keep its place in the wait queue after its machine has gone.
fn keep_asking(stream: &TcpStream) {
    let asking = TcpKeepalive::new().with_time(PING_EVERY).with_interval(PING_TIMEOUT);
    let _ = SockRef::from(stream).set_tcp_keepalive(&asking.with_retries(2));
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    address: std::net::SocketAddr,
    acceptor: Option<TlsAcceptor>,
    timeout: Duration,
    dispatcher: Dispatcher,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), Failure> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS);
    let serve = |certificate| {
        let peer = Arc::new(Peer { address, certificate });
        service_fn(move |request| dispatcher.call(request, &peer))
    };
    match acceptor {
        None => {
            let (io, service) = first_request_timeout(stream, serve(None), timeout);
            watcher.watch(builder.serve_connection(io, service).into_owned()).await
        }
        Some(acceptor) => {
            let stream = tokio::time::timeout(timeout, acceptor.accept(stream)).await??;
            let certificates = stream.get_ref().1.peer_certificates();
            let certificate = certificates.and_then(|all| all.first()).cloned();
            let service = serve(certificate.map(|cert| cert.into_owned()));
            let (io, service) = first_request_timeout(stream, service, timeout);
            watcher.watch(builder.serve_connection(io, service).into_owned()).await
        }
    }
}
