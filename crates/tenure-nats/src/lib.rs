//! Tenure's store on NATS JetStream: one key-value bucket, shared by any number of processes.
//!
//! ```no_run
//! # async fn example() -> tenure::Result<()> {
//! use tenure_nats::NatsStore;
//!
//! let store = NatsStore::connect("nats://localhost/tenure?replicas=3").await?.into_store();
//! # Ok(())
//! # }
//! ```
//!
//! An object is the last message of a subject; its revision is the sequence of the message that last
//! changed it. Every write names the sequence that it replaces, so the server's answer is the only
//! thing that decides. The server also judges lives and leaves a marker behind each that ends.
//! A commit concerns one object: more than that NATS does not do atomically for a plain bucket, so it
//! is refused.
//!
//! The way of a commit: [`NatsStore`] → `commit` (what is in the `cache`, or a read; the shared rules) →
//! `publish` (one message) → `connection` → the server; and back: the server republishes → `watch` →
//! the watches.

mod bucket;
mod cache;
mod commit;
mod connection;
mod credentials;
mod envelope;
mod monitor;
mod options;
mod publish;
mod read;
mod recent_deletes;
mod server_choice;
mod server_time;
mod shared;
mod stored;
mod stream_info;
mod subject;
mod touch;
mod url;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Notifies, Page, Query, Reach, Store,
    Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Key, Limits, Object, Result};

pub use options::{Options, Sync};

use connection::Connection;
use shared::Shared;

/// The name in errors and capabilities.
const BACKEND: &str = "nats";
/// What a message holds besides a payload, at most: labels, numbers, headers.
const OVERHEAD_BYTES: usize = 64 * 1024;
/// The most a server takes in one message unless it is told otherwise.
const MAX_PAYLOAD: usize = 1024 * 1024;

/// A store on NATS. Cheap to clone; its connection ends with the last clone.
#[derive(Clone)]
pub struct NatsStore {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    capabilities: Capabilities,
}

impl NatsStore {
    /// Connects with default options, and makes the bucket if it is not there.
    ///
    /// # Errors
    /// Says what to do: wrong address or login, a server that is too old, a bucket whose settings
    /// are unsafe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`NatsStore::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Self> {
        let (target, options) = url::parse(url, options)?;
        let connection = Connection::open(&target, options).await?;
        let info = bucket::open(&connection).await?;
        let mut capabilities = capabilities();
        capabilities.durability = monitor::durability(&info, &connection).await?;
        capabilities.replicas = u32::try_from(connection.replicas()).ok();
        let room = connection.client.max_payload().saturating_sub(OVERHEAD_BYTES);
        let limits = &mut capabilities.limits;
        limits.payload_bytes = limits.payload_bytes.min(room);
        tracing::debug!(bucket = target.bucket, replicas = connection.replicas(), "connected");
        let shared = Arc::new(Shared::new(connection));
        Ok(Self { handle: Arc::new(Handle { shared, capabilities }) })
    }

    /// How many servers keep the bucket. One that fails takes the store along if it is alone.
    pub fn replicas(&self) -> usize {
        self.handle.shared.replicas()
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }
}

/// What a NATS store promises on a server with default settings. How many servers keep the bucket is
/// read from it. When they flush is read from the server's monitoring endpoint or stated in the URL;
/// else it is declared to be the server's business.
pub fn capabilities() -> Capabilities {
    let second = Duration::from_secs(1);
    Capabilities {
        backend: BACKEND,
        kinds: tenure::store::Kinds::Any,
        multi_object_commits: false,
        names: false,
        labels: true,
        ttl: Some(Ttl { min: second, granularity: second }),
        touch_keeps_revision: true,
        user_sql: false,
        history: None,
        notifies: Notifies::Everywhere,
        expiry_clock: ExpiryClock::Server,
        reach: Reach::Network,
        durability: Durability::Server,
        replicas: None,
        limits: Limits {
            payload_bytes: MAX_PAYLOAD - OVERHEAD_BYTES,
            touches: 1_000,
            ..Limits::DEFAULT
        },
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
        self.shared.watches.close();
    }
}

#[async_trait]
impl Backend for NatsStore {
    fn capabilities(&self) -> &Capabilities {
        &self.handle.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.handle.shared.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.handle.shared.list(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.handle.shared.commit(&commit).await
    }

    fn commit_within(&self) -> Option<Duration> {
        Some(self.handle.shared.commit_within())
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.handle.shared.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let watch = self.handle.shared.watch(request).await?;
        // A watch keeps the store open: one that nobody feeds would be silent for ever.
        Ok(watch.keeping(Arc::clone(&self.handle)))
    }

    async fn close(&self) {
        let shared = &self.handle.shared;
        shared.close();
        shared.watches.close();
        shared.disconnect().await;
    }
}

impl std::fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsStore").field("replicas", &self.replicas()).finish_non_exhaustive()
    }
}
