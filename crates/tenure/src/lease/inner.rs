//! What a coordinator, its leases and its background tasks share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};

use crate::clock::SharedClock;
use crate::flaws::{Flaw, planted};
use crate::lease::hold::renew;
use crate::lease::hold::schedule::Schedule;
use crate::lease::hold::state::Held;
use crate::lease::metrics::EndLabels;
use crate::lease::nonces::Nonces;
use crate::lease::queue::queues::WaitQueues;
use crate::lease::queue::task;
use crate::lease::queue::task::Listing;
use crate::lease::runtime::Spawn;
use crate::lease::{LeaseMetrics, Loss, Options, Owner};
use crate::random::SharedRandom;
use crate::store::{Batch, Store};
use crate::{Error, Result};

/// The shared middle of a coordinator.
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) clock: SharedClock,
    pub(crate) random: SharedRandom,
    pub(crate) owner: Owner,
    pub(crate) options: Options,
    pub(crate) metrics: LeaseMetrics,
    home: Arc<dyn Spawn>,
    nonces: Nonces,
    schedule: Mutex<Schedule>,
    /// Wakes the renewal.
    wake: Arc<Notify>,
    queues: Mutex<WaitQueues>,
    /// Wakes the task.
    pub(crate) poke: Arc<Notify>,
    /// Tells that queues can be joined.
    opened: Notify,
    /// How much of what was dropped is still to be let go of.
    cleanups: watch::Sender<usize>,
}

impl Inner {
    /// An inner whose renewals run from now on.
    pub(crate) fn start(
        store: Store,
        owner: Owner,
        options: Options,
        metrics: LeaseMetrics,
        home: Arc<dyn Spawn>,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            clock: Arc::clone(store.clock()),
            random: Arc::clone(store.random()),
            store,
            owner,
            options,
            metrics,
            home,
            nonces: Nonces::default(),
            schedule: Mutex::default(),
            wake: Arc::default(),
            queues: Mutex::default(),
            poke: Arc::default(),
            opened: Notify::new(),
            cleanups: watch::Sender::new(0),
        });
        inner.spawn(renew::run(Arc::downgrade(&inner), Arc::clone(&inner.wake)));
        inner
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task: BoxFuture<'static, ()> = Box::pin(task);
        self.home.spawn(task);
    }

    /// Lets go of what somebody dropped.
    pub(crate) fn clean_up(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cleanup = Cleanup::new(&self.cleanups);
        self.spawn(async move {
            task.await;
            drop(cleanup);
        });
    }

    /// Resolves when nothing is left to be let go of.
    pub(crate) async fn cleaned_up(&self) {
        // It cannot fail: we hold the sender.
        let _ = self.cleanups.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn nonce(&self) -> Arc<str> {
        self.nonces.next(&*self.random, self.clock.uptime())
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.store.capabilities().backend
    }

    /// Whether commits may concern several objects.
    pub(crate) fn multi(&self) -> bool {
        self.store.capabilities().multi_object_commits
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews this lease at that instant.
    pub(crate) fn renew_at(&self, held: &Arc<Held>, at: Duration) {
        if self.schedule().put(held, self.clock.uptime(), at) {
            self.wake.notify_one();
        }
    }

    /// Stops renewing.
    pub(crate) fn stop_renewing(&self, held: &Held) {
        self.schedule().remove(held);
    }

    /// All that is to be renewed now, and when the next one is.
    pub(crate) fn take_due(&self, now: Duration) -> (Vec<Arc<Held>>, Option<Duration>) {
        self.schedule().take(now)
    }

    /// Leases on the schedule.
    pub(crate) fn scheduled(&self) -> usize {
        self.schedule().len()
    }

    /// A tenure begins.
    pub(crate) fn began(&self, held: &Arc<Held>, sent: Duration) {
        self.metrics.acquired.inc();
        self.metrics.held.inc();
        tracing::info!(
            lease = %held.key.id, holder = %held.owner, token = held.token, "acquired"
        );
        self.renew_at(held, held.timing.due(sent));
    }

    /// Ends a tenure, once.
    pub(crate) fn end(&self, held: &Held, loss: Loss) {
        self.stop_renewing(held);
        if planted(Flaw::ChangesItsStory) {
            // Whatever it was told first, the next one who asks hears another reason.
            let mut state = held.state();
            state.loss = state.loss.take().map(|_| Loss::Released);
        }
        if !held.lose(loss.clone()) {
            return;
        }
        self.metrics.held.dec();
        self.metrics.ended.get_or_create(&EndLabels { reason: loss.code() }).inc();
        let (lease, holder, token) = (&held.key.id, &held.owner, held.token);
        if loss.is_voluntary() {
            tracing::info!(%lease, %holder, token, "{loss}");
        } else {
            tracing::warn!(%lease, %holder, token, "lost: {loss}");
        }
    }

    /// Whoever holds it renews it elsewhere from now on: nothing has ended, and nothing is ours.
    pub(crate) fn detach(&self, held: &Held) {
        held.leave();
        self.stop_renewing(held);
        // Nobody is left to be told; this keeps a renewal that is under way from ending it again.
        if held.lose(Loss::Released) {
            self.metrics.held.dec();
            let (lease, holder) = (&held.key.id, &held.owner);
            tracing::debug!(%lease, %holder, token = held.token, "renewed elsewhere from now on");
        }
    }

    /// Callers in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.queues().waiting
    }

    // ---- queues -----------------------------------------------------------------------------------

    /// Whether whoever waits is told, so that it need not ask.
    pub(crate) fn listens(&self) -> bool {
        self.store.capabilities().notifies_all()
    }

    fn queues(&self) -> MutexGuard<'_, WaitQueues> {
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

    /// The store cannot be watched. Where that is no matter of time, whoever is about to join is told,
    /// and if nobody waits in the queue already there is no more to do: then it is true.
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
                queue.sync(&listed.waiters, listed.mark, listed.revision);
                queue.found(listed.held, now, look_again);
            }
        });
    }

    pub(crate) fn sync_again(&self, name: &Arc<str>) {
        self.queues().sync_again(name);
    }
}

/// Something that is being let go of. Also if that panics, it is over then.
struct Cleanup(watch::Sender<usize>);

impl Cleanup {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake.notify_one();
        self.poke.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::lease::acquire::claim::Whole;
    use crate::lease::queue::entry::QueueEntry;
    use crate::lease::{Coordinator, Hooks, Scope, Subject, Terms};
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn whoever_joins_as_the_last_one_to_work_for_the_lines_leaves_is_called_all_the_same() {
        let clock = ManualClock::new();
        let random = crate::random::SystemRandom::shared();
        let store = MemoryStore::new().into_store().with_clock(Arc::new(clock.clone()), random);
        let coordinator = Coordinator::new(store).unwrap();
        let (inner, scope) = (coordinator.inner(), "a/free".parse::<Scope>().unwrap());
        inner.queues_open().await.unwrap();
        // Nobody comes, so the one that works for the queues leaves. This is where somebody comes who has
        // just seen that they are open.
        while inner.queues().running {
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
        let terms = Terms::new().wait_forever();
        let entry = QueueEntry::join(inner, &Whole::new(&scope), &terms).await.unwrap();
        let called = tokio::time::timeout(Duration::from_secs(20), entry.woken()).await;
        assert!(called.is_ok(), "nobody calls it, though the scope is free");
    }

    struct Panics;

    #[async_trait::async_trait]
    impl Hooks for Panics {
        async fn will_release_ok(
            &self,
            _: Subject<'_>,
            _: &[u8],
            _: &mut crate::lease::Draft<'_>,
        ) -> Result<()> {
            panic!("on purpose")
        }
    }

    #[tokio::test]
    async fn a_hook_that_panics_leaves_nothing_to_wait_for() {
        let coordinator = Coordinator::new(MemoryStore::new().into_store()).unwrap();
        let terms = Terms::new().hooks(Arc::new(Panics));
        let lease = coordinator.acquire(&"a/b".parse().unwrap(), &terms).await.unwrap();
        let released = tokio::spawn(async move { lease.release_ok(b"x").await });
        assert!(released.await.is_err(), "the panic is the caller's");
        let settled = tokio::time::timeout(Duration::from_secs(20), coordinator.settle()).await;
        assert!(settled.is_ok(), "it waits for ever");
    }
}
