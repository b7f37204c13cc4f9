//! On a store that does not tell everybody of a change, whoever waits asks: as often as it was told to,
//! and at the very end of the holder's life, never more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Lease, Options, Scope, Terms};
use tenure::store::memory::MemoryStore;
use tenure::store::{
    Capabilities, Commit, Committed, Notifies, Page, Query, Reach, Store, Touch, Touched, Watch,
    WatchRequest,
};
use tenure::{Key, Object, Result};
use tenure_conformance::{Outcome, Subject, behaviours, run_one};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Whatever is bound to happen is waited for this long.
const BOUND: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(60);

/// Memory as if other processes shared it and heard nothing of each other. Counts commits.
struct Silent {
    inner: MemoryStore,
    capabilities: Capabilities,
    commits: AtomicU64,
}

impl Silent {
    fn new() -> Arc<Self> {
        let inner = MemoryStore::new();
        let capabilities = Capabilities {
            backend: "silent",
            reach: Reach::Host,
            notifies: Notifies::Process,
            ..inner.capabilities().clone()
        };
        assert!(!capabilities.notifies_all());
        Arc::new(Self { inner, capabilities, commits: AtomicU64::new(0) })
    }

    fn store(self: &Arc<Self>) -> Store {
        Store::from_arc(Arc::clone(self) as Arc<dyn Backend>)
    }

    fn coordinator(self: &Arc<Self>, name: &str, poll_every: Duration) -> Coordinator {
        let options = Options { poll_every, ..Options::default() };
        Coordinator::builder(self.store())
            .name(name)
            .options(options)
            .start()
            .expect("a coordinator")
    }

    fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Backend for Silent {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.inner.list(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.inner.commit(commit).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.inner.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.inner.watch(request).await
    }
}

fn scope() -> Scope {
    "silent/one".parse().expect("a scope")
}

fn waiting(standby: &Coordinator) -> JoinHandle<Result<Lease>> {
    let standby = standby.clone();
    tokio::spawn(
        async move { standby.acquire(&scope(), &Terms::new().ttl(LONG).wait_forever()).await },
    )
}

async fn granted(waiting: JoinHandle<Result<Lease>>) -> Lease {
    timeout(BOUND, waiting)
        .await
        .expect("the standby's turn")
        .expect("no panic")
        .expect("the lease")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_asks_as_often_as_it_was_told_to() {
    let poll_every = Duration::from_millis(50);
    let silent = Silent::new();
    let holder = silent.coordinator("holder", LONG);
    let lease = holder.acquire(&scope(), &Terms::new().ttl(LONG)).await.unwrap();
    let waiting = waiting(&silent.coordinator("standby", poll_every));
    let (before, begun) = (silent.commits(), SystemClock.uptime());
    let asked = async {
        while silent.commits() < before + 5 {
            tokio::time::sleep(poll_every / 10).await;
        }
    };
    timeout(BOUND, asked).await.expect("it asks again and again");
    let (tries, took) = (silent.commits() - before, SystemClock.uptime() - begun);
    // The first ones come with its arrival: before it queues up, and once it has.
    let most = 3 + took.as_millis() / poll_every.as_millis();
    assert!(u128::from(tries) <= most, "{tries} tries within {took:?}");
    assert!(!waiting.is_finished(), "it has what another holds");
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_there_when_the_holders_life_ends() {
    let silent = Silent::new();
    // Without a handle nobody renews it.
    let holder = silent.coordinator("holder", LONG);
    let life = Duration::from_millis(300);
    let lease = holder.acquire(&scope(), &Terms::new().ttl(life)).await.unwrap();
    let token = lease.detach().token;
    // By asking every so often alone it would come three times as late as it is waited for.
    let next = granted(waiting(&silent.coordinator("standby", LONG))).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_gates_hold_where_nobody_is_told() {
    let silent = Silent::new();
    let subject = Subject::new(Arc::new(move || {
        let store = silent.store();
        Box::pin(async move { Ok(store) })
    }));
    let names = [
        "a_dropped_handle_lets_go",
        "a_gate_without_its_store_closes",
        "a_holder_without_its_store_stops_before_the_next_one_starts",
        "one_gate_of_many_is_open",
        "readers_share_and_a_writer_is_alone",
        "several_scopes_are_acquired_together_or_not_at_all",
    ];
    let chosen: Vec<_> = behaviours().into_iter().filter(|b| names.contains(&b.name)).collect();
    assert_eq!(chosen.len(), names.len(), "one of them has another name");
    let running = chosen.iter().map(|behaviour| run_one(&subject, behaviour));
    for report in futures::future::join_all(running).await {
        assert_eq!(report.outcome, Outcome::Passed, "{}", report.name);
    }
}
