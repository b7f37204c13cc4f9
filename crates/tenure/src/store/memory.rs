//! The store in memory, for tests and for `memory:`. It is deterministic on a clock that is passed in, and
//! the reference for all others.
//!
//! One lock around maps makes every operation atomic; nothing survives the process. Its history is
//! what its feed still holds.

mod state;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use self::state::State;
use super::{
    Capabilities, Commit, Committed, Durability, ExpiryClock, Kinds, Notifies, Page, Query, Reach,
    Store, Touch, Touched, Ttl, Watch, WatchRequest,
};
use crate::backend::decide::{Now, Step, decide_once, decide_sweep, decide_touch};
use crate::backend::{Backend, Feed, FeedLimits};
use crate::clock::{SharedClock, SystemClock};
use crate::{Error, Key, Limits, Object, Result};

/// The sweeper looks at least this often.
const SWEEP_AT_LEAST: Duration = Duration::from_secs(1);
/// Expired rows removed by one commit on its way, so that nobody has to wait for a long sweep.
const SWEEP_ON_THE_WAY: usize = 64;
/// Expired rows removed by one step of a sweep, so that watchers can keep up with it.
const SWEEP: usize = 512;

/// A store in memory.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
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
        kinds: Kinds::Any,
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
        replicas: Some(1),
        limits: Limits::DEFAULT,
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let store_ms = i64::try_from(self.clock.uptime().as_millis()).unwrap_or(i64::MAX);
        Now { store_ms, wall_ms: self.clock.wall_ms() }
    }

    /// How many rows were removed.
    fn sweep(&self, state: &mut State, now: Now, limit: usize) -> usize {
        let Some(step) = decide_sweep(state.expired(now, limit), now, state.head) else { return 0 };
        state.apply(&step);
        self.feed.publish([step.batch()]);
        step.changes.len()
    }

    /// One step of a sweep; whether there may be more to do.
    fn sweep_some(&self) -> bool {
        let mut state = self.lock();
        let now = self.now();
        self.sweep(&mut state, now, SWEEP) == SWEEP
    }

    /// When, on the clock's uptime, the sweeper should look next.
    fn next_sweep(&self) -> Duration {
        let latest = self.clock.uptime() + SWEEP_AT_LEAST;
        match self.lock().expiries.first() {
            Some((at, _)) => latest.min(Duration::from_millis(u64::try_from(*at).unwrap_or(0))),
            None => latest,
        }
    }

    /// Watchers hear of an expiry when it happens, not with the next write. The sweeper is a
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
                while weak.upgrade().is_some_and(|inner| inner.sweep_some()) {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.expiry_changed.notify_one();
        self.feed.close(Error::unavailable("memory", "the store was dropped"));
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
        Ok(state.find(key).and_then(|row| row.read(self.inner.now().store_ms)))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let state = self.inner.lock();
        Ok(state.page(query, self.inner.now()))
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        let inner = &self.inner;
        let mut state = inner.lock();
        let now = inner.now();
        let head = state.head;
        let decision = decide_once(&mut *state, commit, now, head)?;
        for step in &decision.steps {
            state.apply(step);
        }
        for (key, expires_at_ms) in &decision.refreshed {
            state.extend(key, *expires_at_ms);
        }
        // Published under the lock, so that the feed's order is the commits' order.
        let evicted = inner.feed.publish(decision.steps.iter().map(Step::batch));
        let mortal = !state.expiries.is_empty();
        if mortal {
            inner.sweep(&mut state, now, SWEEP_ON_THE_WAY);
        }
        // Others wait for the lock, and nothing that is freed from here on needs it.
        drop(state);
        drop(evicted);
        if mortal {
            inner.expiry_changed.notify_one();
        }
        Ok(decision.committed)
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
    use crate::clock::ManualClock;
    use crate::store::{Event, Expect, Put, Selector};

    /// A runtime on a thread of its own, as a program with several has them.
    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[tokio::test]
    async fn a_life_is_not_cut_short_by_part_of_a_millisecond() {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(Arc::new(clock.clone())).into_store();
        clock.advance(Duration::from_micros(900));
        let key = Key::new("k", "1");
        store.commit(Put::new(key.clone(), "").ttl(Duration::from_millis(1))).await.unwrap();
        clock.advance(Duration::from_micros(999));
        assert!(store.get(&key).await.unwrap().is_some());
        clock.advance(Duration::from_micros(1_001));
        assert!(store.get(&key).await.unwrap().is_none());
    }

    /// A store whose history holds 16 MiB, with this many objects of this size, and a watch from here on.
    async fn crowded(clock: &ManualClock, objects: usize, bytes: usize) -> (Store, Watch) {
        let limits = FeedLimits { batches: 100_000, bytes: 16 * 1024 * 1024 };
        let store = MemoryStore::with_history(Arc::new(clock.clone()), limits).into_store();
        for n in 0..objects {
            let put = Put::new(Key::new("k", n.to_string()), vec![7; bytes]);
            store.commit(put.ttl(Duration::from_secs(1))).await.unwrap();
        }
        let watch = store.watch(&WatchRequest::kind("k")).await.unwrap();
        (store, watch)
    }

    #[tokio::test]
    async fn a_watcher_that_keeps_up_hears_of_all_that_expires_at_once() {
        let clock = ManualClock::new();
        let (store, mut watch) = crowded(&clock, 2_000, 32 * 1024).await;
        clock.advance(Duration::from_secs(2));
        let mut gone = 0;
        while gone < 2_000 {
            gone += watch.next().await.unwrap().unwrap().events.len();
        }
        // Those who commit tidy up as well, a little.
        let (other, mut watch) = crowded(&clock, 64, 1024 * 1024).await;
        clock.advance(Duration::from_secs(2));
        other.commit(Put::new(Key::new("other", "1"), "x")).await.unwrap();
        let mut gone = 0;
        while gone < 64 {
            gone += watch.next().await.unwrap().unwrap().events.len();
        }
        drop((store, other));
    }

    #[tokio::test]
    async fn a_watcher_hears_of_a_commit_that_deletes_more_than_history_holds() {
        let clock = ManualClock::new();
        let (store, mut watch) = crowded(&clock, 100, 512 * 1024).await;
        let delete =
            |commit: Commit, n: usize| commit.delete(Key::new("k", n.to_string()), Expect::Exists);
        store.commit((0..100).fold(Commit::new(), delete)).await.unwrap();
        let batch = watch.next().await.unwrap().unwrap();
        let told = batch.events.iter().filter(|e| matches!(e, Event::Delete { last: Some(_), .. }));
        assert_eq!((batch.events.len(), told.count()), (100, 8));
    }

    #[tokio::test]
    async fn a_selector_that_matches_little_is_answered_in_steps() {
        let store = MemoryStore::new().into_store();
        for n in 0..12_000 {
            let put = Put::new(Key::new("k", format!("{n:05}")), "");
            let put = if n == 11_999 { put.label("rare", "yes") } else { put };
            store.commit(put).await.unwrap();
        }
        let query = Query::new("k").selector(Selector::equals("rare", "yes"));
        let first = store.list(&query).await.unwrap();
        assert_eq!((first.objects.len(), first.next.as_deref()), (0, Some("04999")));
        let all = store.list_all(&query).await.unwrap();
        assert_eq!(all.iter().map(|object| object.key.id.as_str()).collect::<Vec<_>>(), ["11999"]);
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
