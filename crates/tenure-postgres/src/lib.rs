//! Tenure's store on Postgres.
//!
//! ```no_run
//! # async fn example() -> tenure::Result<()> {
//! use tenure_postgres::PostgresStore;
//!
//! let store = PostgresStore::connect("postgres://user:password@localhost/app").await?.into_store();
//! # Ok(())
//! # }
//! ```
//!
//! Any number of processes may share one database. Commits are strictly serial through one counter
//! row, so revision order is commit order; each process merges all commits that wait into one
//! transaction, so many callers share one flush. Objects live in the table `objects`, what happened
//! to them in `tenure_events`, and the counter in `tenure_meta`; connecting makes these tables, or
//! adopts a table `objects` from before revisions existed.
//!
//! A commit can run SQL of your own in its transaction: see [`sql()`].
//!
//! The way of a commit: [`PostgresStore`] → `queue` → `group` → `transaction` (lock, load, decide,
//! write, commit) → `pump` tells the watchers. A group of simple puts whose rows are `known` goes by
//! `flight` and `quick` instead of `transaction`. A commit that carries SQL goes by `guest` instead of `queue` and
//! `group`.

mod apply;
mod concerned;
mod connection;
mod error;
mod flight;
mod group;
mod guest;
mod history;
mod known;
mod list;
mod listen;
mod migrate;
mod newcomer;
mod options;
mod outlet;
mod overlay;
mod pace;
mod pump;
mod queue;
mod quick;
mod read;
mod row;
mod shared;
mod spread;
mod sql;
mod sweep;
mod tid;
mod time;
mod tls;
mod touch;
mod transaction;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Notifies, Page, Query, Reach, Store,
    Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Key, Limits, Object, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use options::Options;
pub use sql::{SqlError, SqlFuture, sql};
/// The very driver that the store uses, for the closures of [`sql()`].
pub use tokio_postgres;

use connection::Connector;
use group::{Committer, Work};
use guest::Guests;
use pump::Pump;
use queue::Queue;
use read::Readers;
use shared::Shared;
use sweep::Sweeper;
use time::Timekeeper;
use touch::Toucher;

/// The name in errors and capabilities.
const BACKEND: &str = "postgres";
/// Sessions that touch.
const TOUCHERS: usize = 2;

/// A store on Postgres. Cheap to clone; its background work ends with the last clone.
#[derive(Clone)]
pub struct PostgresStore {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl PostgresStore {
    /// Connects with default options, and makes or upgrades the tables if need be.
    ///
    /// # Errors
    /// Says what to do: wrong address, wrong password, missing database, unreachable server, a
    /// standby, or tables that demand a newer program.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Self> {
        let connector = Connector::new(url, options)?;
        let mut opened = migrate::migrate(&connector).await?;
        let options = &connector.options;
        // The first look at the clock: from here on, steps of it are noticed.
        let time = Timekeeper::new(Arc::clone(&options.clock));
        let patience = options.reply_timeout;
        newcomer::agree(&mut opened.line, &opened.names, &time, patience).await?;
        let mut capabilities = capabilities();
        capabilities.history = Some(options.history);
        if !opened.flushes {
            tracing::warn!("the server runs with fsync off: a crash may lose acknowledged commits");
            capabilities.durability = Durability::Server;
        }
        let shared = Arc::new(Shared {
            time,
            readers: Readers::new(options.read_connections),
            names: opened.names,
            commits: Queue::new(),
            touches: Queue::new(),
            guests: Guests::new(),
            pump: Pump::default(),
            stopping: watch::channel(false).0,
            connector,
        });
        let mut workers = vec![
            shared.connector.home.spawn(listen::run(Arc::clone(&shared), opened.line)),
            shared.connector.home.spawn(Sweeper::new(Arc::clone(&shared)).run()),
            // One is best: a second one splits the groups, and the server's lock passes between them.
            shared.connector.home.spawn(Committer::new(Arc::clone(&shared)).run()),
        ];
        for _ in 0..TOUCHERS {
            workers.push(shared.connector.home.spawn(Toucher::new(Arc::clone(&shared)).run()));
        }
        let handle = Handle { shared, capabilities, workers: Mutex::new(workers) };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }
}

/// Makes or upgrades the tables and does nothing else, for a deployment that gives its programs no
/// right to.
///
/// # Errors
/// As [`PostgresStore::connect`].
pub async fn migrate(url: &str, options: Options) -> Result<()> {
    migrate::migrate(&*Connector::new(url, options)?).await.map(|_| ())
}

/// What a Postgres store promises with default options on a server that flushes to disk.
pub fn capabilities() -> Capabilities {
    Capabilities {
        backend: BACKEND,
        kinds: tenure::store::Kinds::Any,
        multi_object_commits: true,
        names: true,
        labels: true,
        ttl: Some(Ttl { min: Duration::from_millis(1), granularity: Duration::from_millis(1) }),
        touch_keeps_revision: true,
        user_sql: true,
        history: Some(Options::new().history),
        notifies: Notifies::Everywhere,
        expiry_clock: ExpiryClock::Database,
        reach: Reach::Network,
        durability: Durability::Flushed,
        replicas: None,
        limits: Limits::DEFAULT,
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.commits.close();
        self.shared.touches.close();
        self.shared.stopping.send_replace(true);
    }
}

#[async_trait]
impl Backend for PostgresStore {
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
        if !commit.attachments.is_empty() {
            return guest::commit(&self.handle.shared, commit).await;
        }
        let bytes = commit.size();
        self.handle.shared.commits.ask(Work::Commit(commit), bytes).await?
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        if touches.is_empty() {
            return Ok(Vec::new());
        }
        spread::touch(&self.handle.shared, touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let watch = pump::watch(&self.handle.shared, request).await?;
        // A watch keeps the store open: one that nobody feeds would be silent for ever.
        Ok(watch.keeping(Arc::clone(&self.handle)))
    }

    async fn close(&self) {
        let shared = &self.handle.shared;
        shared.commits.close();
        shared.touches.close();
        shared.guests.close().await;
        shared.stopping.send_replace(true);
        let workers = std::mem::take(
            &mut *self.handle.workers.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for worker in workers {
            // A worker that panicked has nothing left to finish.
            let _ = worker.await;
        }
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
