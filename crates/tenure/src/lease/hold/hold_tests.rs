//! What a holder is told and what it asks of its store, with a store that answers as planned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::poll;
use tokio::task::JoinHandle;

use crate::lease::{
    Coordinator, HookContext, Hooks, LEASE, Lease, LeaseEvent, LeaseRef, Loss, ORPHAN, Scope,
    Terms, WAITER,
};

use crate::clock::{Clock as _, ManualClock, SharedClock, SystemClock};
use crate::lease::hold::renew;
use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use crate::store::memory::MemoryStore;
use crate::store::{Put, Query, Store};
use crate::{Error, Key, Result};

const SECOND: Duration = Duration::from_secs(1);

/// A coordinator whose store fails as planned; delays count on the clock.
fn faulty(store: &Store, name: &str) -> (Coordinator, Arc<FaultPlan>, ManualClock) {
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    (planned(store, name, &plan, &clock, SystemClock::shared()), plan, clock)
}

/// The same, on a clock of its own.
fn planned(
    store: &Store,
    name: &str,
    plan: &Arc<FaultPlan>,
    delays: &ManualClock,
    clock: SharedClock,
) -> Coordinator {
    let backend = Arc::clone(store.backend());
    let faulty = Faulty::new(backend, Arc::clone(plan), Arc::new(delays.clone()));
    let store = Store::new(faulty).with_clock(clock, Arc::clone(store.random()));
    Coordinator::builder(store).name(name).start().unwrap()
}

#[tokio::test]
async fn a_hand_over_is_told_as_one_also_if_a_renewal_finds_out_first() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, clock) = faulty(&store, "holder");
    let scope: Scope = "a/handed".parse().unwrap();
    let terms = Terms::new().ttl(60 * SECOND);
    let lease = holder.acquire(&scope, &terms).await.unwrap();
    let (next, waiting) = waiter(&store, "next", &scope, 1).await;

    plan.next(Operation::Touch, Fault::Delay(SECOND));
    plan.next(Operation::Commit, Fault::LostReply);
    plan.next(Operation::Get, Fault::Delay(2 * SECOND));
    let (inner, held) = (Arc::clone(lease.inner()), Arc::clone(lease.held()));
    let observer = lease.observer();
    let mut renewing = Box::pin(renew::renew_now(&inner, vec![held]));
    assert!(poll!(&mut renewing).is_pending(), "the renewal is on its way");
    let mut handing = Box::pin(lease.hand_over("next"));
    // Until it asks how its hand-over went.
    while !waiting.is_finished() {
        assert!(poll!(&mut handing).is_pending(), "nobody has told it");
        tokio::task::yield_now().await;
    }
    clock.advance(SECOND);
    renewing.await;
    clock.advance(SECOND);
    handing.await.map_err(|(_, error)| error).unwrap();
    let to = next.owner().to_string();
    assert_eq!(observer.loss(), Some(Loss::HandedOver { to }));
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hand_over_that_was_lost_is_not_told_as_one_if_the_successor_acquired_it_itself() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, clock) = faulty(&store, "holder");
    let scope: Scope = "a/doubtful".parse().unwrap();
    let terms = Terms::new().ttl(60 * SECOND);
    let lease = holder.acquire(&scope, &terms).await.unwrap();
    let (next, waiting) = waiter(&store, "next", &scope, 1).await;

    plan.next(Operation::Commit, Fault::LostRequest);
    plan.next(Operation::Get, Fault::Delay(SECOND));
    let mut handing = Box::pin(lease.hand_over("next"));
    assert!(poll!(&mut handing).is_pending(), "it asks how its hand-over went");
    assert!(next.revoke(&scope, "maintenance").await.unwrap());
    let taken = waiting.await.unwrap().unwrap();
    clock.advance(SECOND);
    let (_, error) = handing.await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    taken.release().await.unwrap();
}

#[tokio::test]
async fn a_hand_over_that_was_lost_is_not_told_as_one_if_another_passed_it_on_to_the_same_waiter() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, clock) = faulty(&store, "holder");
    let scope: Scope = "a/detour".parse().unwrap();
    let terms = Terms::new().ttl(60 * SECOND);
    let lease = holder.acquire(&scope, &terms).await.unwrap();
    let (third, waits_first) = waiter(&store, "third", &scope, 1).await;
    let (_next, waits_second) = waiter(&store, "next", &scope, 2).await;

    plan.next(Operation::Commit, Fault::LostRequest);
    plan.next(Operation::Get, Fault::Delay(SECOND));
    let mut handing = Box::pin(lease.hand_over("next"));
    assert!(poll!(&mut handing).is_pending(), "it asks how its hand-over went");
    let asked = SystemClock.wall_ms();
    while SystemClock.wall_ms() == asked {
        tokio::task::yield_now().await;
    }
    assert!(third.revoke(&scope, "maintenance").await.unwrap());
    waits_first.await.unwrap().unwrap().hand_over("next").await.unwrap();
    let taken = waits_second.await.unwrap().unwrap();
    clock.advance(SECOND);
    let (_, error) = handing.await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    taken.release().await.unwrap();
}

#[tokio::test]
async fn a_place_in_line_is_left_also_after_an_outage() {
    let store = MemoryStore::new().into_store();
    let holder = Coordinator::builder(store.clone()).name("holder").start().unwrap();
    let scope: Scope = "a/left".parse().unwrap();
    let lease = holder.acquire(&scope, &Terms::new().ttl(60 * SECOND)).await.unwrap();
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    let waiter = planned(&store, "waiter", &plan, &clock, Arc::new(clock.clone()));
    let waits = {
        let (waiter, scope, terms) = (waiter.clone(), scope.clone(), Terms::new().wait_forever());
        tokio::spawn(async move { waiter.acquire(&scope, &terms).await })
    };
    let queued = async || holder.status(&scope).await.unwrap().waiters.len();
    while queued().await == 0 {
        tokio::task::yield_now().await;
    }

    (0..16).for_each(|_| plan.next(Operation::Commit, Fault::Error));
    waits.abort();
    let left = async {
        while queued().await > 0 {
            clock.advance(SECOND);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(20 * SECOND, left).await.expect("its place is still there");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn what_is_handed_over_and_made_sure_of_late_is_renewed_first() {
    let store = MemoryStore::new().into_store();
    let holder = Coordinator::builder(store.clone()).name("holder").start().unwrap();
    let scope: Scope = "a/late".parse().unwrap();
    let terms = Terms::new().ttl(12 * SECOND);
    let lease = holder.acquire(&scope, &terms).await.unwrap();
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    let next = planned(&store, "next", &plan, &clock, Arc::new(clock.clone()));
    let waits = {
        let (next, scope, terms) = (next.clone(), scope.clone(), terms.wait_forever());
        tokio::spawn(async move { next.acquire(&scope, &terms).await })
    };
    while holder.status(&scope).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }

    // Little is left when the first answer comes, less than the second one takes.
    plan.next(Operation::Touch, Fault::Delay(9 * SECOND));
    plan.next(Operation::Touch, Fault::Delay(5 * SECOND));
    lease.hand_over("next").await.map_err(|(_, error)| error).unwrap();
    while !waits.is_finished() {
        clock.advance(SECOND / 10);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let lease = waits.await.unwrap().unwrap();
    let left = lease.valid_until().saturating_sub(clock.uptime());
    assert!(left > 3 * SECOND, "{left:?} left");
    lease.release().await.unwrap();
}

/// Somebody who waits for a scope, as the so many-th in the queue.
async fn waiter(
    store: &Store,
    name: &str,
    scope: &Scope,
    place: usize,
) -> (Coordinator, JoinHandle<Result<Lease>>) {
    let coordinator = Coordinator::builder(store.clone()).name(name).start().unwrap();
    let (waiting, scope_of_it) = (coordinator.clone(), scope.clone());
    let terms = Terms::new().ttl(60 * SECOND).wait_forever();
    let waits = tokio::spawn(async move { waiting.acquire(&scope_of_it, &terms).await });
    while coordinator.status(scope).await.unwrap().waiters.len() < place {
        tokio::task::yield_now().await;
    }
    (coordinator, waits)
}

#[tokio::test]
async fn a_store_that_fails_at_once_is_not_asked_without_pause() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, _) = faulty(&store, "holder");
    let scope = "a/hammered".parse().unwrap();
    let lease = holder.acquire(&scope, &Terms::new().ttl(SECOND)).await.unwrap();
    plan.next(Operation::Touch, Fault::CrashBefore);
    assert_eq!(lease.lost().await, Loss::Expired);
    let failed = holder.metrics().renewals_failed.get();
    assert!((3..40).contains(&failed), "{failed} attempts within a second");
}

#[tokio::test]
async fn a_lease_is_renewed_when_it_is_due_and_not_before() {
    let store = MemoryStore::new().into_store();
    let coordinator = Coordinator::builder(store).name("holder").start().unwrap();
    let scope = "a/often".parse().unwrap();
    let every = Duration::from_millis(40);
    let terms = Terms::new().ttl(60 * SECOND).renew_every(every);
    let (lease, start) = (coordinator.acquire(&scope, &terms).await.unwrap(), SystemClock.uptime());
    while coordinator.metrics().renewed.get() < 10 {
        tokio::time::sleep(every).await;
    }
    let renewed = coordinator.metrics().renewed.get();
    let most = (SystemClock.uptime() - start).as_millis() / (every * 3 / 4).as_millis();
    assert!(u128::from(renewed) <= most + 1, "renewed {renewed} times, {most} at the most");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_dropped_handle_that_has_expired_is_no_longer_counted() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, _) = faulty(&store, "holder");
    let scope = "a/counted".parse().unwrap();
    let lease = holder.acquire(&scope, &Terms::new().ttl(60 * SECOND)).await.unwrap();
    // Nobody has noticed yet.
    lease.held().state().valid_until = Duration::ZERO;
    drop((lease, plan));
    assert_eq!(holder.metrics().held.get(), 0);
}

/// Adds nothing, but wants to be asked.
struct Hook;

impl Hooks for Hook {}

#[tokio::test]
async fn what_a_hook_should_have_heard_of_in_time_is_left_for_the_reaper() {
    let store = MemoryStore::new().into_store();
    let coordinator = Coordinator::builder(store.clone()).name("holder").start().unwrap();
    let scope = "a/late".parse().unwrap();
    let terms = Terms::new().ttl(60 * SECOND).reapable().hooks(Arc::new(Hook));
    let lease = coordinator.acquire(&scope, &terms).await.unwrap();
    lease.held().state().valid_until = Duration::ZERO;
    assert!(matches!(lease.release_ok(b"42").await, Err(Error::Lost { .. })));
    assert_eq!(store.list_all(&Query::new(ORPHAN)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_no_record_hides_no_lease_and_ends_no_watch() {
    use futures::StreamExt as _;
    let store = MemoryStore::new().into_store();
    let coordinator = Coordinator::new(store.clone()).unwrap();
    let mut watch = coordinator.watch("a/", None).await.unwrap();
    for kind in [LEASE, WAITER] {
        store.commit(Put::new(Key::new(kind, "a/#x"), "junk")).await.unwrap();
    }
    store.commit(Put::new(Key::new(LEASE, "a/a"), "junk")).await.unwrap();
    let lease = coordinator.acquire(&"a/b".parse().unwrap(), &Terms::new()).await.unwrap();
    for listed in [
        coordinator.list_all().await.unwrap(),
        coordinator.list(&"a".parse().unwrap(), true).await.unwrap(),
    ] {
        assert_eq!(listed.iter().map(|info| &*info.id).collect::<Vec<_>>(), ["a/b"]);
    }
    let told = watch.next().await.unwrap().unwrap();
    assert!(matches!(&told, LeaseEvent::Held(info) if info.id == "a/b"), "{told:?}");
    // What is in the way itself says what it is.
    let told = coordinator.acquire(&"a/a".parse().unwrap(), &Terms::new()).await.unwrap_err();
    assert!(matches!(told, Error::Corrupt { .. }), "{told}");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn whoever_renews_what_is_lost_is_told_so_whatever_failed_before() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, _) = faulty(&store, "holder");
    let scope = "a/told".parse().unwrap();
    let lease = holder.acquire(&scope, &Terms::new().ttl(60 * SECOND)).await.unwrap();
    plan.next(Operation::Touch, Fault::CrashBefore);
    let failed = lease.renew().await.unwrap_err();
    assert!(matches!(failed, Error::Unavailable { .. }), "{failed:?}");
    lease.held().state().valid_until = Duration::ZERO;
    let lost = lease.renew().await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost:?}");
}

/// Panics once, and has nothing to add after that.
#[derive(Default)]
struct PanicsOnce(AtomicBool);

#[async_trait::async_trait]
impl Hooks for PanicsOnce {
    async fn will_heartbeat(&self, _: LeaseRef<'_>, _: &mut HookContext<'_>) -> Result<()> {
        assert!(self.0.swap(true, Ordering::AcqRel), "on purpose");
        Ok(())
    }

    fn hears_heartbeats(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_hook_that_panics_costs_one_attempt_and_no_other_lease() {
    let coordinator = Coordinator::new(MemoryStore::new().into_store()).unwrap();
    let often = Terms::new().ttl(60 * SECOND).renew_every(Duration::from_millis(20));
    let hook = Arc::new(PanicsOnce::default());
    let hooked = often.clone().hooks(Arc::clone(&hook) as _);
    let hooked = coordinator.acquire(&"a/hooked".parse().unwrap(), &hooked).await.unwrap();
    let plain = coordinator.acquire(&"a/plain".parse().unwrap(), &often).await.unwrap();
    let until = [hooked.valid_until(), plain.valid_until()];
    let renewed = async {
        while hooked.valid_until() == until[0] || plain.valid_until() == until[1] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let since = plain.valid_until();
        while !hook.0.load(Ordering::Acquire) || plain.valid_until() == since {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(20 * SECOND, renewed).await.expect("nobody renews them any more");
}
