//! The latest events, in bounded memory, for all watchers of one reflector.
//!
//! A watcher is a cursor. Batches are in the order in which this process learnt of them, which for
//! changes is that of their revisions. An expiry that nobody wrote down has no revision of its own and
//! carries the newest one known. A watcher that falls behind the log, or whose reflector begins anew, is
//! told that history is gone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{self, StreamExt};
use tenure::store::{Batch, Event, Watch, WatchRequest};
use tenure::{Error, Result};
use tokio::sync::watch as signal;

/// Batches kept.
const BATCHES: usize = 16_384;
/// Bytes kept, roughly.
const BYTES: usize = 32 * 1024 * 1024;

struct Entry {
    batch: Arc<Batch>,
    /// It has a revision of its own.
    drawn: bool,
}

#[derive(Default)]
struct Inner {
    batches: VecDeque<Entry>,
    bytes: usize,
    /// The number of the first batch in the log.
    first: u64,
    open: bool,
    ended: Option<Error>,
}

/// The log of events.
pub(crate) struct EventLog {
    inner: Mutex<Inner>,
    changed: signal::Sender<()>,
    watchers: AtomicUsize,
}

impl EventLog {
    pub(crate) fn new() -> Self {
        Self { inner: Mutex::default(), changed: signal::channel(()).0, watchers: 0.into() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on nothing is missed.
    pub(crate) fn open(&self) {
        self.inner().open = true;
        self.changed.send_replace(());
    }

    /// Adds a batch.
    pub(crate) fn publish(&self, batch: Batch, drawn: bool) {
        let mut inner = self.inner();
        inner.bytes += size(&batch);
        inner.batches.push_back(Entry { batch: Arc::new(batch), drawn });
        while inner.batches.len() > BATCHES || inner.bytes > BYTES {
            let Some(oldest) = inner.batches.pop_front() else { break };
            inner.bytes -= size(&oldest.batch);
            inner.first += 1;
        }
        drop(inner);
        self.changed.send_replace(());
    }

    /// Ends every watch with this error, once it has delivered what the log holds.
    pub(crate) fn end(&self, why: Error) {
        self.inner().ended.get_or_insert(why);
        self.changed.send_replace(());
    }

    pub(crate) fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Acquire)
    }

    /// A cursor at the present end of the log; it counts as a watcher.
    pub(crate) fn join(self: &Arc<Self>) -> Cursor {
        self.watchers.fetch_add(1, Ordering::AcqRel);
        let inner = self.inner();
        let next = inner.first + inner.batches.len() as u64;
        drop(inner);
        Cursor { log: Arc::clone(self), changed: self.changed.subscribe(), next }
    }
}

fn size(batch: &Batch) -> usize {
    let event = |event: &Event| match event {
        Event::Put(object) => object.size(),
        Event::Delete { last, .. } => last.as_ref().map_or(128, |object| object.size()),
    };
    32 + batch.events.iter().map(event).sum::<usize>()
}

/// Where a watcher stands.
pub(crate) struct Cursor {
    log: Arc<EventLog>,
    changed: signal::Receiver<()>,
    next: u64,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.log.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Cursor {
    /// Resolves once the log is open, so that nothing is missed any more.
    pub(crate) async fn opened(&mut self) -> Result<()> {
        loop {
            self.changed.mark_unchanged();
            {
                let inner = self.log.inner();
                if let Some(why) = &inner.ended {
                    return Err(why.clone());
                }
                if inner.open {
                    return Ok(());
                }
            }
            // Cannot fail: the sender lives in the log.
            let _ = self.changed.changed().await;
        }
    }

    /// Everything behind this revision that the request asks for.
    pub(crate) fn watch(self, request: &WatchRequest, start: u64) -> Watch {
        let state = (self, request.clone(), false);
        let stream = stream::unfold(state, move |(mut cursor, request, ended)| async move {
            if ended {
                return None;
            }
            let item = loop {
                match cursor.next().await {
                    Ok((batch, drawn)) if drawn && batch.revision <= start => {}
                    Ok((batch, _)) => {
                        if let Some(batch) = request.filter(&batch) {
                            break Ok(batch);
                        }
                    }
                    Err(error) => break Err(error),
                }
            };
            let ended = item.is_err();
            Some((item, (cursor, request, ended)))
        });
        Watch::new(start, stream.boxed())
    }

    async fn next(&mut self) -> Result<(Arc<Batch>, bool)> {
        loop {
            self.changed.mark_unchanged();
            if let Some(entry) = self.look()? {
                return Ok(entry);
            }
            let _ = self.changed.changed().await;
        }
    }

    fn look(&mut self) -> Result<Option<(Arc<Batch>, bool)>> {
        let inner = self.log.inner();
        let Some(index) = self.next.checked_sub(inner.first) else {
            let oldest = inner.batches.front().map_or(0, |entry| entry.batch.revision);
            return Err(Error::Compacted { requested: 0, oldest });
        };
        let entry = usize::try_from(index).ok().and_then(|index| inner.batches.get(index));
        match (entry, &inner.ended) {
            (Some(entry), _) => {
                self.next += 1;
                Ok(Some((Arc::clone(&entry.batch), entry.drawn)))
            }
            (None, Some(why)) => Err(why.clone()),
            (None, None) => Ok(None),
        }
    }
}
