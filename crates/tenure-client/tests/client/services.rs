//! Two services that call each other under leases: a front and a ledger. They speak the health protocol,
//! because it has one call of each kind; what is asked for says what the ledger does.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tenure::Key;
use tenure::store::{Commit, Put, Store};
use tenure_client::{CarryLease, Carrying, Declared, LeaseContext, ReceiveLease};
use tenure_conformance::Failure;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::Layer;

pub(crate) type Client = HealthClient<Carrying<Channel>>;

/// What services tell the test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The ledger was called under these leases, and with a deadline or not.
    Called { leases: Vec<(String, u64)>, deadline: bool },
    /// Work was stopped; whether its lease was still held then.
    Stopped { who: &'static str, held: bool },
    /// What came of a late write.
    Wrote(Result<(), &'static str>),
    /// The front's work has ended like this.
    Finished(String),
}

pub(crate) type Ears = mpsc::UnboundedReceiver<Told>;
pub(crate) type Mouth = mpsc::UnboundedSender<Told>;

/// The next thing that is told.
pub(crate) async fn next(ears: &mut Ears) -> Result<Told, Failure> {
    let told = tokio::time::timeout(Duration::from_secs(10), ears.recv()).await;
    told.ok().flatten().ok_or_else(|| Failure::new("nothing was told within ten seconds"))
}

/// Tells when it is dropped.
pub(crate) struct OnDrop(pub(crate) &'static str, pub(crate) Mouth, pub(crate) LeaseContext);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let held = self.2.leases().iter().all(|lease| lease.loss().is_none());
        let _ = self.1.send(Told::Stopped { who: self.0, held });
    }
}

/// A service that is listening until dropped.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    serving: AbortHandle,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub(crate) async fn listen(
    service: impl Health,
    layer: ReceiveLease,
) -> Result<Listening, Failure> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?;
    let server = Server::builder().layer(layer).add_service(HealthServer::new(service));
    let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok(Listening { address, serving: serving.abort_handle() })
}

pub(crate) fn channel(to: &Listening) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("http://{}", to.address));
    Ok(endpoint.map_err(|error| Failure::new(error.to_string()))?.connect_lazy())
}

/// A client whose calls carry leases.
pub(crate) fn client(to: &Listening) -> Result<Client, Failure> {
    Ok(HealthClient::new(CarryLease::new().layer(channel(to)?)))
}

pub(crate) fn ask(what: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: what.into() }
}

fn done() -> Response<HealthCheckResponse> {
    Response::new(HealthCheckResponse { status: 1 })
}

/// Called under leases.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) store: Store,
    pub(crate) mouth: Mouth,
    /// What some of its work waits for.
    pub(crate) go: Arc<Notify>,
    /// Whom it calls itself, if told to forward.
    pub(crate) next: Option<Client>,
}

impl Ledger {
    fn heard(&self, request: &Request<HealthCheckRequest>) -> Option<LeaseContext> {
        let context = LeaseContext::current();
        let given = request.extensions().get::<LeaseContext>();
        let ids = |context: &LeaseContext| -> Vec<(String, u64)> {
            context.leases().iter().map(|lease| (lease.id().into(), lease.token())).collect()
        };
        let leases = context.as_ref().map_or_else(Vec::new, ids);
        assert_eq!(given.map_or_else(Vec::new, ids), leases, "extensions and task agree");
        let deadline = request.metadata().contains_key("grpc-timeout");
        let _ = self.mouth.send(Told::Called { leases, deadline });
        context
    }

    fn guard(&self, who: &'static str, context: Option<LeaseContext>) -> Result<OnDrop, Status> {
        let context = context.ok_or_else(|| Status::failed_precondition("no lease"))?;
        Ok(OnDrop(who, self.mouth.clone(), context))
    }

    async fn write(&self, context: LeaseContext) -> tenure::Result<()> {
        let put = Put::new(Key::new("entry", "42"), "paid");
        self.store.commit(context.fence(Commit::from(put))).await.map(drop)
    }
}

#[tonic::async_trait]
impl Health for Ledger {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let context = self.heard(&request);
        match request.get_ref().service.as_str() {
            "report" => {}
            "wait" => {
                let _guard = self.guard("ledger", context)?;
                self.go.notified().await;
            }
            "hang" => {
                let _guard = self.guard("ledger", context)?;
                std::future::pending::<()>().await;
            }
            "forward" => {
                let _guard = self.guard("between", context)?;
                let mut next = self.next.clone().ok_or_else(|| Status::internal("nobody"))?;
                return next.check(ask("hang")).await;
            }
            "write" => {
                let context = context.ok_or_else(|| Status::failed_precondition("no lease"))?;
                self.write(context).await.map_err(|error| tenure_proto::status::of(&error))?;
            }
            // Does not care whether anybody still wants it to.
            "ignore" => {
                let guard = self.guard("ledger", context)?;
                let (this, context) = (self.clone(), guard.2.clone());
                tokio::spawn(async move {
                    this.go.notified().await;
                    let wrote = this.write(context).await.map_err(|error| error.code());
                    let _ = this.mouth.send(Told::Wrote(wrote));
                });
                std::future::pending::<()>().await;
            }
            other => return Err(Status::unimplemented(other.to_owned())),
        }
        Ok(done())
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let guard = self.guard("stream", self.heard(&request))?;
        let stream = futures::stream::unfold((guard, 0), |(guard, sent)| async move {
            if sent == 2 {
                std::future::pending::<()>().await;
            }
            // It runs long after the handler has returned, and still knows what it works under.
            let known = LeaseContext::current().map_or(0, |context| context.leases().len());
            Some((Ok(HealthCheckResponse { status: known as i32 }), (guard, sent + 1)))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// Does what it is asked for under a lease of its own, by asking the ledger for it.
pub(crate) struct Front {
    pub(crate) lease: Declared,
    pub(crate) ledger: Client,
    pub(crate) mouth: Mouth,
}

#[tonic::async_trait]
impl Health for Front {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let (mut ledger, what) = (self.ledger.clone(), request.into_inner());
        let ran = self.lease.run("42", |context| async {
            let _guard = OnDrop("front", self.mouth.clone(), context);
            ledger.check(what).await
        });
        let ran = ran.await;
        let text = ran.as_ref().map_or_else(ToString::to_string, |_| "done".into());
        let _ = self.mouth.send(Told::Finished(text.clone()));
        ran.map_err(|_| Status::aborted(text))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("only the ledger streams"))
    }
}
