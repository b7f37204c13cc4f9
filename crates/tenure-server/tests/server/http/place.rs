//! A server on a free port of this host.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure_server::auth::Authenticator;
use tenure_server::{Builder, Server, ServerLimits, Shutdown};
use tenure_sqlite::SqliteStore;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::client::Client;

/// More than anything here takes, and less than anybody wants to wait for a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    serving: JoinHandle<()>,
    folder: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) async fn memory() -> Self {
        Self::over(MemoryStore::new().into_store(), ServerLimits::default()).await
    }

    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("store.db")).unwrap().into_store();
        let place = Self::over(store, ServerLimits::default()).await;
        Self { folder: Some(folder), ..place }
    }

    pub(crate) async fn over(store: Store, limits: ServerLimits) -> Self {
        Self::guarded(store, limits, Authenticator::default()).await
    }

    pub(crate) async fn guarded(
        store: Store,
        limits: ServerLimits,
        authenticator: Authenticator,
    ) -> Self {
        let builder = Server::builder(store.clone()).limits(limits);
        Self::built(store, builder.authenticator(authenticator)).await
    }

    pub(crate) async fn built(store: Store, builder: Builder) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::default();
        let server = builder.shutdown(shutdown.clone()).build().unwrap();
        let serving = tokio::spawn(async move { server.serve(listener).await.unwrap() });
        Self { store, address, shutdown, serving, folder: None }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Begins the end, and waits for it. The store's folder lives on for whoever still needs it.
    pub(crate) async fn end(self) -> Option<tempfile::TempDir> {
        self.shutdown.begin();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("it ends in time").unwrap();
        self.folder
    }
}

/// Asks again until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, asking).await;
    assert!(done.is_ok(), "it never came to pass: {what}");
}
