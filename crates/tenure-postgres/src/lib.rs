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
//! The way of a commit: [`PostgresStore`] → a [`GroupQueue`] → `commit` → `watch` tells the watchers.
//! Touches have a queue of their own (`touch`), and reads need none (`read`).

mod commit;
mod connect;
mod error;
mod gather;
mod options;
mod read;
mod row;
mod shared;
mod sweep;
mod tid;
mod time;
mod touch;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::backend::group_queue::GroupQueue;
use tenure::store::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Notifies, Page, Query, Reach, Store,
    Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Key, Limits, Object, Result};
use tokio::sync::watch as signal;
use tokio::task::JoinHandle;

pub use commit::sql::{SqlError, SqlFuture, sql};
pub use options::Options;
/// The very driver that the store uses, for the closures of [`sql()`].
pub use tokio_postgres;

use commit::committer::{Committer, Work};
use commit::user_sql::{self, UserSessions};
use connect::session::Connector;
use connect::{first_clock, migrate};
use read::Readers;
use shared::Shared;
use sweep::Sweeper;
use time::Timekeeper;
use touch::{LastOut, Toucher, shares};
use watch::listen;
use watch::pump::{self, Pump};

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
        first_clock::agree(&mut opened.listener, &opened.names, &time, patience).await?;
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
            commits: GroupQueue::new(BACKEND),
            touches: GroupQueue::new(BACKEND),
            user_sessions: UserSessions::new(),
            pump: Pump::default(),
            stopping: signal::channel(false).0,
            connector,
        });
        let mut workers = vec![
            shared.connector.home.spawn(listen::run(Arc::clone(&shared), opened.listener)),
            shared.connector.home.spawn(Sweeper::new(Arc::clone(&shared)).run()),
            // One is best: a second one splits the groups, and the server's lock passes between them.
            shared.connector.home.spawn(Committer::new(Arc::clone(&shared)).run()),
        ];
        let last_out = Arc::new(LastOut(Arc::clone(&shared)));
        for _ in 0..TOUCHERS {
            workers.push(shared.connector.home.spawn(Toucher::new(&last_out).run()));
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
            return user_sql::commit(&self.handle.shared, commit).await;
        }
        let bytes = commit.size();
        self.handle.shared.commits.ask(Work::Commit(commit), bytes).await?
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        if touches.is_empty() {
            return Ok(Vec::new());
        }
        shares::touch(&self.handle.shared, touches).await
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
        shared.user_sessions.close().await;
        shared.stopping.send_replace(true);
        let workers = std::mem::take(
            &mut *self.handle.workers.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for worker in workers {
            // A worker that panicked has told those who waited for it.
            let _ = worker.await;
        }
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
