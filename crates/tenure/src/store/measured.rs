//! A wrapper that counts and times every call of any backend, for Prometheus.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Capabilities, Commit, Committed, Page, Query, Touch, Touched, Watch, WatchRequest};
use crate::backend::Backend;
use crate::clock::SharedClock;
use crate::{Error, Key, Object, Result};

/// The most kinds that get a series of their own; a caller that invents kinds must not be able to
/// fill the memory of the program that scrapes.
const KINDS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CallLabels {
    backend: &'static str,
    operation: &'static str,
    outcome: &'static str,
}

impl EncodeLabelSet for CallLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        [("backend", self.backend), ("operation", self.operation), ("outcome", self.outcome)]
            .encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct KindLabel {
    kind: String,
}

impl EncodeLabelSet for KindLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        [("kind", self.kind.as_str())].encode(encoder)
    }
}

type Timers = Family<CallLabels, Histogram, fn() -> Histogram>;

/// The store's counters and timers. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    seconds: Timers,
    conflicts: Family<KindLabel, Counter>,
    retries: Family<KindLabel, Counter>,
    exhausted: Family<KindLabel, Counter>,
    kinds: Arc<std::sync::Mutex<std::collections::HashSet<String>>>,
}

fn call_histogram() -> Histogram {
    Histogram::new([0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0])
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor(call_histogram as fn() -> Histogram),
            conflicts: Family::default(),
            retries: Family::default(),
            exhausted: Family::default(),
            kinds: Arc::default(),
        }
    }
}

impl StoreMetrics {
    /// Metrics that this registry exports:
    ///
    /// - `tenure_store_call_seconds{backend,operation,outcome}`, a histogram whose count is the
    ///   number of calls; the outcome is `ok`, an error's code, or `abandoned` for a call that took
    ///   longer than its caller waited,
    /// - `tenure_store_conflicts_total{kind}`: commits refused because another was first,
    /// - `tenure_store_retries_total{kind}`: conflicts that the retry helper tried again,
    /// - `tenure_store_retries_exhausted_total{kind}`: updates it gave up.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let store = registry.sub_registry_with_prefix("tenure_store");
        store.register("call_seconds", "Duration of store calls", metrics.seconds.clone());
        store.register("conflicts", "Commits refused by a condition", metrics.conflicts.clone());
        store.register("retries", "Conflicts tried again", metrics.retries.clone());
        let exhausted = metrics.exhausted.clone();
        store.register("retries_exhausted", "Updates given up after conflicts", exhausted);
        metrics
    }

    /// Conflicts counted for a kind so far.
    pub fn conflicts(&self, kind: &str) -> u64 {
        self.conflicts.get_or_create(&self.label(kind)).get()
    }

    /// Retries counted for a kind so far.
    pub fn retries(&self, kind: &str) -> u64 {
        self.retries.get_or_create(&self.label(kind)).get()
    }

    /// Updates of a kind given up so far.
    pub fn retries_exhausted(&self, kind: &str) -> u64 {
        self.exhausted.get_or_create(&self.label(kind)).get()
    }

    pub(super) fn retried(&self, kind: &str) {
        self.retries.get_or_create(&self.label(kind)).inc();
    }

    pub(super) fn exhausted(&self, kind: &str) {
        self.exhausted.get_or_create(&self.label(kind)).inc();
    }

    /// Another writer was first.
    pub(super) fn conflicted(&self, kind: &str) {
        self.conflicts.get_or_create(&self.label(kind)).inc();
    }

    /// A commit met this; it counts if a condition refused it.
    pub(super) fn refused(&self, error: &Error) {
        if let Some(kind) = conflicting_kind(error) {
            self.conflicted(kind);
            tracing::debug!(%error, "commit refused");
        }
    }

    fn label(&self, kind: &str) -> KindLabel {
        let mut kinds = self.kinds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !kinds.contains(kind) {
            if kinds.len() >= KINDS {
                return KindLabel { kind: "(other)".into() };
            }
            kinds.insert(kind.to_owned());
        }
        KindLabel { kind: kind.to_owned() }
    }
}

/// The registry's contents in the text format that Prometheus scrapes.
pub fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, registry).is_err() {
        let _ = text.write_str("# metrics could not be encoded\n");
    }
    text
}

/// A backend whose calls are counted and timed.
pub struct Measured {
    inner: Arc<dyn Backend>,
    metrics: StoreMetrics,
    clock: SharedClock,
}

impl Measured {
    /// Measures this backend.
    pub fn new(inner: Arc<dyn Backend>, metrics: StoreMetrics, clock: SharedClock) -> Self {
        Self { inner, metrics, clock }
    }

    async fn timed<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let begun = self.clock.uptime();
        let mut timer = Timer { measured: self, operation, begun, outcome: ABANDONED };
        let result = call.await;
        timer.outcome = result.as_ref().err().map_or("ok", Error::code);
        result
    }
}

/// The outcome of a call that nobody waited for any longer.
const ABANDONED: &str = "abandoned";

/// Counts a call when it is over. One that is given up, as when the store hangs, is over, too.
struct Timer<'a> {
    measured: &'a Measured,
    operation: &'static str,
    begun: Duration,
    outcome: &'static str,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let Measured { inner, metrics, clock } = self.measured;
        let took = clock.uptime().saturating_sub(self.begun);
        let backend = inner.capabilities().backend;
        let labels = CallLabels { backend, operation: self.operation, outcome: self.outcome };
        metrics.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

/// The kind a refused commit conflicted on.
fn conflicting_kind(error: &Error) -> Option<&str> {
    match error {
        Error::Conflict { key, .. }
        | Error::AlreadyExists { key, .. }
        | Error::NotFound { key }
        | Error::Lost { key, .. } => Some(&key.kind),
        Error::NameTaken { kind, .. } => Some(kind),
        _ => None,
    }
}

#[async_trait]
impl Backend for Measured {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.timed("get", self.inner.get(key)).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.timed("list", self.inner.list(query)).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.timed("commit", self.inner.commit(commit)).await
    }

    fn commit_within(&self) -> Option<Duration> {
        self.inner.commit_within()
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.timed("touch", self.inner.touch(touches)).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.timed("watch", self.inner.watch(request)).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
    use crate::store::memory::MemoryStore;
    use crate::store::{CasOutcome, CreateOutcome, Put, RetryPolicy, Store, WriteCondition};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn calls_conflicts_retries_and_exhaustion_are_counted_per_kind() {
        let mut registry = Registry::default();
        let store = MemoryStore::new().into_store();
        let rival = store.clone();
        let store = store.with_metrics(StoreMetrics::register(&mut registry));
        let key = Key::new("order", "1");
        store.put_if(Put::new(key.clone(), "0"), WriteCondition::MustCreate).await.unwrap();

        // A rival that always writes between our read and our write makes us give up.
        let runtime = tokio::runtime::Handle::current();
        let mut turn = 0;
        let beaten = store
            .update_with_retry(&key, RetryPolicy::attempts(1), |object| {
                turn += 1;
                let put = Put::new(object.key.clone(), format!("rival {turn}"));
                tokio::task::block_in_place(|| runtime.block_on(rival.commit(put))).unwrap();
                Ok(Put::new(object.key.clone(), "mine"))
            })
            .await;
        assert!(beaten.unwrap_err().is_conflict());
        assert_eq!(turn, 3, "one attempt is raised to three");
        assert_eq!(store.metrics().conflicts("order"), 3);
        assert_eq!(store.metrics().retries("order"), 2);
        assert_eq!(store.metrics().retries_exhausted("order"), 1);

        let text = encode(&registry);
        for line in [
            "tenure_store_conflicts_total{kind=\"order\"} 3",
            "tenure_store_retries_exhausted_total{kind=\"order\"} 1",
            "operation=\"commit\",outcome=\"conflict\"",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }

    #[tokio::test]
    async fn conflicts_are_counted_wherever_they_are_noticed_and_without_a_registry() {
        let store = MemoryStore::new().into_store();
        let key = Key::new("order", "1");
        let first = store.create_if_absent(&key, "0", None).await.unwrap();
        let CreateOutcome::Created(first) = first else { panic!("{first:?}") };
        assert!(matches!(
            store.create_if_absent(&key, "1", None).await.unwrap(),
            CreateOutcome::Exists(_)
        ));
        assert_eq!(store.metrics().conflicts("order"), 1);
        store.compare_and_set(&key, first.revision, "1", None).await.unwrap();
        // This one is noticed by the read, before anything is written; and so is one that is gone.
        let stale = store.compare_and_set(&key, first.revision, "2", None).await.unwrap();
        assert!(matches!(stale, CasOutcome::Conflict(Some(_))), "{stale:?}");
        assert_eq!(store.metrics().conflicts("order"), 2);
        store.delete(&key).await.unwrap();
        let gone = store.compare_and_set(&key, first.revision, "2", None).await.unwrap();
        assert_eq!(gone, CasOutcome::Conflict(None));
        assert_eq!(store.metrics().conflicts("order"), 3);
    }

    #[tokio::test]
    async fn calls_of_a_store_that_hangs_are_counted_when_they_are_given_up() {
        let mut registry = Registry::default();
        let plan = FaultPlan::scripted();
        let hour = Duration::from_secs(3600);
        plan.next(Operation::Get, Fault::Delay(hour));
        plan.next(Operation::Commit, Fault::Delay(hour));
        let memory = Arc::new(MemoryStore::new());
        let hung = Faulty::new(memory, plan, crate::clock::SystemClock::shared());
        let store = Store::new(hung)
            .with_timeout(Duration::from_millis(20))
            .with_metrics(StoreMetrics::register(&mut registry));
        let key = Key::new("order", "1");
        assert!(matches!(store.get(&key).await, Err(Error::Unavailable { .. })));
        assert!(store.commit(Put::new(key, "x")).await.unwrap_err().is_unknown());
        let text = encode(&registry);
        for operation in ["get", "commit"] {
            let line = format!(
                "_count{{backend=\"memory\",operation=\"{operation}\",outcome=\"abandoned\"}} 1"
            );
            assert!(text.contains(&line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn invented_kinds_share_one_series() {
        let metrics = StoreMetrics::default();
        for n in 0..1000 {
            metrics.retried(&format!("kind-{n}"));
        }
        assert_eq!(metrics.retries("kind-0"), 1);
        assert_eq!(metrics.retries("(other)"), 800);
    }
}
