//! What a holder is told and what it asks of its store, with a store that answers as planned.

use std::sync::Arc;
use std::time::Duration;

use super::{Coordinator, Loss, Terms};
use crate::clock::{Clock as _, ManualClock, SystemClock};
use crate::store::Store;
use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use crate::store::memory::MemoryStore;

const SECOND: Duration = Duration::from_secs(1);

/// A coordinator whose store fails as planned; delays count on the clock.
fn faulty(store: &Store, name: &str) -> (Coordinator, Arc<FaultPlan>, ManualClock) {
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    let backend = Arc::clone(store.backend());
    let faulty = Faulty::new(backend, Arc::clone(&plan), Arc::new(clock.clone()));
    let store = Store::new(faulty).with_clock(SystemClock::shared(), Arc::clone(store.random()));
    (Coordinator::builder(store).name(name).start().unwrap(), plan, clock)
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
