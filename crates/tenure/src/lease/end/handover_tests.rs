//! Hand-overs while the queue or the group changes under them.

use std::sync::Arc;
use std::time::Duration;

use futures::poll;

use crate::clock::ManualClock;
use crate::lease::{Coordinator, Namespace, SLOTS, Scope, Terms};
use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use crate::store::memory::MemoryStore;
use crate::store::{Put, Store};
use crate::{Error, Key};

const SECOND: Duration = Duration::from_secs(1);

fn terms() -> Terms {
    Terms::new().ttl(60 * SECOND)
}

fn named(store: &Store, name: &str) -> Coordinator {
    Coordinator::builder(store.clone()).name(name).start().unwrap()
}

/// A coordinator whose next commit is late, until the clock has advanced by a second.
fn late(store: &Store, name: &str) -> (Coordinator, Arc<FaultPlan>, ManualClock) {
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    let backend = Arc::clone(store.backend());
    let faulty = Faulty::new(backend, Arc::clone(&plan), Arc::new(clock.clone()));
    (named(&Store::new(faulty), name), plan, clock)
}

#[tokio::test]
async fn a_successor_that_leaves_at_the_last_moment_is_told_as_one_that_does_not_wait() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, clock) = late(&store, "holder");
    let scope: Scope = "a/left".parse().unwrap();
    let lease = holder.acquire(&scope, &terms()).await.unwrap();
    let next = named(&store, "next");
    let waits = tokio::spawn({
        let (next, scope) = (next.clone(), scope.clone());
        async move { next.acquire(&scope, &terms().wait_forever()).await }
    });
    while next.status(&scope).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    plan.next(Operation::Commit, Fault::Delay(SECOND));
    let mut handing = Box::pin(lease.hand_over("next"));
    assert!(poll!(&mut handing).is_pending(), "it is on its way");
    waits.abort();
    while !next.status(&scope).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    clock.advance(SECOND);
    let (lease, told) = handing.await.unwrap_err();
    assert!(matches!(told, Error::Invalid { .. }), "{told:?}");
    assert!(lease.is_valid());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_group_that_changes_meanwhile_keeps_nobody_from_handing_over() {
    let store = MemoryStore::new().into_store();
    let (holder, plan, clock) = late(&store, "holder");
    let group: Namespace = "a.group".parse().unwrap();
    let slot = holder.slots(&group).acquire(1, &terms()).await.unwrap();
    let next = named(&store, "next");
    let waits = tokio::spawn({
        let slots = next.slots(&group);
        async move { slots.acquire(1, &terms().wait_forever()).await }
    });
    while next.slots(&group).waiters().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    plan.next(Operation::Commit, Fault::Delay(SECOND));
    let mut handing = Box::pin(slot.into_lease().hand_over("next"));
    assert!(poll!(&mut handing).is_pending(), "it is on its way");
    // As many as before, so that nobody else can have one; an acquisition after a shrink does this.
    let group = Key::new(SLOTS, group.as_str());
    store.commit(Put::new(group, r#"{"count":1,"epoch":1}"#)).await.unwrap();
    clock.advance(SECOND);
    handing.await.map_err(|(_, error)| error).unwrap();
    waits.await.unwrap().unwrap().into_lease().release().await.unwrap();
}
