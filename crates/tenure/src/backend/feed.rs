//! Fan-out of committed batches to any number of watchers, in bounded memory.
//!
//! The feed keeps the most recent batches in one shared ring. A watcher is a cursor: it takes what
//! lies ahead of it in the ring, and when it has fallen behind the ring it reads the backend's
//! [`History`] until it has caught up. So a slow watcher costs nobody memory and loses nothing, and
//! a thousand watchers share one copy of every batch.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use tokio::sync::watch as signal;

use super::Progress;
use crate::store::{Batch, Watch, WatchRequest};
use crate::{Error, Result};

/// Batches handed to a watcher per look into the ring.
const CHUNK: usize = 128;

/// Where a watcher that fell behind the ring reads on.
#[async_trait]
pub trait History: Send + Sync + 'static {
    /// Whole batches with revisions greater than `after`, in order, at most about `limit`, at least
    /// one if there is any. [`Error::Compacted`] if some of them are gone.
    async fn read_after(&self, after: u64, limit: usize) -> Result<Vec<Arc<Batch>>>;
}

/// How much the ring keeps.
#[derive(Clone, Copy, Debug)]
pub struct FeedLimits {
    /// Batches at most.
    pub batches: usize,
    /// Bytes at most, roughly.
    pub bytes: usize,
}

impl Default for FeedLimits {
    fn default() -> Self {
        Self { batches: 16_384, bytes: 32 * 1024 * 1024 }
    }
}

#[derive(Debug)]
struct Ring {
    batches: VecDeque<Kept>,
    bytes: usize,
    /// Every batch with a revision above this one, up to the head, is in the ring.
    floor: u64,
    /// Why there will be no more.
    closed: Option<Error>,
}

/// A batch, with what the ring goes by: one that has not been looked at for long is in no cache, and to
/// let it go must not mean to wait for it.
#[derive(Debug)]
struct Kept {
    revision: u64,
    size: usize,
    batch: Arc<Batch>,
}

/// What a cursor finds in the ring.
#[derive(Debug)]
enum Look {
    Batches(Vec<Arc<Batch>>),
    UpToDate,
    Behind { floor: u64 },
    Closed(Error),
}

/// The shared ring and the signal that it grew.
#[derive(Debug)]
pub struct Feed {
    ring: RwLock<Ring>,
    limits: FeedLimits,
    head: signal::Sender<u64>,
}

impl Feed {
    /// An empty ring: everything up to `head` is history.
    pub fn new(head: u64, limits: FeedLimits) -> Self {
        let ring = Ring { batches: VecDeque::new(), bytes: 0, floor: head, closed: None };
        Self { ring: RwLock::new(ring), limits, head: signal::channel(head).0 }
    }

    /// The revision of the newest batch published.
    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// The oldest revision behind which the ring alone can serve a watch.
    pub fn floor(&self) -> u64 {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).floor
    }

    /// Adds batches in revision order; those already published are passed over. The caller makes
    /// sure that nothing between the old head and these batches is left out.
    ///
    /// Returns what the ring had no room for any more, so that a caller who holds a lock can drop it
    /// afterwards.
    pub fn publish(&self, batches: impl IntoIterator<Item = Arc<Batch>>) -> Vec<Arc<Batch>> {
        let mut evicted = Vec::new();
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        let before = self.head();
        let mut head = before;
        for batch in batches {
            if batch.revision > head {
                head = batch.revision;
                let kept = Kept { revision: head, size: batch.size(), batch };
                ring.bytes += kept.size;
                ring.batches.push_back(kept);
            }
        }
        while ring.batches.len() > self.limits.batches || ring.bytes > self.limits.bytes {
            let Some(oldest) = ring.batches.pop_front() else { break };
            ring.bytes -= oldest.size;
            ring.floor = oldest.revision;
            evicted.push(oldest.batch);
        }
        // Sent under the lock, so that the head never falls behind what the ring holds. A
        // watcher that subscribes from here on looks into the ring after us, and needs no wake-up.
        if head > before {
            let watched = self.head.receiver_count() > 0;
            self.head.send_if_modified(|last| {
                *last = head;
                watched
            });
        }
        evicted
    }

    /// Gives up on what the ring holds: everything up to `head` is history from now on. A backend that
    /// was away for longer than history is kept calls this; watchers that needed the part in between
    /// are told so by their history.
    pub fn reset(&self, head: u64) {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if head > self.head() {
            (ring.batches, ring.bytes, ring.floor) = (VecDeque::new(), 0, head);
            self.head.send_replace(head);
        }
    }

    /// Ends every watch with this error, once it has delivered what the ring holds: nobody fills
    /// this feed any more, and a watcher must not wait for ever.
    pub fn close(&self, why: Error) {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        ring.closed.get_or_insert(why);
        self.nudge();
    }

    /// Wakes every watcher though there is nothing new, so that it looks after what it depends on.
    pub fn nudge(&self) {
        self.head.send_modify(|_| {});
    }

    fn look(&self, after: u64) -> Look {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        if after < ring.floor {
            return Look::Behind { floor: ring.floor };
        }
        let first = ring.batches.partition_point(|kept| kept.revision <= after);
        if first == ring.batches.len() {
            return ring.closed.clone().map_or(Look::UpToDate, Look::Closed);
        }
        let ahead = ring.batches.range(first..).take(CHUNK);
        Look::Batches(ahead.map(|kept| Arc::clone(&kept.batch)).collect())
    }

    /// Opens a watch. Without history, a cursor behind the ring is [`Error::Compacted`].
    pub fn watch(
        self: &Arc<Self>,
        request: &WatchRequest,
        history: Option<Arc<dyn History>>,
    ) -> Result<Watch> {
        let head = self.head();
        let start = request.after.unwrap_or(head);
        if start > head {
            return Err(Error::invalid(
                format!("watch after revision {start}"),
                format!("the store is at revision {head}; it may have been restored from a backup"),
            ));
        }
        let progress = Progress::new(start);
        let cursor = Cursor {
            feed: Arc::clone(self),
            head: self.head.subscribe(),
            request: request.clone(),
            history,
            after: start,
            progress: progress.clone(),
            ready: VecDeque::new(),
            ended: false,
        };
        let stream = stream::unfold(cursor, |mut cursor| async move {
            if cursor.ended {
                return None;
            }
            let item = cursor.next().await;
            cursor.ended = item.is_err();
            Some((item, cursor))
        });
        Ok(Watch::with_progress(start, progress, stream.boxed()))
    }
}

struct Cursor {
    feed: Arc<Feed>,
    head: signal::Receiver<u64>,
    request: WatchRequest,
    history: Option<Arc<dyn History>>,
    after: u64,
    progress: Progress,
    ready: VecDeque<Arc<Batch>>,
    ended: bool,
}

impl Cursor {
    async fn next(&mut self) -> Result<Arc<Batch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            self.progress.reach(self.after);
            // Marked before looking: a batch published in between wakes the wait below.
            self.head.mark_unchanged();
            match self.feed.look(self.after) {
                Look::Batches(batches) => self.take(&batches),
                Look::Behind { floor } => self.catch_up(floor).await?,
                Look::Closed(why) => return Err(why),
                Look::UpToDate => {
                    if self.head.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            }
        }
    }

    fn take(&mut self, batches: &[Arc<Batch>]) {
        for batch in batches.iter().filter(|batch| batch.revision > self.after) {
            self.ready.extend(self.request.filter(batch));
        }
        if let Some(last) = batches.last() {
            self.after = self.after.max(last.revision);
        }
    }

    async fn catch_up(&mut self, floor: u64) -> Result<()> {
        let Some(history) = &self.history else {
            return Err(Error::Compacted { requested: self.after, oldest: floor });
        };
        match history.read_after(self.after, CHUNK).await {
            Ok(batches) if !batches.is_empty() => self.take(&batches),
            // A replica that answers late, or a store that is away for a moment: the ring told us
            // that there is more, so ask again. A watch does not end because of an outage.
            Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) if matches!(error, Error::Unavailable { .. }) => {
                tracing::debug!(%error, after = self.after, "watch waits for history");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::Key;
    use crate::store::{Cause, Event};

    fn batch(revision: u64, kind: &str) -> Arc<Batch> {
        let key = Key::new(kind, revision.to_string());
        let event = Event::Delete { key, cause: Cause::Deleted, last: None };
        Arc::new(Batch { revision, events: vec![event] })
    }

    struct Log(Vec<Arc<Batch>>);

    #[async_trait]
    impl History for Log {
        async fn read_after(&self, after: u64, limit: usize) -> Result<Vec<Arc<Batch>>> {
            let rest = self.0.iter().filter(|b| b.revision > after);
            Ok(rest.take(limit.min(3)).cloned().collect())
        }
    }

    #[tokio::test]
    async fn a_watch_of_something_quiet_knows_how_far_it_has_come() {
        let feed = Arc::new(Feed::new(0, FeedLimits { batches: 4, bytes: usize::MAX }));
        let quiet = || WatchRequest::kind("quiet");
        let mut watch = feed.watch(&quiet(), None).unwrap();
        for revision in 1..=20 {
            feed.publish([batch(revision, if revision == 15 { "quiet" } else { "busy" })]);
            if revision == 15 {
                // What is ready has not been told.
                assert_eq!(watch.told(), 14);
                assert_eq!(watch.next().await.unwrap().unwrap().revision, 15);
                assert_eq!(watch.told(), 15);
            }
            assert!(watch.next().now_or_never().is_none());
            assert_eq!(watch.told(), revision);
        }
        // History behind what it was told last is gone, and it can go on all the same.
        assert!(feed.watch(&quiet().after(15), None).unwrap().next().await.unwrap().is_err());
        let mut resumed = feed.watch(&quiet().after(watch.told()), None).unwrap();
        feed.publish([batch(21, "quiet")]);
        assert_eq!(resumed.next().await.unwrap().unwrap().revision, 21);
    }

    #[tokio::test]
    async fn a_slow_watcher_reads_history_and_misses_nothing() {
        let feed = Arc::new(Feed::new(0, FeedLimits { batches: 4, bytes: usize::MAX }));
        let log: Vec<_> = (1..=50).map(|r| batch(r, if r % 2 == 0 { "a" } else { "b" })).collect();
        let history: Arc<dyn History> = Arc::new(Log(log.clone()));
        let request = WatchRequest::kind("a").after(0);
        let mut watch = feed.watch(&request, Some(history)).unwrap();
        let mut blind = feed.watch(&request, None).unwrap();
        for one in log {
            feed.publish([one]);
        }
        for expected in (2..=50).step_by(2) {
            assert_eq!(watch.next().await.unwrap().unwrap().revision, expected);
        }
        let error = blind.next().await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Compacted { requested: 0, oldest: 46 }), "{error}");
        assert!(blind.next().await.is_none());
    }

    #[tokio::test]
    async fn a_closed_feed_delivers_what_it_has_and_ends() {
        let feed = Arc::new(Feed::new(0, FeedLimits::default()));
        let mut watch = feed.watch(&WatchRequest::default(), None).unwrap();
        feed.publish([batch(1, "a")]);
        let mut idle = feed.watch(&WatchRequest::default(), None).unwrap();
        let waiting = tokio::spawn(async move { idle.next().await });
        tokio::task::yield_now().await;
        feed.close(Error::unavailable("memory", "closed"));
        assert_eq!(watch.next().await.unwrap().unwrap().revision, 1);
        assert!(matches!(watch.next().await, Some(Err(Error::Unavailable { .. }))));
        assert!(watch.next().await.is_none());
        assert!(matches!(waiting.await.unwrap(), Some(Err(Error::Unavailable { .. }))));
    }

    #[tokio::test]
    async fn published_twice_is_seen_once_and_the_future_is_refused() {
        let feed = Arc::new(Feed::new(7, FeedLimits::default()));
        let mut watch = feed.watch(&WatchRequest::default(), None).unwrap();
        assert_eq!(watch.start(), 7);
        feed.publish([batch(8, "a"), batch(9, "a")]);
        feed.publish([batch(9, "a"), batch(10, "a")]);
        for expected in 8..=10 {
            assert_eq!(watch.next().await.unwrap().unwrap().revision, expected);
        }
        assert!(feed.watch(&WatchRequest::default().after(11), None).is_err());
    }
}
