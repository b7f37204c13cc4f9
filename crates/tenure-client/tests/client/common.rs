//! What the tests share: servers on free ports, and short ways to say things.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::Result;
use tenure::store::Store;
use tenure_client::ServerStore;
use tenure_conformance::Failure;
use tenure_server::{Server, ServerLimits, Shutdown};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

pub(crate) type Outcome = std::result::Result<(), Failure>;

/// A server on a runtime of its own. Dropped, it is gone at once, as if killed.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    served: Option<JoinHandle<std::io::Result<()>>>,
    runtime: Option<Runtime>,
}

impl Serving {
    /// On a free port.
    pub(crate) fn start(store: Store) -> Self {
        Self::start_at(store, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// On this port: where another server was before.
    pub(crate) fn start_at(store: Store, address: SocketAddr) -> Self {
        Self::start_with(store, address, ServerLimits::default())
    }

    /// On this port, with limits of its own.
    pub(crate) fn start_with(store: Store, address: SocketAddr, limits: ServerLimits) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let shutdown = Shutdown::default();
        let server = Server::builder(store).shutdown(shutdown.clone()).limits(limits).build();
        let server = server.expect("a server");
        let listener = std::thread::scope(|scope| {
            let bind = || runtime.block_on(TcpListener::bind(address));
            scope.spawn(bind).join().expect("a thread").expect("a free port")
        });
        let address = listener.local_addr().expect("an address");
        let served = runtime.spawn(server.serve(listener));
        Self { address, shutdown, served: Some(served), runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends in an orderly way.
    pub(crate) async fn stop(mut self) -> Outcome {
        self.shutdown.begin();
        if let Some(served) = self.served.take() {
            served.await??;
        }
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

pub(crate) async fn connect(url: &str) -> Result<Store> {
    Ok(ServerStore::connect(url).await?.into_store())
}

/// Looks again and again until it is so.
pub(crate) async fn eventually<F>(what: &str, mut look: impl FnMut() -> F) -> Outcome
where
    F: Future<Output = std::result::Result<bool, Failure>>,
{
    for _ in 0..800 {
        if look().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(Failure::new(format!("not within twenty seconds: {what}")))
}

/// The error of what must not succeed.
#[track_caller]
pub(crate) fn refused<T, E>(result: std::result::Result<T, E>) -> std::result::Result<E, Failure> {
    let failure = Failure::new("it succeeded");
    result.err().ok_or(failure)
}
