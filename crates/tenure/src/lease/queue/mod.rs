//! The wait queue: who waits for a lease, in the order they came, and who is woken when it ends.
//!
//! [`wait_queues::WaitQueues`] keeps one [`wait_queue::WaitQueue`] for each thing that callers of this process wait
//! for. [`task`] listens to the store on their behalf. A waiting caller holds a [`entry::QueueEntry`] and
//! sleeps on its [`wakeup::Wakeup`].

#[cfg(test)]
mod blind_tests;
#[cfg(test)]
mod crowd_tests;
pub(crate) mod entry;
pub(crate) mod list;
pub(crate) mod task;
pub(crate) mod wait_queue;
pub(crate) mod wait_queues;
pub(crate) mod wakeup;

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::flaws::{Flaw, planted};
use crate::lease::inner::Inner;
use crate::lease::queue::task::Listing;
use crate::lease::queue::wait_queues::WaitQueues;
use crate::store::Batch;
use crate::{Error, Result};

/// What waiting callers and the task that works for them do with the queues.
impl Inner {
    /// Callers in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.queues().waiting
    }

    /// Whether the store notifies waiters, so that they need not poll.
    pub(crate) fn listens(&self) -> bool {
        self.store.capabilities().notifies_all()
    }

    pub(crate) fn queues(&self) -> MutexGuard<'_, WaitQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the queues and lets the queue of this name act on it.
    pub(crate) fn with_queue<T>(
        &self,
        name: &Arc<str>,
        act: impl FnOnce(&mut WaitQueues) -> T,
    ) -> T {
        let now = self.clock.uptime();
        let mut queues = self.queues();
        let result = act(&mut queues);
        let poke = queues.step(name, now);
        drop(queues);
        if poke {
            self.poke.notify_one();
        }
        result
    }

    /// Resolves once news arrives, so that a queue can be joined without missing any.
    ///
    /// # Errors
    /// If the store refuses to tell any: waiting would be in vain. Or if it cannot for so long that it is
    /// time to look without being told.
    pub(crate) async fn queues_open(self: &Arc<Self>) -> Result<()> {
        let mut has_waited = false;
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            let start = {
                let mut queues = self.queues();
                if queues.open {
                    return Ok(());
                }
                // What was refused to others before is asked for once more.
                if let Some(error) = queues.refused.as_ref().filter(|_| has_waited) {
                    return Err(error.clone());
                }
                !std::mem::replace(&mut queues.running, true)
            };
            if start {
                self.spawn(task::run(Arc::downgrade(self)));
            }
            tokio::select! {
                biased;
                () = opened => has_waited = true,
                () = self.clock.sleep(self.options.recheck_every) => {
                    return Err(Error::unavailable(self.backend(), "it cannot be watched"));
                }
            }
        }
    }

    /// Whether news arrives.
    pub(crate) fn are_queues_open(&self) -> bool {
        self.queues().open
    }

    pub(crate) fn open_queues(&self) {
        let mut queues = self.queues();
        queues.open = true;
        queues.refused = None;
        queues.forget(self.clock.uptime());
        drop(queues);
        self.opened.notify_waiters();
    }

    /// The store cannot be watched. If it refuses for good, callers about to join get that error, and the
    /// task may end if nobody is in a queue already. Whether it ended.
    pub(crate) fn queues_failed(&self, error: &Error) -> bool {
        if !matches!(error, Error::Refused { .. }) {
            return false;
        }
        let mut queues = self.queues();
        queues.refused = Some(error.clone());
        let ended = queues.is_empty();
        if ended {
            queues.running = false;
        }
        drop(queues);
        self.opened.notify_waiters();
        ended
    }

    pub(crate) fn close_queues(&self) {
        self.queues().open = false;
    }

    /// Ends the work for the queues if nobody waits. Whether it ended.
    pub(crate) fn end_queues(&self) -> bool {
        let mut queues = self.queues();
        if !queues.is_empty() {
            return false;
        }
        (queues.open, queues.running) = (false, false);
        true
    }

    /// Runs timers. Returns queues to list, the next timer, and whether nobody waits.
    pub(crate) fn tend_queues(&self, now: Duration) -> (Vec<(Arc<str>, u64)>, Duration, bool) {
        let mut queues = self.queues();
        queues.run_timers(now);
        let unsynced = if self.listens() { queues.take_unsynced() } else { Vec::new() };
        let until = queues.next_timer().unwrap_or(now + self.options.recheck_every);
        (unsynced, until, queues.is_empty())
    }

    pub(crate) fn hear(&self, batch: &Batch) {
        let now = self.clock.uptime();
        let mut queues = self.queues();
        queues.hear(batch, now, now + self.options.recheck_every);
        if planted(Flaw::CallsEverybody) {
            queues.call_all();
        }
    }

    /// A queue was listed. Does not count if it has been listed since, or news was missed since.
    pub(crate) fn synced(&self, name: &Arc<str>, listed: &Listing) {
        let now = self.clock.uptime();
        let look_again = now + self.options.recheck_every;
        self.with_queue(name, |queues| {
            let queue = queues.get(name);
            if let Some(queue) =
                queue.filter(|queue| queue.listing == listed.number && !queue.synced)
            {
                queue.sync(&listed.waiters, listed.marker, listed.revision);
                queue.found(listed.held, now, look_again);
            }
        });
    }

    pub(crate) fn sync_again(&self, name: &Arc<str>) {
        self.queues().sync_again(name);
    }
}
