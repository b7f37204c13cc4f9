//! What a coordinator, its leases and its background tasks share: the store, the clock, the settings, and
//! the state that [`super::hold`] and [`super::queue`] work on.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};

use crate::clock::SharedClock;
use crate::lease::hold::renew;
use crate::lease::hold::schedule::Schedule;
use crate::lease::nonces::Nonces;
use crate::lease::queue::wait_queues::WaitQueues;
use crate::lease::runtime::Spawn;
use crate::lease::{LeaseMetrics, Options, Owner};
use crate::random::SharedRandom;
use crate::store::Store;

/// The shared middle of a coordinator.
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) clock: SharedClock,
    pub(crate) random: SharedRandom,
    pub(crate) owner: Owner,
    pub(crate) options: Options,
    pub(crate) metrics: LeaseMetrics,
    runtime: Arc<dyn Spawn>,
    nonces: Nonces,
    /// What is held, and when to renew it: see [`super::hold`].
    pub(crate) schedule: Mutex<Schedule>,
    /// Wakes the renewal.
    pub(crate) wake: Arc<Notify>,
    /// Who waits: see [`super::queue`].
    pub(crate) queues: Mutex<WaitQueues>,
    /// Wakes the task that works for the queues.
    pub(crate) poke: Arc<Notify>,
    /// Tells that queues can be joined.
    pub(crate) opened: Notify,
    /// How much of what was dropped is still to be released.
    cleanups: watch::Sender<usize>,
}

impl Inner {
    /// Starts to renew what will be held.
    pub(crate) fn start(
        store: Store,
        owner: Owner,
        options: Options,
        metrics: LeaseMetrics,
        runtime: Arc<dyn Spawn>,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            clock: Arc::clone(store.clock()),
            random: Arc::clone(store.random()),
            store,
            owner,
            options,
            metrics,
            runtime,
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
        self.runtime.spawn(task);
    }

    /// Runs the release of something that was dropped, in the background.
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
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::lease::acquire::claim::Whole;
    use crate::lease::queue::entry::QueueEntry;
    use crate::lease::{Coordinator, Hooks, LeaseRef, Scope, Terms};
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
            _: LeaseRef<'_>,
            _: &[u8],
            _: &mut crate::lease::HookContext<'_>,
        ) -> crate::Result<()> {
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
