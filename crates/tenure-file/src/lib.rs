//! The store in a folder: no server, no database, files that a person can read.
//!
//! ```text
//! DIR/objects/order/1001   one canonical file per object: a line of JSON, then the payload
//! DIR/names/order/first    which id has this name
//! DIR/history/….log        every change of the last minutes, for watchers and for recovery
//! DIR/head                 how far the canonical files are
//! DIR/clock                the store's timeline
//! DIR/lock turn locks/     lock files; they stay, the kernel drops the locks
//! DIR/store.json           format, and which programs may write
//! ```
//!
//! **Changing an object** follows one path: temp file in the same folder, flush, append to history,
//! flush — the moment it has happened — atomic rename, flush of the folder. A crash before that
//! moment leaves the old values, one after it is finished by the next process that opens, reads or writes.
//! Temp files have names that no reader looks at, and the next process to open the store removes
//! those of a crash.
//!
//! **Locks** are `flock`s, held by the kernel for a process and dropped with it: see `locks.rs`. A
//! commit holds the store lock exclusively, hence every key; a touch holds the locks of its keys.
//! A *frozen* process that holds one blocks the others until it goes on or ends; they are told
//! `Unavailable` and whose fault it is.
//!
//! **What it relies on**: a local file system on which `flock` works between processes, rename is
//! atomic, fsync of a file and of a folder reaches the disk, and file names are case-sensitive (ext4,
//! xfs, btrfs, zfs, f2fs, tmpfs without durability). Network file systems are detected and refused,
//! see [`FileOptions::allow_network_filesystem`]. All processes run on one host and share its boot
//! clock. Anybody who may write into the folder is trusted.
//!
//! A file that was damaged concerns its own object: reads and commits of it, and lists that meet it,
//! are [`Error::Corrupt`] with the path and the next step. The rest of the store goes on.

mod apply;
mod commit;
#[cfg(test)]
mod crash;
mod disk;
mod expiries;
mod files;
mod frame;
mod head;
mod history;
mod inner;
mod layout;
mod locks;
mod options;
mod overlay;
mod pump;
mod read;
mod record;
mod recover;
#[cfg(test)]
mod tests;
mod touch;
mod watching;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::files::read_file;
use crate::inner::Inner;
use crate::watching::Watching;
use crate::writer::Job;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Kinds, Notifies, Page, Query, Reach,
    Store, Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Error, Key, Limits, Object, Result};

pub use crate::history::HistoryLimits;
pub use crate::options::FileOptions;

/// The backend's name.
const BACKEND: &str = "file";
/// Reads and touches that use a thread at the same time.
const THREADS: usize = 32;

/// A store in a folder. Any number of them, in any number of processes of one host, may be open on
/// the same folder.
pub struct FileStore {
    inner: Arc<Inner>,
    capabilities: Capabilities,
    threads: Arc<Semaphore>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    watching: Arc<Watching>,
    closed: AtomicBool,
}

impl FileStore {
    /// Opens or creates the store in this folder, on the machine's clock.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(folder)
    }

    /// Everything that can be chosen when opening.
    pub fn options() -> FileOptions {
        FileOptions::default()
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }

    fn start(inner: Inner, options: &FileOptions) -> Result<Self> {
        let inner = Arc::new(inner);
        let watching = Arc::new(Watching::new(Arc::clone(&inner), options.poll_every));
        let (jobs, writer) = writer::start(Arc::clone(&inner), Arc::clone(&watching.pump))?;
        let capabilities = Capabilities { history: Some(inner.history.keep), ..capabilities() };
        Ok(Self {
            inner,
            capabilities,
            threads: Arc::new(Semaphore::new(THREADS)),
            jobs: Mutex::new(Some(jobs)),
            writer: Mutex::new(Some(writer)),
            watching,
            closed: AtomicBool::new(false),
        })
    }

    fn jobs(&self) -> Result<mpsc::Sender<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.clone().ok_or_else(closed)
    }

    /// Runs work that blocks on a thread made for it, not too many at once. `broken` is the error
    /// of a thread that panicked.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
        broken: impl FnOnce(String) -> Error,
    ) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let permit = Arc::clone(&self.threads).acquire_owned().await.map_err(|_| closed())?;
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&inner)
        });
        done.await.unwrap_or_else(|error| Err(broken(error.to_string())))
    }

    async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.blocking(work, |reason| Error::unavailable(BACKEND, reason)).await
    }
}

fn closed() -> Error {
    Error::unavailable(BACKEND, "this store was closed")
}

/// What a file store promises.
pub fn capabilities() -> Capabilities {
    Capabilities {
        backend: BACKEND,
        kinds: Kinds::Any,
        multi_object_commits: true,
        names: true,
        labels: true,
        ttl: Some(Ttl { min: Duration::from_millis(1), granularity: Duration::from_millis(1) }),
        touch_keeps_revision: true,
        user_sql: false,
        history: Some(HistoryLimits::default().keep),
        notifies: Notifies::Host,
        expiry_clock: ExpiryClock::Host,
        reach: Reach::Host,
        durability: Durability::Flushed,
        replicas: Some(1),
        // A touch rewrites and flushes a file; more of them would outlast a caller's patience.
        limits: Limits { touches: 1_000, ..Limits::DEFAULT },
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.watching.pump.close();
    }
}

#[async_trait]
impl Backend for FileStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let key = key.clone();
        self.reading(move |inner| inner.get(&key)).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        self.reading(move |inner| inner.list(&query)).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        let (answer, result) = oneshot::channel();
        let sent = self.jobs()?.send(Job::Commit { commit, answer }).await;
        sent.map_err(|_| closed())?;
        result.await.unwrap_or_else(|_| {
            Err(Error::unknown(BACKEND, "the thread that writes ended before it answered"))
        })
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let results = self
            .blocking(move |inner| inner.touch(&touches), |reason| Error::unknown(BACKEND, reason))
            .await?;
        Ok(results)
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let watching = Arc::clone(&self.watching);
        let feed = self.reading(move |_| watching.start()).await?;
        let (weak, jobs) = (Arc::downgrade(&self.watching), self.jobs()?.downgrade());
        self.watching.ensure_sweeper(jobs.clone());
        Ok(feed.watch(request, Some(self.watching.past()))?.tended(move || {
            if let Some(watching) = weak.upgrade() {
                watching.ensure_sweeper(jobs.clone());
            }
        }))
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Without a sender the writer ends, after what it had accepted.
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let watching = Arc::clone(&self.watching);
        let stopped = tokio::task::spawn_blocking(move || {
            watching.stop();
            writer.map(JoinHandle::join)
        });
        if let Ok(Some(Err(_))) = stopped.await {
            tracing::error!("the thread that writes to the file store had panicked");
        }
        self.watching.pump.close();
    }
}
