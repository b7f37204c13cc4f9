//! What happened lately, shared by all watchers of one pump, in bounded memory.
//!
//! A watcher is a cursor. Batches are in the order in which this process learnt of them, which for
//! changes is that of their revisions. An expiry that nobody wrote down draws no revision and carries
//! the newest one known. A watcher that falls behind the ring, or whose pump has to begin anew, is
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

struct Told {
    batch: Arc<Batch>,
    /// It has a revision of its own.
    drawn: bool,
}

#[derive(Default)]
struct Inner {
    batches: VecDeque<Told>,
    bytes: usize,
    /// The number of the first batch in the ring.
    first: u64,
    open: bool,
    ended: Option<Error>,
}

/// The ring.
pub(crate) struct Ring {
    inner: Mutex<Inner>,
    changed: signal::Sender<()>,
    watchers: AtomicUsize,
}

impl Ring {
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
        inner.batches.push_back(Told { batch: Arc::new(batch), drawn });
        while inner.batches.len() > BATCHES || inner.bytes > BYTES {
            let Some(oldest) = inner.batches.pop_front() else { break };
            inner.bytes -= size(&oldest.batch);
            inner.first += 1;
        }
        drop(inner);
        self.changed.send_replace(());
    }

    /// Ends every watch with this error, once it has delivered what the ring holds.
    pub(crate) fn end(&self, why: Error) {
        self.inner().ended.get_or_insert(why);
        self.changed.send_replace(());
    }

    pub(crate) fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Acquire)
    }

    /// A cursor at the present end of the ring; it counts as a watcher.
    pub(crate) fn join(self: &Arc<Self>) -> Cursor {
        self.watchers.fetch_add(1, Ordering::AcqRel);
        let inner = self.inner();
        let next = inner.first + inner.batches.len() as u64;
        drop(inner);
        Cursor { ring: Arc::clone(self), changed: self.changed.subscribe(), next }
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
    ring: Arc<Ring>,
    changed: signal::Receiver<()>,
    next: u64,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.ring.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Cursor {
    /// Resolves once the ring is open, so that nothing is missed any more.
    pub(crate) async fn opened(&mut self) -> Result<()> {
        loop {
            self.changed.mark_unchanged();
            {
                let inner = self.ring.inner();
                if let Some(why) = &inner.ended {
                    return Err(why.clone());
                }
                if inner.open {
                    return Ok(());
                }
            }
            // Cannot fail: the sender lives in the ring.
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
            if let Some(told) = self.look()? {
                return Ok(told);
            }
            let _ = self.changed.changed().await;
        }
    }

    fn look(&mut self) -> Result<Option<(Arc<Batch>, bool)>> {
        let inner = self.ring.inner();
        let Some(index) = self.next.checked_sub(inner.first) else {
            let oldest = inner.batches.front().map_or(0, |told| told.batch.revision);
            return Err(Error::Compacted { requested: 0, oldest });
        };
        let told = usize::try_from(index).ok().and_then(|index| inner.batches.get(index));
        match (told, &inner.ended) {
            (Some(told), _) => {
                self.next += 1;
                Ok(Some((Arc::clone(&told.batch), told.drawn)))
            }
            (None, Some(why)) => Err(why.clone()),
            (None, None) => Ok(None),
        }
    }
}
