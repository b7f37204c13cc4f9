//! Commits that wait for whoever has the lock.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::super::{Commit, Committed};
use crate::{Error, Result};

/// A commit in the queue.
pub(super) struct Queued {
    pub(super) commit: Commit,
    answer: oneshot::Sender<Result<Committed>>,
}

impl Queued {
    /// Tells whoever waits. It may have given up; the commit counts all the same.
    pub(super) fn answer(self, committed: Result<Committed>) {
        let _ = self.answer.send(committed);
    }
}

/// The answer, when there is one.
pub(super) type Later = BoxFuture<'static, Result<Committed>>;

/// Commits in the order they came. As long as those who wait for them.
#[derive(Default)]
pub(super) struct Queue {
    queued: Mutex<Vec<Queued>>,
    /// To see from outside whether there is anything.
    length: AtomicUsize,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Vec<Queued>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, commit: Commit) -> Later {
        let (answer, later) = oneshot::channel();
        let mut queued = self.lock();
        queued.push(Queued { commit, answer });
        self.length.store(queued.len(), Ordering::Relaxed);
        drop(queued);
        // The queue is dropped with the store, and nobody commits to a store that is gone.
        let gone = |_| Err(Error::unavailable("memory", "the store was dropped"));
        async move { later.await.unwrap_or_else(gone) }.boxed()
    }

    pub(super) fn is_empty(&self) -> bool {
        // Whoever queues up does so before it looks at the lock, and whoever has the lock lets go of it
        // before it looks here. With a fence between the two on either side, one of them sees the other.
        fence(Ordering::SeqCst);
        self.length.load(Ordering::Relaxed) == 0
    }

    /// All of it.
    pub(super) fn take(&self) -> Vec<Queued> {
        if self.length.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut queued = self.lock();
        self.length.store(0, Ordering::Relaxed);
        std::mem::take(&mut *queued)
    }
}
