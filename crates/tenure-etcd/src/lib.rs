//! Tenure's store on etcd.
//!
//! ```no_run
//! # async fn example() -> tenure::Result<()> {
//! use tenure_etcd::EtcdStore;
//!
//! let store = EtcdStore::connect("etcd://one:2379,two:2379,three:2379/app").await?.into_store();
//! # Ok(())
//! # }
//! ```
//!
//! A commit is one etcd transaction, a time to live is an etcd lease of the object's own, a watch is
//! a watch, and `version`, `revision` and `created_revision` are etcd's own numbers. A lease that
//! nobody holds is taken in one round trip.
//!
//! The way of a commit: [`EtcdStore`] → `snapshot` (guessed from `cache`, or read) → the decision of
//! all backends → `txn` (the transaction, with etcd leases from `lease_pool`) → `commit` (sent, confirmed,
//! or decided again). `endpoints` chooses the server, `connection` talks to it, `keep_alive` keeps leases
//! alive on it, and `confirmed` says when a keep-alive counts.

mod cache;
mod commit;
mod confirmed;
mod connection;
mod endpoints;
mod error;
mod inner;
mod keep_alive;
mod keys;
mod lease_pool;
mod messages;
mod options;
mod read;
mod snapshot;
mod stored;
mod tls;
mod touch;
mod txn;
mod watch;
mod writer_level;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Notifies, Page, Query, Reach, Store,
    Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Key, Limits, Object, Result};

pub use options::Options;

use cache::Cache;
use endpoints::Endpoints;
use inner::{Inner, Local};
use keys::Keys;
use lease_pool::LeasePool;
use tenure::backend::home::Home;

/// The name in errors and capabilities.
const BACKEND: &str = "etcd";

/// A store on etcd. Cheap to clone; its background work ends with the last clone.
#[derive(Clone)]
pub struct EtcdStore {
    inner: Arc<Inner>,
    capabilities: Arc<Capabilities>,
}

impl EtcdStore {
    /// Connects to the servers of an address; see [`Options::parse`] for its form.
    ///
    /// # Errors
    /// Says what to do: wrong address, wrong password, no server that is part of a majority, or a
    /// store that demands a newer program.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(Options::parse(url)?).await
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`EtcdStore::connect`].
    pub async fn connect_with(options: Options) -> Result<Self> {
        let options = Arc::new(options);
        let home = Arc::new(Home::start(BACKEND)?);
        let here = Arc::new(Home::here());
        let endpoints = Endpoints::new(Arc::clone(&options), Arc::clone(&home));
        let leases = LeasePool::new(Arc::clone(&endpoints));
        let inner = Arc::new(Inner {
            keys: Keys::new(&options.prefix),
            watch_endpoints: Endpoints::new(Arc::clone(&options), Arc::clone(&home)),
            local: Local { endpoints: Endpoints::new(options, Arc::clone(&here)), home: here },
            leases,
            cache: Cache::default(),
            writer: AtomicI64::new(0),
            endpoints,
        });
        inner.check_level().await?;
        inner.local.endpoints.connection(inner.local.endpoints.deadline()).await?;
        let mut capabilities = capabilities();
        let shortest = inner.leases.shortest(inner.endpoints.deadline()).await?;
        capabilities.ttl = capabilities
            .ttl
            .map(|ttl| Ttl { min: ttl.min.max(Duration::from_secs(shortest)), ..ttl });
        capabilities.replicas = inner.members().await;
        inner.leases.start_upkeep(&home);
        Ok(Self { inner, capabilities: Arc::new(capabilities) })
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }
}

/// What a store on etcd promises, on servers with default settings.
pub fn capabilities() -> Capabilities {
    Capabilities {
        backend: BACKEND,
        kinds: tenure::store::Kinds::Any,
        multi_object_commits: true,
        names: true,
        labels: true,
        ttl: Some(Ttl { min: Duration::from_secs(2), granularity: Duration::from_secs(1) }),
        touch_keeps_revision: true,
        user_sql: false,
        // Until somebody compacts it.
        history: Some(Duration::ZERO),
        notifies: Notifies::Everywhere,
        expiry_clock: ExpiryClock::Server,
        reach: Reach::Network,
        durability: Durability::Flushed,
        replicas: None,
        limits: Limits {
            // A put may write its object, a new name and an old one; a transaction takes 128.
            commit_operations: 42,
            // A request takes 1.5 MiB, labels and names included.
            payload_bytes: 1024 * 1024,
            commit_bytes: 1024 * 1024,
            ..Limits::DEFAULT
        },
    }
}

#[async_trait]
impl Backend for EtcdStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.inner.list(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.inner.commit(&commit).await
    }

    /// Every step of a commit is given what is left of this.
    fn commit_within(&self) -> Option<Duration> {
        Some(self.inner.endpoints.options.timeout)
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        if touches.is_empty() {
            return Ok(Vec::new());
        }
        self.inner.touch(&touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        watch::watch(&self.inner, request).await
    }

    async fn close(&self) {
        self.inner.leases.revoke_all().await;
        self.inner.endpoints.close();
        self.inner.local.endpoints.close();
        self.inner.watch_endpoints.close();
    }
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdStore").finish_non_exhaustive()
    }
}
