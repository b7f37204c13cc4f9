//! Holders that are asked to hand over.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::clock::ManualClock;
use crate::lease::{Coordinator, HAND_OVER, Lease, LeaseInfo, Scope, Terms};
use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use crate::store::memory::MemoryStore;
use crate::store::{Query, Store};
use crate::{Error, Result};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn named(store: &Store, name: &str) -> Coordinator {
    Coordinator::builder(store.clone()).name(name).start().unwrap()
}

fn terms() -> Terms {
    Terms::new().ttl(LONG)
}

/// Somebody who waits for a scope, once it is in the queue.
async fn waiter(store: &Store, name: &str, scope: &Scope) -> JoinHandle<Result<Lease>> {
    let (waiting, wanted) = (named(store, name), scope.clone());
    let waits = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.acquire(&wanted, &terms().wait_forever()).await }
    });
    let is_in_line = async || {
        let queue = waiting.status(scope).await.unwrap().waiters;
        queue.iter().any(|waiter| waiter.owner.name() == name)
    };
    while !is_in_line().await {
        tokio::task::yield_now().await;
    }
    waits
}

fn ask(
    store: &Store,
    scope: &Scope,
    to: Option<&'static str>,
    wait: Duration,
) -> JoinHandle<Result<LeaseInfo>> {
    let (operator, scope) = (named(store, "operator"), scope.clone());
    tokio::spawn(async move { operator.ask_to_hand_over(&scope, None, to, wait).await })
}

async fn requests(store: &Store) -> usize {
    store.list_all(&Query::new(HAND_OVER)).await.unwrap().len()
}

#[tokio::test]
async fn a_holder_that_listens_hands_over_to_whom_it_is_told_or_to_the_first_in_line() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/asked".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let first = waiter(&store, "first", &scope).await;
    let second = waiter(&store, "second", &scope).await;

    let asking = ask(&store, &scope, Some("second"), LONG);
    let request = lease.asked_to_hand_over().await;
    assert!(
        request.to.starts_with("second#") && request.by.starts_with("operator#"),
        "{request:?}"
    );
    assert!(!asking.is_finished() && lease.is_valid(), "it is its own until its work has stopped");
    let token = lease.token();
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    let now = asking.await.unwrap().unwrap();
    assert!(now.holder.name() == "second" && now.token > token, "{now:?}");

    let lease = second.await.unwrap().unwrap();
    let asking = ask(&store, &scope, None, LONG);
    let request = lease.asked_to_hand_over().await;
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    assert_eq!(asking.await.unwrap().unwrap().holder.name(), "first");
    first.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_request_that_nobody_takes_up_is_withdrawn_and_never_heard_of_again() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/deaf".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let waits = waiter(&store, "next", &scope).await;
    let told = ask(&store, &scope, None, SHORT).await.unwrap().unwrap_err();
    assert!(matches!(&told, Error::Held { token, .. } if *token == lease.token()), "{told:?}");
    assert_eq!(requests(&store).await, 0);
    let heard = tokio::time::timeout(SHORT, lease.asked_to_hand_over()).await;
    assert!(heard.is_err() && lease.is_valid(), "{heard:?}");
    waits.abort();
}

#[tokio::test]
async fn a_request_that_was_taken_up_is_not_withdrawn_and_stands_alone() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/busy".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let (first, second) =
        (waiter(&store, "first", &scope).await, waiter(&store, "second", &scope).await);
    let asking = ask(&store, &scope, Some("first"), SHORT);
    let request = lease.asked_to_hand_over().await;
    let told = asking.await.unwrap().unwrap_err();
    assert!(told.is_unknown() && told.to_string().contains("stops its work"), "{told}");
    let told = ask(&store, &scope, Some("second"), SHORT).await.unwrap().unwrap_err();
    assert!(told.to_string().contains("goes to first#"), "{told}");
    assert_eq!(lease.asked_to_hand_over().await, request, "whoever asks again hears the same");
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    first.await.unwrap().unwrap().release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_second_one_who_asks_is_told_and_neither_is_told_what_is_not_so() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/twice".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let waits = waiter(&store, "next", &scope).await;
    let first = ask(&store, &scope, None, SHORT * 5);
    while requests(&store).await == 0 {
        tokio::task::yield_now().await;
    }
    let second = named(&store, "another").ask_to_hand_over(&scope, None, None, SHORT).await;
    let told = second.unwrap_err().to_string();
    assert!(told.contains("operator#") && told.contains("goes to next#"), "{told}");
    // Nobody listens, so nothing is being stopped, whoever asks.
    let told = first.await.unwrap().unwrap_err();
    assert!(matches!(told, Error::Held { .. }), "{told}");
    // When the first one is over, another may ask.
    let asking = ask(&store, &scope, None, LONG);
    let request = lease.asked_to_hand_over().await;
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    asking.await.unwrap().unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_holder_does_not_stop_for_somebody_who_has_gone() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/gone".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let waits = waiter(&store, "next", &scope).await;
    let asking = ask(&store, &scope, Some("next"), SHORT * 5);
    while requests(&store).await == 0 {
        tokio::task::yield_now().await;
    }
    waits.abort();
    while !named(&store, "reader").status(&scope).await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let heard = tokio::time::timeout(SHORT, lease.asked_to_hand_over()).await;
    assert!(heard.is_err(), "{heard:?}");
    let told = asking.await.unwrap().unwrap_err();
    assert!(told.to_string().contains("does not wait for a/gone"), "{told}");
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_out() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/lost".parse().unwrap();
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    let backend = Arc::clone(store.backend());
    let faulty = Faulty::new(backend, Arc::clone(&plan), Arc::new(clock));
    let lease = named(&Store::new(faulty), "holder").acquire(&scope, &terms()).await.unwrap();
    let waits = waiter(&store, "next", &scope).await;
    plan.next(Operation::Commit, Fault::LostReply);
    let asking = ask(&store, &scope, None, LONG);
    let request = lease.asked_to_hand_over().await;
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    asking.await.unwrap().unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_request_that_could_not_be_taken_back_may_still_be_taken_up() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/stands".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let waits = waiter(&store, "next", &scope).await;
    let plan = FaultPlan::scripted();
    let backend = Arc::clone(store.backend());
    let faulty = Faulty::new(backend, Arc::clone(&plan), Arc::new(ManualClock::new()));
    let asking = ask(&Store::new(faulty), &scope, None, SHORT);
    while requests(&store).await == 0 {
        tokio::task::yield_now().await;
    }
    plan.next(Operation::Commit, Fault::Error);
    let told = asking.await.unwrap().unwrap_err();
    assert!(told.is_unknown() && told.to_string().contains("may still"), "{told}");
    let request = lease.asked_to_hand_over().await;
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_is_said_before_anything_is_done() {
    let store = MemoryStore::new().into_store();
    let scope: Scope = "a/none".parse().unwrap();
    let told = ask(&store, &scope, None, LONG).await.unwrap().unwrap_err();
    assert!(told.is_not_found(), "{told:?}");
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let told = ask(&store, &scope, None, LONG).await.unwrap().unwrap_err();
    assert!(told.to_string().contains("nobody waits"), "{told}");
    let waits = waiter(&store, "next", &scope).await;
    let told = ask(&store, &scope, Some("other"), LONG).await.unwrap().unwrap_err();
    assert!(told.to_string().contains("does not wait"), "{told}");
    let operator = named(&store, "operator");
    let other = Some(lease.token() + 1);
    let told = operator.ask_to_hand_over(&scope, other, None, LONG).await.unwrap_err();
    assert!(matches!(told, Error::Lost { .. }), "{told:?}");
    assert_eq!(requests(&store).await, 0);
    // A tenure that ends while somebody asks is told as what it is.
    let asking = ask(&store, &scope, None, LONG);
    while requests(&store).await == 0 {
        tokio::task::yield_now().await;
    }
    waits.abort();
    lease.release().await.unwrap();
    let told = asking.await.unwrap();
    assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
}

#[tokio::test]
async fn a_slot_goes_to_somebody_who_waits_for_any() {
    let store = MemoryStore::new().into_store();
    let group: crate::lease::Namespace = "search.indexer".parse().unwrap();
    let slot = named(&store, "holder").slots(&group).acquire(1, &terms()).await.unwrap();
    let next = named(&store, "next");
    let waits = tokio::spawn({
        let slots = next.slots(&group);
        async move { slots.acquire(1, &terms().wait_forever()).await }
    });
    let slots = named(&store, "operator").slots(&group);
    while slots.waiters().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let asking = tokio::spawn(async move { slots.ask_to_hand_over(0, None, None, LONG).await });
    let request = slot.asked_to_hand_over().await;
    slot.into_lease().hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    assert_eq!(asking.await.unwrap().unwrap().holder, *next.owner());
    waits.await.unwrap().unwrap().into_lease().release().await.unwrap();
}

#[tokio::test]
async fn whoever_slept_through_its_wait_is_not_told_that_nothing_was_done() {
    let clock = ManualClock::new();
    let shared: Arc<ManualClock> = Arc::new(clock.clone());
    let store = MemoryStore::with_clock(Arc::clone(&shared) as _).into_store();
    let store = store.with_clock(shared, crate::random::SystemRandom::shared());
    let scope: Scope = "a/slept".parse().unwrap();
    let lease = named(&store, "holder").acquire(&scope, &terms()).await.unwrap();
    let waits = waiter(&store, "next", &scope).await;
    let asking = ask(&store, &scope, None, SHORT);
    let request = lease.asked_to_hand_over().await;
    // It was taken up. When whoever asks goes on, its request is over as well.
    clock.advance(LONG / 4);
    let told = asking.await.unwrap().unwrap_err();
    assert!(told.is_unknown(), "{told:?}");
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}
