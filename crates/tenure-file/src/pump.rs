//! From history to watchers: one feed for all watches of this process.
//!
//! This process's own commits are handed over as they are; those of others are read from history
//! whenever the head may have moved. One position under one lock keeps the two in order and without
//! a gap. Nothing is done without a watcher.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use tokio::sync::{Notify, Semaphore};

use crate::BACKEND;
use crate::commit::News;
use crate::frame::{Frame, Op};
use crate::history::{Position, read_after};
use crate::inner::Inner;
use tenure::backend::{Feed, FeedLimits, History};
use tenure::store::Batch;
use tenure::{Error, Result};

/// Frames read at once, while commits wait.
const AT_ONCE: usize = 512;
/// Bytes read at once.
const AT_ONCE_BYTES: u64 = 4 * 1024 * 1024;
/// Watchers that read history at the same time; a thousand late ones take turns.
const READERS: usize = 8;
/// Places in history remembered for watchers that are catching up.
const PLACES: usize = 32;

pub(crate) struct Pump {
    inner: Arc<Inner>,
    feed: OnceLock<Arc<Feed>>,
    /// What the feed has been told.
    position: Mutex<Position>,
    /// Told when the earliest expiry may have moved nearer.
    pub(crate) expiry_changed: Notify,
}

impl Pump {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            feed: OnceLock::new(),
            position: Mutex::default(),
            expiry_changed: Notify::new(),
        }
    }

    fn position(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The feed, with everything in it that was committed before this call.
    pub(crate) fn feed(&self) -> Result<Arc<Feed>> {
        let mut position = self.position();
        if let Some(feed) = self.feed.get() {
            self.catch_up(feed, &mut position)?;
            return Ok(Arc::clone(feed));
        }
        let session = self.inner.files.shared()?;
        let head = &session.head;
        *position =
            Position { revision: head.revision, segment: head.segment, offset: head.length };
        let new = || Arc::new(Feed::new(head.revision, FeedLimits::default()));
        Ok(Arc::clone(self.feed.get_or_init(new)))
    }

    /// Takes over what this process has just committed.
    pub(crate) fn tell(&self, news: Option<News>) {
        self.expiry_changed.notify_one();
        let (Some(feed), Some(news)) = (self.feed.get(), news) else { return };
        let mut position = self.position();
        if position.revision == news.after {
            feed.publish(news.batches);
            *position = news.end;
        } else if let Err(error) = self.catch_up(feed, &mut position) {
            tracing::debug!(%error, "watchers wait for the next look at history");
        }
    }

    /// Ends every watch: nobody will tell them anything any more.
    pub(crate) fn close(&self) {
        if let Some(feed) = self.feed.get() {
            feed.close(crate::closed());
        }
    }

    /// Wakes every watcher of this process.
    pub(crate) fn nudge(&self) {
        if let Some(feed) = self.feed.get() {
            feed.nudge();
        }
    }

    /// Looks whether others have committed something.
    pub(crate) fn look(&self) {
        let Some(feed) = self.feed.get() else { return };
        if let Err(error) = self.catch_up(feed, &mut self.position()) {
            tracing::debug!(%error, "watchers wait for the next look at history");
        }
    }

    fn catch_up(&self, feed: &Feed, position: &mut Position) -> Result<()> {
        // Mostly it is our own commit that woke us; that needs no lock to find out.
        let head = self.inner.files.clean_head()?;
        if head.is_some_and(|head| head.revision <= position.revision) {
            return Ok(());
        }
        loop {
            let session = self.inner.files.shared()?;
            if session.head.revision <= position.revision {
                return Ok(());
            }
            let layout = &self.inner.files.layout;
            let read = read_after(layout, &session.head, *position, AT_ONCE, AT_ONCE_BYTES);
            drop(session);
            match read {
                Ok((frames, at)) => {
                    self.note_expiries(&frames);
                    feed.publish(frames.iter().filter_map(Frame::batch));
                    *position = at;
                }
                // This process was away for longer than history is kept. A watcher that has not seen
                // what is gone must be told, so the feed gives that up as well.
                Err(Error::Compacted { oldest, .. }) => {
                    tracing::warn!(oldest, "history was forgotten before it was read");
                    feed.reset(oldest);
                    *position = Position { revision: oldest, ..Position::default() };
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn note_expiries(&self, frames: &[Frame]) {
        let mut expiries = self.inner.expiries();
        for (op, stored) in frames.iter().flat_map(|frame| &frame.changes) {
            let at_ms = match op {
                Op::Put | Op::Touched => stored.row.expires_at_ms,
                Op::Deleted | Op::Expired => None,
            };
            expiries.set(&stored.row.object.key, at_ms);
        }
        drop(expiries);
        self.expiry_changed.notify_one();
    }
}

/// History for watchers that are behind the feed.
pub(crate) struct Past {
    inner: Arc<Inner>,
    /// Where readers left off, so that they need not search when they come back.
    places: Mutex<Vec<Position>>,
    readers: Semaphore,
}

impl Past {
    pub(crate) fn new(inner: Arc<Inner>) -> Arc<Self> {
        Arc::new(Self { inner, places: Mutex::default(), readers: Semaphore::new(READERS) })
    }

    fn read(&self, after: u64, limit: usize) -> Result<Vec<Arc<Batch>>> {
        let places = || self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let known = places().iter().copied().find(|place| place.revision == after);
        let from = known.unwrap_or(Position { revision: after, ..Position::default() });
        let session = self.inner.files.shared()?;
        let layout = &self.inner.files.layout;
        let (frames, at) = read_after(layout, &session.head, from, limit, AT_ONCE_BYTES)?;
        let mut places = places();
        if places.len() >= PLACES {
            places.remove(0);
        }
        places.push(at);
        Ok(frames.iter().filter_map(Frame::batch).collect())
    }
}

/// History is read through a handle, because the work outlives the call that asked for it.
pub(crate) struct PastHandle(pub(crate) Arc<Past>);

#[async_trait]
impl History for PastHandle {
    async fn read_after(&self, after: u64, limit: usize) -> Result<Vec<Arc<Batch>>> {
        let past = Arc::clone(&self.0);
        let _turn = self.0.readers.acquire().await;
        let read = tokio::task::spawn_blocking(move || past.read(after, limit)).await;
        read.unwrap_or_else(|error| {
            Err(Error::unavailable(BACKEND, format!("history was not read: {error}")))
        })
    }
}
