//! Tenure's store on Kubernetes: leases, slots and election as `coordination.k8s.io/v1` Leases.
//!
//! ```no_run
//! # async fn example() -> tenure::Result<()> {
//! use tenure_kubernetes::KubernetesStore;
//!
//! let store = KubernetesStore::connect("kubernetes://jobs").await?.into_store();
//! # Ok(())
//! # }
//! ```
//!
//! A held lease is a Lease that `kubectl get leases` shows like any elector's: its holder, its times,
//! its transitions. Electors built on client-go see our holders and are seen by them; each respects
//! the other's. The store keeps leases and nothing else: general objects are refused.
//!
//! Expiry is judged by each observer on its own steady clock, from the first sight of a record that
//! then does not change; no two clocks are ever compared. A token is the resourceVersion at which a
//! tenure began: etcd's revision, which rises with every write to the cluster, also when a Lease is
//! deleted and created anew.
//!
//! The way of a commit: [`KubernetesStore`] → `commit` (read, decide, PUT with resourceVersion and
//! uid) → `api`. `record` says what a Lease means and `name` what it is called, `observe` remembers
//! since when each was seen, `reflector` tells the watchers.

mod account;
mod api;
mod cache;
mod cleanup;
mod commit;
mod connect;
mod error;
mod event_log;
mod list;
mod name;
mod observe;
mod options;
mod record;
mod reflector;
mod runtime;
mod shared;
mod touch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::lease::LEASE;
use tenure::store::{
    Capabilities, Capability, Commit, Committed, Durability, ExpiryClock, Notifies, Page, Query,
    Reach, Store, Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Error, Key, Limits, Object, Result};
use tokio::sync::{Semaphore, watch};

pub use options::Options;

use api::Api;
use error::Failure;
use name::Names;
use observe::Observations;
use reflector::Reflector;
use runtime::StoreRuntime;
use shared::{DELETIONS, Shared, row};

/// The name in errors and capabilities.
const BACKEND: &str = "kubernetes";

/// How long connecting may take, a program that hands out credentials included.
const CONNECTING: Duration = Duration::from_secs(30);
/// How long closing waits for deletions that are on their way.
const FINISHING: Duration = Duration::from_secs(2);

/// A store on Kubernetes. Cheap to clone; its background work ends with the last clone.
#[derive(Clone)]
pub struct KubernetesStore {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    runtime: StoreRuntime,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stopping.send_replace(true);
    }
}

impl KubernetesStore {
    /// Connects to a URL as [`Options::from_url`] takes it.
    ///
    /// # Errors
    /// Says what to do: no kubeconfig, an unreachable server, missing rights.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(Options::from_url(url)?).await
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`KubernetesStore::connect`].
    pub async fn connect_with(options: Options) -> Result<Self> {
        let names = Names::new(&options.prefix).ok_or_else(|| {
            Error::invalid(
                format!("prefix {:?}", options.prefix),
                "names of Leases begin with it: lower-case letters, digits, '-' and '.'",
            )
        })?;
        let runtime = StoreRuntime::start()?;
        let (clock, idle) = (Arc::clone(&options.clock), options.idle);
        let connecting = runtime.run(async move {
            let connected = connect::connect(&options).await?;
            let api = Api::new(connected, options.request_timeout, options.watch_time);
            // Whether it answers, whether we may list, and whether tokens can be ordered.
            wire::revision(&api.head().await.map_err(Failure::of_read)?)?;
            Ok(api)
        });
        let api = tokio::time::timeout(CONNECTING, connecting).await.unwrap_or_else(|_| {
            Err(Error::unavailable(BACKEND, format!("not connected within {CONNECTING:?}")))
        })?;
        let shared = Arc::new(Shared {
            api,
            names,
            seen: Observations::default(),
            clock,
            idle,
            deletions: Arc::new(Semaphore::new(DELETIONS)),
            reflector: Reflector::default(),
            stopping: watch::channel(false).0,
        });
        let handle = Handle { shared, capabilities: capabilities(), runtime };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }

    /// Does this on the store's own thread, if the store is open.
    async fn run<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.handle.shared.check_open()?;
        self.handle.runtime.run(work(Arc::clone(&self.handle.shared))).await
    }
}

/// What a Kubernetes store promises.
pub fn capabilities() -> Capabilities {
    let second = Duration::from_secs(1);
    Capabilities {
        backend: BACKEND,
        kinds: tenure::store::Kinds::Only(LEASE),
        multi_object_commits: false,
        names: false,
        labels: false,
        ttl: Some(Ttl { min: second, granularity: second }),
        touch_keeps_revision: false,
        user_sql: false,
        history: None,
        notifies: Notifies::Everywhere,
        expiry_clock: ExpiryClock::Observer,
        reach: Reach::Network,
        durability: Durability::Server,
        replicas: None,
        limits: Limits {
            // All annotations of an object together may have 256 KiB, and base64 takes a third more.
            payload_bytes: 64 * 1024,
            // A PUT each.
            touches: 100,
            ..Limits::DEFAULT
        },
    }
}

/// This store keeps leases; of the other kinds of the lease machinery it has none.
fn is_kept(kind: &str) -> bool {
    kind == LEASE
}

fn only_leases(commit: &Commit) -> Result<()> {
    let checks = commit.checks.iter().map(|check| &check.key);
    let mut keys = checks.chain(commit.writes.iter().map(tenure::store::Write::key));
    if keys.all(|key| is_kept(&key.kind)) {
        return Ok(());
    }
    Err(Error::Unsupported { capability: Capability::Objects, backend: BACKEND })
}

#[async_trait]
impl Backend for KubernetesStore {
    fn capabilities(&self) -> &Capabilities {
        &self.handle.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        if !is_kept(&key.kind) {
            return Ok(None);
        }
        let id = key.id.clone();
        self.run(|shared| async move {
            let name = shared.names.encode(&id);
            let Some(read) = shared.read(&name).await? else { return Ok(None) };
            let row = row(&read.lease, read.sight, &id)?;
            Ok(row.and_then(|row| row.read(shared.now().store_ms)))
        })
        .await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        self.run(|shared| async move { list::list(&shared, &query).await }).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        only_leases(&commit)?;
        self.run(|shared| async move { commit::commit(&shared, &commit).await }).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.run(|shared| async move { Ok(touch::touch(&shared, touches).await) }).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.handle.shared.check_open()?;
        let watch = reflector::watch(&self.handle.shared, &self.handle.runtime, request).await?;
        // A watch keeps the store open: one that nobody feeds would be silent for ever.
        Ok(watch.keeping(Arc::clone(&self.handle)))
    }

    async fn close(&self) {
        let shared = Arc::clone(&self.handle.shared);
        shared.stopping.send_replace(true);
        // All the room there is, once nobody needs it any more.
        let rest = u32::try_from(DELETIONS).unwrap_or(u32::MAX);
        let settled = async move { Ok(shared.deletions.acquire_many(rest).await.is_ok()) };
        let _ = tokio::time::timeout(FINISHING, self.handle.runtime.run(settled)).await;
    }
}

impl std::fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesStore").finish_non_exhaustive()
    }
}
