//! Tenure's store in one SQLite file: embedded, durable, shared by the processes of one host.
//!
//! - Every acknowledged commit is flushed to disk; one writer thread makes one flush serve all the
//!   callers that wait, so throughput grows with concurrency.
//! - Several processes may open the same file. They see each other's commits at once, and their
//!   watchers are told by the kernel.
//! - Expiry goes by the host's uptime, never by its wall clock.
//! - A commit can run SQL of your own in its transaction: see [`sql()`].
//! - A database made with the documents' older table is taken over when it is opened.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().join("tenure.db");
//! use tenure::{Key, store::Put};
//!
//! let store = tenure_sqlite::SqliteStore::open(&path)?.into_store();
//! store.commit(Put::new(Key::new("order", "1001"), "new")).await?;
//! assert_eq!(store.get(&Key::new("order", "1001")).await?.map(|o| o.version), Some(1));
//! # Ok(())
//! # }
//! ```

mod apply;
mod error;
mod fair_lock;
mod group;
mod group_wait;
mod guard;
mod history;
mod known;
mod old_table;
mod options;
mod pump;
mod queue;
mod read;
mod rows;
mod schema;
mod sql;
mod transaction;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::local::refuse_remote;
use tenure::backend::wake::FileWatcher;
use tenure::backend::{Backend, Feed, FeedLimits, History};
use tenure::store::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Notifies, Page, Query, Reach, Store,
    Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Error, Key, Limits, Object, Result};

use error::{BACKEND, definite};
pub use options::Options;
use pump::Pump;
use queue::WriterHandle;
use read::{Found, Readers};
/// The very SQLite that the store uses, for the closures of [`sql()`].
pub use rusqlite;
pub use sql::{SqlError, sql};

/// So often a read is done again at most; lives that end faster than that are in doubt for ever.
const DOUBTS: usize = 8;

/// A store in one SQLite file.
pub struct SqliteStore {
    capabilities: Capabilities,
    writer: Arc<WriterHandle>,
    readers: Arc<Readers>,
    /// Made by the first watch: a store that nobody watches follows nothing.
    feed: Arc<OnceLock<Arc<Feed>>>,
    following: Mutex<Option<(Arc<Pump>, FileWatcher)>>,
    log: PathBuf,
    poll_every: Duration,
}

impl SqliteStore {
    /// Opens the file with the default settings, creating or migrating it where needed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::new(path).open()
    }

    pub(crate) fn open_with(mut options: Options) -> Result<Self> {
        refuse_remote(BACKEND, &options.path, options.allow_network_filesystem)?;
        let mut conn = schema::connect(&options, true).map_err(definite)?;
        let time = schema::prepare(&mut conn, &options)?;
        // SQLite follows links, and puts its log beside what they lead to.
        options.path = options.path.canonicalize().unwrap_or(options.path);
        let feed = Arc::new(OnceLock::new());
        let settled_ms = Arc::new(AtomicI64::new(i64::MIN));
        let (settled, fed) = (Arc::clone(&settled_ms), Arc::clone(&feed));
        let writer = writer::spawn(conn, time.clone(), settled, fed, &options)?;
        Ok(Self {
            capabilities: Capabilities { history: Some(options.history), ..capabilities() },
            writer: Arc::new(writer),
            feed,
            following: Mutex::new(None),
            log: options.log(),
            poll_every: options.poll_every,
            readers: Readers::new(options, time, settled_ms),
        })
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }

    /// Reads again what is in doubt, behind all transactions that are under way.
    async fn certain<T, F>(&self, read: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<Found<T>>>,
    {
        for _ in 0..DOUBTS {
            let (found, in_doubt) = read().await?;
            if !in_doubt {
                return Ok(found);
            }
            // A transaction of our own, which also removes what has expired.
            if let Err(error) = self.writer.touch(Vec::new()).await {
                // It may have been begun, though it came to nothing: on a full disk, for one.
                let (found, in_doubt) = read().await?;
                return if in_doubt { Err(error) } else { Ok(found) };
            }
        }
        Ok(read().await?.0)
    }

    /// The feed, followed and up to date.
    fn follow(&self) -> Result<Arc<Feed>> {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some((pump, _)), Some(feed)) = (following.as_ref(), self.feed.get()) {
            pump.catch_up()?;
            return Ok(Arc::clone(feed));
        }
        let head =
            self.readers.run_blocking(|conn, _| transaction::revision(conn).map_err(definite))?;
        let feed = self.feed.get_or_init(|| Arc::new(Feed::new(head, FeedLimits::default())));
        let (readers, writer) = (Arc::clone(&self.readers), Arc::clone(&self.writer));
        let (feed_too, log) = (Arc::clone(feed), self.log.clone());
        let (pump, watcher) = Pump::start(readers, feed_too, writer, log, self.poll_every)?;
        // What others wrote before anybody watched here expires too.
        self.writer.look();
        // The writer may have committed between the look at the head and the feed's appearance.
        pump.catch_up()?;
        *following = Some((pump, watcher));
        Ok(Arc::clone(feed))
    }
}

/// What a SQLite store promises with its default settings.
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
        history: Some(Duration::from_secs(600)),
        notifies: Notifies::Host,
        expiry_clock: ExpiryClock::Host,
        reach: Reach::Host,
        durability: Durability::Flushed,
        replicas: Some(1),
        limits: Limits::DEFAULT,
    }
}

#[async_trait]
impl Backend for SqliteStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.certain(|| self.readers.get(key)).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.certain(|| self.readers.list(query)).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.writer.commit(commit).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.writer.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let feed = self.follow()?;
        if let Some(after) = request.after.filter(|after| *after < feed.floor()) {
            // Said now rather than with the first event: the caller can list again at once.
            let history =
                self.readers.run_blocking(|conn, _| history::batches_after(conn, after, 1));
            if let Err(error @ Error::Compacted { .. }) = history {
                return Err(error);
            }
        }
        let history: Arc<dyn History> = self.readers.clone();
        feed.watch(request, Some(history))
    }

    async fn close(&self) {
        self.writer.close().await;
        self.readers.close();
        let following = self.following.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(following);
        if let Some(feed) = self.feed.get() {
            feed.close(Error::unavailable(BACKEND, "the store was closed"));
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Nobody tells the watchers of anything any more, so they must not wait.
        if let Some(feed) = self.feed.get() {
            feed.close(Error::unavailable(BACKEND, "the store was dropped"));
        }
    }
}
