//! Telling this process's watchers of commits that other processes made.
//!
//! The kernel says that the write-ahead log changed, a slow poll looks anyway, and whatever lies
//! beyond the feed's head is read from the event table in order.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::backend::Feed;
use tenure::backend::wake::FileWatcher;
use tenure::store::Event;
use tenure::{Error, Result};

use crate::error::BACKEND;
use crate::history::batches_after;
use crate::queue::WriterHandle;
use crate::read::Readers;
use crate::transaction::revision;

/// Batches read at a time.
const CHUNK: usize = 1_024;

/// Keeps a feed up to date with the file.
pub(crate) struct Pump {
    readers: Arc<Readers>,
    feed: Arc<Feed>,
    writer: Arc<WriterHandle>,
    /// One at a time: two would read the same events twice for nothing.
    catching_up: Mutex<()>,
}

impl Pump {
    /// Starts to follow the file; the watcher stops when it is dropped.
    pub(crate) fn start(
        readers: Arc<Readers>,
        feed: Arc<Feed>,
        writer: Arc<WriterHandle>,
        log: PathBuf,
        poll_every: Duration,
    ) -> Result<(Arc<Self>, FileWatcher)> {
        let pump = Arc::new(Self { readers, feed, writer, catching_up: Mutex::new(()) });
        let follower = Arc::clone(&pump);
        let watcher = FileWatcher::new(&[log], poll_every, move || {
            if let Err(error) = follower.catch_up() {
                tracing::debug!(%error, "following the file failed; it is tried again");
            }
        });
        let watcher = watcher.map_err(|error| {
            Error::unavailable(BACKEND, format!("watching the file failed: {error}"))
        })?;
        Ok((pump, watcher))
    }

    /// Publishes everything beyond the feed's head.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let _alone = self.catching_up.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let after = self.feed.head();
            let read = self.readers.run_blocking(|conn, _| {
                let head = revision(conn).map_err(crate::error::definite)?;
                if head <= after {
                    return Ok((head, Vec::new()));
                }
                Ok((head, batches_after(conn, after, CHUNK)?))
            });
            match read {
                Ok((_, batches)) if batches.is_empty() => return Ok(()),
                Ok((_, batches)) => {
                    let mortal = |event: &Event| matches!(event, Event::Put(o) if o.ttl.is_some());
                    if batches.iter().any(|batch| batch.events.iter().any(mortal)) {
                        self.writer.look();
                    }
                    self.feed.publish(batches);
                }
                // Away for longer than history is kept; watchers learn it from their own reads.
                Err(Error::Compacted { oldest, .. }) => self.feed.reset(oldest),
                Err(error) => return Err(error),
            }
        }
    }
}
