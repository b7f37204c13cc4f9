//! Loops that cannot be stopped: a shutdown comes to its end all the same, and a lease that is still
//! there stays, so that nobody starts beside them.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock::ManualClock;
use crate::gate::{Gate, GateState, GateStatus, Patience};
use crate::lease::{Coordinator, Scope, Terms};
use crate::random::SystemRandom;
use crate::store::Store;
use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use crate::store::memory::MemoryStore;
use crate::{Error, Result};

/// So long that no stall of this machine ends it, and so often renewed that it can be waited for.
const LIFE: Duration = Duration::from_secs(60);
const RENEWED: Duration = Duration::from_millis(50);
/// Whatever is bound to happen is waited for this long.
const BOUND: Duration = Duration::from_secs(20);

/// A gate with a loop that blocks its thread until the test lets it go.
struct Stuck {
    here: Coordinator,
    there: Coordinator,
    scope: Scope,
    gate: Option<Gate>,
    _let_go: mpsc::Sender<()>,
}

struct Running {
    run: JoinHandle<Result<()>>,
    status: watch::Receiver<GateStatus>,
    stop: oneshot::Sender<()>,
}

impl Stuck {
    fn new() -> Self {
        let store = MemoryStore::new().into_store();
        let here = Coordinator::builder(store.clone()).name("here").start().unwrap();
        let there = Coordinator::builder(store).name("there").start().unwrap();
        let scope: Scope = "stuck/loop".parse().unwrap();
        let (let_go, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let patience = Patience { stop: Duration::from_millis(100), ..Patience::default() };
        let terms = Terms::new().ttl(LIFE).renew_every(RENEWED);
        let gate = Gate::new(&here, scope.clone()).terms(terms).patience(patience);
        let gate = gate.work("stuck", move |_term| {
            let blocked = Arc::clone(&blocked);
            async move {
                let _ = blocked.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
        });
        Self { here, there, scope, gate: Some(gate), _let_go: let_go }
    }

    fn start(&mut self, with: impl FnOnce(Gate) -> Gate) -> Running {
        Running::start(with(self.gate.take().expect("started once")))
    }

    async fn keeps_its_lease(&self) {
        let renewed = &self.here.metrics().renewed;
        let before = renewed.get();
        let renewing = async {
            while renewed.get() < before + 2 {
                tokio::time::sleep(RENEWED).await;
            }
        };
        timeout(BOUND, renewing).await.expect("nobody renews it");
        let taken = self.there.acquire(&self.scope, &Terms::new()).await;
        assert!(matches!(taken, Err(Error::Held { .. })), "{taken:?}");
    }
}

impl Running {
    fn start(gate: Gate) -> Self {
        let status = gate.status();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = tokio::spawn(gate.run(async {
            let _ = stopped.await;
        }));
        Self { run, status, stop }
    }

    async fn until(&mut self, state: GateState) {
        let reached = self.status.wait_for(|status| status.state == state);
        timeout(BOUND, reached).await.unwrap_or_else(|_| panic!("never {state}")).unwrap();
    }

    /// The shutdown ends, and says that a loop does not.
    async fn shut_down(self) {
        drop(self.stop);
        let ended = timeout(BOUND, self.run).await.expect("the shutdown has an end").unwrap();
        let error = ended.expect_err("a loop is still running");
        assert!(error.to_string().contains("did not stop in time"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_loop_that_is_stuck_at_shutdown_keeps_its_lease_from_others() {
    let mut stuck = Stuck::new();
    let mut running = stuck.start(|gate| gate);
    running.until(GateState::Holding).await;
    running.shut_down().await;
    stuck.keeps_its_lease().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_shutdown_has_an_end_though_a_loop_is_stuck_since_the_lease_was_lost() {
    let mut stuck = Stuck::new();
    let mut running = stuck.start(|gate| gate);
    running.until(GateState::Holding).await;
    assert!(stuck.there.revoke(&stuck.scope, "for the test").await.unwrap());
    running.until(GateState::Stopping).await;
    running.shut_down().await;
    // The lease was gone, and others may have it: the fence keeps the stuck loop's writes out.
    stuck.there.acquire(&stuck.scope, &Terms::new()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_shutdown_has_an_end_though_a_loop_is_stuck_since_another_one_ended() {
    let mut stuck = Stuck::new();
    let mut running = stuck.start(|gate| gate.work("brief", |_term| async {}));
    running.until(GateState::Stopping).await;
    running.shut_down().await;
    stuck.keeps_its_lease().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_gate_that_was_dropped_is_waited_for_by_whoever_settles() {
    let here = Coordinator::new(MemoryStore::new().into_store()).unwrap();
    let scope: Scope = "dropped/gate".parse().unwrap();
    let gate = Gate::new(&here, scope.clone()).work("slow", |_term| async {
        loop {
            // It can be dropped only here and there.
            std::thread::sleep(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    });
    let mut status = gate.status();
    let run = tokio::spawn(gate.run(std::future::pending()));
    timeout(BOUND, status.wait_for(GateStatus::is_holding)).await.unwrap().unwrap();
    run.abort();
    assert!(run.await.is_err());
    timeout(BOUND, here.settle()).await.expect("it comes to an end");
    assert_eq!(here.holder(&scope).await.unwrap(), None);
}

/// A gate with a loop that does not stop when it is told to, on a store that fails as planned.
struct Deaf {
    running: Running,
    plan: Arc<FaultPlan>,
    clock: ManualClock,
    /// Closed once the loop has been dropped.
    dropped: oneshot::Sender<()>,
}

impl Deaf {
    async fn start() -> Self {
        let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
        let inner = Arc::new(MemoryStore::new());
        let store = Store::new(Faulty::new(inner, Arc::clone(&plan), Arc::new(clock.clone())));
        let store = store.with_clock(Arc::new(clock.clone()), SystemRandom::shared());
        let here = Coordinator::builder(store).name("here").start().unwrap();
        let (dropped, works) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel::<()>();
        let works = Mutex::new(Some((begins, works)));
        let patience = Patience { stop: Duration::from_secs(3600), ..Patience::default() };
        let gate = Gate::new(&here, "deaf/loop".parse().unwrap())
            .terms(Terms::new().ttl(Duration::from_secs(30)))
            .patience(patience)
            .work("deaf", move |_term| {
                let works = works.lock().unwrap_or_else(PoisonError::into_inner).take();
                async move {
                    let _works = works.map(|(begins, works)| {
                        let _ = begins.send(());
                        works
                    });
                    std::future::pending::<()>().await;
                }
            });
        let mut running = Running::start(gate);
        running.until(GateState::Holding).await;
        // A loop that is told to stop before it was polled once never begins, and is not dropped either.
        timeout(BOUND, begun).await.expect("the loop begins").unwrap();
        Self { running, plan, clock, dropped }
    }

    async fn drops_its_loop(mut self) {
        let dropped = timeout(BOUND, self.dropped.closed()).await;
        assert!(dropped.is_ok(), "it goes on though others may have the lease");
        self.running.run.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn loops_that_lose_their_lease_while_they_are_being_stopped_are_dropped_in_time() {
    let mut deaf = Deaf::start().await;
    // The store is gone, and a shutdown begins.
    deaf.plan.next(Operation::Touch, Fault::CrashBefore);
    let (stop, _) = oneshot::channel();
    drop(std::mem::replace(&mut deaf.running.stop, stop));
    deaf.running.until(GateState::Stopping).await;
    let mut left = Duration::from_secs(30);
    while !left.is_zero() && !deaf.dropped.is_closed() {
        let step = Duration::from_millis(100);
        deaf.clock.advance(step);
        left -= step;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    deaf.drops_its_loop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn loops_of_a_process_that_stood_still_until_its_lease_was_over_are_dropped_at_once() {
    let deaf = Deaf::start().await;
    deaf.clock.advance(Duration::from_secs(60));
    deaf.drops_its_loop().await;
}

/// Panics as it goes.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_loop_that_panics_as_it_is_dropped_has_ended() {
    let here = Coordinator::new(MemoryStore::new().into_store()).unwrap();
    let scope: Scope = "bomb/loop".parse().unwrap();
    let patience = Patience { stop: Duration::from_millis(50), ..Patience::default() };
    let gate = Gate::new(&here, scope.clone()).patience(patience).work("deaf", |_term| async {
        let _bomb = Bomb;
        std::future::pending::<()>().await;
    });
    let mut running = Running::start(gate);
    running.until(GateState::Holding).await;
    drop(running.stop);
    timeout(BOUND, running.run).await.expect("the shutdown has an end").unwrap().unwrap();
    assert_eq!(here.holder(&scope).await.unwrap(), None);
}
