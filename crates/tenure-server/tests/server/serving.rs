//! What the tests share: servers on free ports, and short ways to say things.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure_proto::v1;
use tenure_proto::v1::elections_client::ElectionsClient;
use tenure_proto::v1::leases_client::LeasesClient;
use tenure_proto::v1::slots_client::SlotsClient;
use tenure_proto::v1::store_client::StoreClient;
use tenure_server::auth::tls;
use tenure_server::{Builder, Server, ServerLimits, Shutdown};
use tenure_sqlite::SqliteStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::auth::rig::Ca;

pub(crate) type Leases = LeasesClient<Channel>;

/// Nothing in these tests takes longer.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A server on a runtime of its own. Dropped, it is gone at once, as if killed.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    served: Option<JoinHandle<std::io::Result<()>>>,
    runtime: Option<Runtime>,
}

impl Serving {
    pub(crate) async fn start(store: &Store) -> Result<Self> {
        Self::start_with(store, ServerLimits::default(), Duration::from_secs(10)).await
    }

    pub(crate) async fn limited(limits: ServerLimits) -> Result<Self> {
        let store = MemoryStore::new().into_store();
        Self::start_with(&store, limits, Duration::from_secs(10)).await
    }

    pub(crate) async fn start_with(
        store: &Store,
        limits: ServerLimits,
        grace: Duration,
    ) -> Result<Self> {
        Self::run(Server::builder(store.clone()).limits(limits).grace(grace)).await
    }

    /// With TLS, by a certificate of this authority.
    pub(crate) async fn with_tls(ca: &Ca, limits: ServerLimits) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [certificate, key] = ["server.pem", "server.key"].map(|name| folder.path().join(name));
        let (pem, secret) = ca.for_server();
        std::fs::write(&certificate, pem)?;
        std::fs::write(&key, secret)?;
        let tls = tls::server_config(&certificate, &key, None)?;
        Self::run(Server::builder(MemoryStore::new().into_store()).tls(tls).limits(limits)).await
    }

    async fn run(builder: Builder) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let shutdown = Shutdown::default();
        let server = builder.shutdown(shutdown.clone()).build()?;
        let bound = runtime.spawn(TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))));
        let listener = bound.await??;
        let address = listener.local_addr()?;
        let served = Some(runtime.spawn(server.serve(listener)));
        Ok(Self { address, shutdown, served, runtime: Some(runtime) })
    }

    pub(crate) async fn channel(&self) -> Result<Channel> {
        channel(self.address.port()).await
    }

    pub(crate) async fn leases(&self) -> Result<Leases> {
        Ok(LeasesClient::new(self.channel().await?))
    }

    pub(crate) async fn slots(&self) -> Result<SlotsClient<Channel>> {
        Ok(SlotsClient::new(self.channel().await?))
    }

    pub(crate) async fn elections(&self) -> Result<ElectionsClient<Channel>> {
        Ok(ElectionsClient::new(self.channel().await?))
    }

    pub(crate) async fn store(&self) -> Result<StoreClient<Channel>> {
        Ok(StoreClient::new(self.channel().await?))
    }

    /// Resolves when no watch, session or exchange is open any more, as its metrics tell.
    pub(crate) async fn without_streams(&self) -> Result<()> {
        eventually("no stream is open", || async {
            let mut stream = TcpStream::connect(self.address).await?;
            let request = "GET /metrics HTTP/1.1\r\nhost: tenure\r\nconnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await?;
            let mut told = String::new();
            stream.read_to_string(&mut told).await?;
            ensure!(told.contains("tenure_server_streams "), "{told}");
            Ok(told.contains("\ntenure_server_streams 0\n"))
        })
        .await
    }

    /// Waits for the end that was begun.
    pub(crate) async fn ended(mut self) -> Result<()> {
        self.wait().await
    }

    /// The same, and keeps its runtime.
    pub(crate) async fn wait(&mut self) -> Result<()> {
        let served = self.served.take().context("it has ended already")?;
        tokio::time::timeout(SOON, served).await.context("it does not end")???;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A connection of its own to a port of this host.
pub(crate) async fn channel(port: u16) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.connect().await?)
}

/// The same test on every store that lives here.
pub(crate) async fn on_each<F>(test: impl Fn(Store) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    test(MemoryStore::new().into_store()).await.context("on memory")?;
    let folder = tempfile::tempdir()?;
    let sqlite = SqliteStore::open(folder.path().join("a.db"))?.into_store();
    test(sqlite).await.context("on sqlite")
}

/// Looks again and again until it is so.
pub(crate) async fn eventually<F>(what: &str, mut look: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    for _ in 0..800 {
        if look().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bail!("not within twenty seconds: {what}")
}

/// Terms of an owner who does not wait.
pub(crate) fn terms(owner: &str) -> v1::Terms {
    v1::Terms { owner: owner.into(), ttl_ms: 10_000, ..v1::Terms::default() }
}

/// Terms of an owner who waits for as long as a test may take.
pub(crate) fn waiting(owner: &str) -> v1::Terms {
    v1::Terms { wait_ms: 20_000, ..terms(owner) }
}

/// Asks for a scope.
pub(crate) async fn acquire(
    leases: &Leases,
    scope: &str,
    terms: v1::Terms,
) -> Result<v1::LeaseGrant, Status> {
    let request = v1::AcquireRequest { scope: scope.into(), terms: Some(terms) };
    let granted = leases.clone().acquire(request).await?.into_inner();
    assert!(granted.remaining_ms > 0, "granted for no time: {granted:?}");
    granted.grant.ok_or_else(|| Status::internal("no grant"))
}

/// Somebody who asks for a scope meanwhile.
pub(crate) fn asking(
    leases: &Leases,
    scope: &str,
    terms: v1::Terms,
) -> JoinHandle<Result<v1::LeaseGrant, Status>> {
    let (leases, scope) = (leases.clone(), scope.to_owned());
    tokio::spawn(async move { acquire(&leases, &scope, terms).await })
}

pub(crate) async fn release(leases: &Leases, grant: &v1::LeaseGrant) -> Result<(), Status> {
    let request = v1::ReleaseRequest { grant: Some(grant.clone()), outcome: None };
    leases.clone().release(request).await.map(drop)
}

pub(crate) async fn show(leases: &Leases, scope: &str) -> Result<v1::ShowResponse, Status> {
    Ok(leases.clone().show(v1::ShowRequest { scope: scope.into() }).await?.into_inner())
}

/// Who holds a scope, as `name#start`.
pub(crate) async fn holder(leases: &Leases, scope: &str) -> Result<Option<String>, Status> {
    Ok(show(leases, scope).await?.holder.map(|lease| lease.holder))
}

/// Resolves when so many wait for a scope.
pub(crate) async fn in_line(leases: &Leases, scope: &str, count: usize) -> Result<()> {
    let look = || async { Ok(show(leases, scope).await?.waiters.len() == count) };
    eventually(&format!("{count} wait for {scope}"), look).await
}

/// The whole error in a status, which must have this code and this word.
pub(crate) fn told<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    code: Code,
    word: &str,
) -> Result<v1::Error> {
    let status = match answer {
        Ok(answer) => bail!("{word} was expected, not {answer:?}"),
        Err(status) => status,
    };
    let error = tenure_proto::status::error(&status);
    let error = error.with_context(|| format!("no details in {status:?}"))?;
    if status.code() != code || error.code != word {
        bail!("{word} was expected, not {status:?}: {error:?}");
    }
    Ok(error)
}

/// What comes next on a stream.
pub(crate) async fn next<T>(stream: &mut tonic::Streaming<T>) -> Result<Option<T>, Status> {
    let next = tokio::time::timeout(SOON, stream.message()).await;
    next.unwrap_or_else(|_| Err(Status::deadline_exceeded("nothing came")))
}

/// What a task that must end soon ends with.
pub(crate) async fn end_of<T>(task: JoinHandle<T>) -> Result<T> {
    Ok(tokio::time::timeout(SOON, task).await.context("it does not end")??)
}
