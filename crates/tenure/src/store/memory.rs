//! The store in memory: deterministic, with an injected clock, the reference for all others.
//!
//! One lock around ordinary maps makes every operation atomic; nothing survives the process. Its
//! history is what its feed still holds.

mod id;
mod queue;
mod state;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use self::queue::Queue;
use self::state::{State, read};
use super::decide::{Now, Step, decide, decide_sweep, decide_touch};
use super::{
    Backend, Capabilities, Commit, Committed, Durability, ExpiryClock, Feed, FeedLimits, Notifies,
    Page, Query, Reach, Store, Touch, Touched, Ttl, Watch, WatchRequest,
};
use crate::clock::{SharedClock, SystemClock};
use crate::{Key, Limits, Object, Result};

/// The sweeper looks at least this often.
const SWEEP_AT_LEAST: Duration = Duration::from_secs(1);
/// Expired rows removed by one commit on its way, so that nobody has to wait for a long sweep.
const SWEEP_AT_ONCE: usize = 64;

/// A store in memory.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Commits of those who found the lock taken.
    queue: Queue,
    feed: Arc<Feed>,
    clock: SharedClock,
    capabilities: Capabilities,
    /// Told when the earliest expiry may have moved nearer.
    expiry_changed: Arc<Notify>,
    sweeping: AtomicBool,
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// An empty store on this clock.
    pub fn with_clock(clock: SharedClock) -> Self {
        Self::with_history(clock, FeedLimits { batches: 100_000, bytes: 64 * 1024 * 1024 })
    }

    /// An empty store that remembers so much history.
    pub fn with_history(clock: SharedClock, limits: FeedLimits) -> Self {
        let inner = Inner {
            state: Mutex::default(),
            queue: Queue::default(),
            feed: Arc::new(Feed::new(0, limits)),
            clock,
            capabilities: capabilities(),
            expiry_changed: Arc::default(),
            sweeping: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A handle to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// What a memory store promises.
pub fn capabilities() -> Capabilities {
    Capabilities {
        backend: "memory",
        objects: true,
        multi_object_commits: true,
        names: true,
        labels: true,
        ttl: Some(Ttl { min: Duration::from_millis(1), granularity: Duration::from_millis(1) }),
        touch_keeps_revision: true,
        user_sql: false,
        // Bounded by size, not by time; a promise of time would be a guess.
        history: Some(Duration::ZERO),
        notifies: Notifies::Process,
        expiry_clock: ExpiryClock::Process,
        reach: Reach::Process,
        durability: Durability::Volatile,
        limits: Limits::DEFAULT,
    }
}

impl Inner {
    fn lock(&self) -> Locked<'_> {
        // Nothing under this lock panics halfway through a change.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { inner: self, state: Some(state) }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn now(&self) -> Now {
        let store_ms = i64::try_from(self.clock.uptime().as_millis()).unwrap_or(i64::MAX);
        Now { store_ms, wall_ms: self.clock.wall_ms() }
    }

    /// Commits at once if the lock is free, and whatever has queued up meanwhile. Otherwise whoever has
    /// the lock does it: one thread that works while others queue is quicker than threads that take turns
    /// at waking each other.
    fn try_commit(&self, commit: Commit) -> std::result::Result<Result<Committed>, queue::Later> {
        let Some(mut state) = self.try_lock() else {
            let later = self.queue.push(commit);
            self.work_off();
            return Err(later);
        };
        // Whoever is in the queue came first.
        self.answer_queue(&mut state);
        let committed = self.commit(&mut state, &commit);
        drop(state);
        self.work_off();
        Ok(committed)
    }

    fn answer_queue(&self, state: &mut State) {
        for queued in self.queue.take() {
            let committed = self.commit(state, &queued.commit);
            queued.answer(committed);
        }
    }

    /// Works off the queue, unless somebody else has the lock. They look again after they have let go of
    /// it, so nobody is forgotten.
    fn work_off(&self) {
        while !self.queue.is_empty() {
            let Some(mut state) = self.try_lock() else { return };
            self.answer_queue(&mut state);
        }
    }

    fn commit(&self, state: &mut State, commit: &Commit) -> Result<Committed> {
        let now = self.now();
        let head = state.head;
        let decision = decide(state, commit, now, head)?;
        for step in &decision.steps {
            state.apply(step);
        }
        for (key, expires_at_ms) in &decision.refreshed {
            state.extend(key, *expires_at_ms);
        }
        // Published under the lock, so that the feed's order is the commits' order.
        self.feed.publish(decision.steps.iter().map(Step::batch));
        if !state.expiries.is_empty() {
            self.sweep(state, now, SWEEP_AT_ONCE);
            self.expiry_changed.notify_one();
        }
        Ok(decision.committed)
    }

    fn sweep(&self, state: &mut State, now: Now, limit: usize) {
        if let Some(step) = decide_sweep(state.expired(now, limit), now, state.head) {
            state.apply(&step);
            self.feed.publish([step.batch()]);
        }
    }

    /// When, on the clock's uptime, the sweeper should look next.
    fn next_sweep(&self) -> Duration {
        let latest = self.clock.uptime() + SWEEP_AT_LEAST;
        match self.lock().expiries.first() {
            Some((at, _)) => latest.min(Duration::from_millis(u64::try_from(*at).unwrap_or(0))),
            None => latest,
        }
    }

    /// Watchers hear of an expiry when it happens, not when somebody next writes. The sweeper is a
    /// task of whichever watcher's runtime comes first, so that a simulation stays in step.
    fn ensure_sweeper(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, changed) = (Arc::downgrade(self), Arc::clone(&self.expiry_changed));
        let reset = ResetOnDrop(weak.clone());
        tokio::spawn(async move {
            let _reset = reset;
            // While it sleeps, the task keeps nothing alive.
            while let Some(sleep) =
                weak.upgrade().map(|inner| inner.clock.sleep_until(inner.next_sweep()))
            {
                tokio::select! {
                    () = sleep => {}
                    () = changed.notified() => {}
                }
                if let Some(inner) = weak.upgrade() {
                    let mut state = inner.lock();
                    let now = inner.now();
                    inner.sweep(&mut state, now, usize::MAX);
                }
            }
        });
    }
}

/// The lock, taken by somebody who does not commit. Whoever found it taken is served at its end.
struct Locked<'a> {
    inner: &'a Inner,
    /// Gone only while it is being dropped.
    state: Option<MutexGuard<'a, State>>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.state = None;
        self.inner.work_off();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.expiry_changed.notify_one();
        self.feed.close(crate::Error::unavailable("memory", "the store was dropped"));
    }
}

/// A runtime that ends takes its tasks along; a watcher of another one then starts the sweeper again.
struct ResetOnDrop(Weak<Inner>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.sweeping.store(false, Ordering::Release);
            inner.feed.nudge();
        }
    }
}

#[async_trait]
impl Backend for MemoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        // The clock is read under the lock, here and below: an instant taken earlier could lie
        // before a commit that came first.
        let state = self.inner.lock();
        let Some(row) = state.find(key) else { return Ok(None) };
        Ok(read(row, key, || self.inner.now().store_ms))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let state = self.inner.lock();
        Ok(state.page(query, self.inner.now()))
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        match self.inner.try_commit(commit) {
            Ok(committed) => committed,
            // Somebody has the lock, and works on ours along with its own.
            Err(later) => later.await,
        }
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let mut state = self.inner.lock();
        let now = self.inner.now();
        let touch = |touch: Touch| {
            let (expires_at_ms, touched) = decide_touch(&touch, state.find(&touch.key), now)?;
            state.extend(&touch.key, expires_at_ms);
            Ok(touched)
        };
        Ok(touches.into_iter().map(touch).collect())
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.inner.ensure_sweeper();
        let weak = Arc::downgrade(&self.inner);
        Ok(self.inner.feed.watch(request, None)?.tended(move || {
            if let Some(inner) = weak.upgrade() {
                inner.ensure_sweeper();
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Put;

    /// A runtime on a thread of its own, as a program with several has them.
    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[tokio::test]
    async fn a_life_is_not_cut_short_by_part_of_a_millisecond() {
        let clock = crate::clock::ManualClock::new();
        let store = MemoryStore::with_clock(Arc::new(clock.clone())).into_store();
        clock.advance(Duration::from_micros(900));
        let key = Key::new("k", "1");
        store.commit(Put::new(key.clone(), "").ttl(Duration::from_millis(1))).await.unwrap();
        clock.advance(Duration::from_micros(999));
        assert!(store.get(&key).await.unwrap().is_some());
        clock.advance(Duration::from_micros(1_001));
        assert!(store.get(&key).await.unwrap().is_none());
    }

    #[test]
    fn whoever_finds_the_lock_taken_is_served_all_the_same() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_time()
            .build()
            .unwrap();
        let store = MemoryStore::new().into_store();
        let tasks: Vec<_> = (0..16)
            .map(|writer| {
                let store = store.clone();
                runtime.spawn(async move {
                    let key = Key::new("k", format!("{}", writer % 8));
                    for _ in 0..2_000 {
                        // Readers take the lock as well, and have nothing to commit themselves.
                        let seen =
                            store.get(&key).await.unwrap().map_or(0, |object| object.version);
                        let put = Put::new(key.clone(), format!("{writer}-{seen}"));
                        if writer < 8 {
                            store.commit(put).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        let done = async { futures::future::join_all(tasks).await };
        let done = runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(60), done).await.expect("nobody is forgotten")
        });
        assert!(done.iter().all(Result::is_ok));
        let all = runtime.block_on(store.list(&Query::new("k"))).unwrap();
        assert_eq!(all.revision, 16_000);
    }

    #[test]
    fn watchers_outlive_the_runtime_that_swept_for_them() {
        let (first, second) = (runtime(), runtime());
        let store = MemoryStore::new().into_store();
        let early = first.block_on(store.watch(&WatchRequest::kind("k"))).unwrap();
        let mut watch = second.block_on(store.watch(&WatchRequest::kind("k"))).unwrap();
        let put = Put::new(Key::new("k", "1"), "").ttl(Duration::from_millis(300));
        second.block_on(store.commit(put)).unwrap();
        let waiting = second.spawn(async move {
            watch.next().await.unwrap().unwrap();
            watch.next().await.unwrap().unwrap()
        });
        drop(early);
        first.shutdown_background();
        let told =
            second.block_on(async { tokio::time::timeout(Duration::from_secs(20), waiting).await });
        assert_eq!(told.unwrap().unwrap().revision, 2);
    }
}
