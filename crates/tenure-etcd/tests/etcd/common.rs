//! What the tests share: one server, and short ways to say things.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::store::{Put, Store};
use tenure::{Key, Result};
use tenure_conformance::Failure;
pub(crate) use tenure_conformance::OrFail;
use tenure_etcd::EtcdStore;
use tenure_testkit::Etcd;

pub(crate) type Outcome = Result<(), Failure>;

/// The server that all tests share which do not stop it.
#[derive(Clone, Copy)]
pub(crate) struct Server(pub(crate) &'static Etcd);

impl Server {
    /// The server itself, to be kept until all trials have run, and a handle to it.
    pub(crate) fn shared() -> Self {
        // Without a server there is nothing to test, and that is a failure.
        let server = Etcd::start().unwrap_or_else(|error| panic!("{error:#}"));
        Self(Box::leak(Box::new(server)))
    }

    /// The address of a store that nobody else uses.
    pub(crate) fn fresh(self) -> String {
        static STORES: AtomicU32 = AtomicU32::new(0);
        self.0.url(&format!("test-{}", STORES.fetch_add(1, Ordering::Relaxed)))
    }
}

pub(crate) async fn connect(url: &str) -> Result<Store> {
    Ok(EtcdStore::connect(url).await?.into_store())
}

pub(crate) fn key(id: impl Into<String>) -> Key {
    Key::new("thing", id)
}

pub(crate) fn put(id: impl Into<String>, payload: &str) -> Put {
    Put::new(key(id), payload.to_owned())
}

/// Looks again and again until it is so.
pub(crate) async fn eventually<F>(what: &str, mut look: impl FnMut() -> F) -> Outcome
where
    F: Future<Output = Result<bool, Failure>>,
{
    for _ in 0..800 {
        if look().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(Failure::new(format!("not within twenty seconds: {what}")))
}
