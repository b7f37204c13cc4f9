//! What was done over the heads of others is in the audit log, also if nobody waited for the answer.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tenure::clock::SystemClock;
use tenure::lease::{Coordinator, LEASE, Scope, Terms};
use tenure::store::faulty::{Fault as Failure, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure::store::{Commit, Expect, Store};
use tenure::{Error, Key};
use tenure_server::api::{Api, View};
use tenure_server::auth::Caller;
use tenure_server::{Fault, ServerLimits, Shutdown};

use super::rig::{capture, logged};

/// A view of a store that fails as planned, and the same store without faults.
fn view() -> (View, Store, Arc<FaultPlan>) {
    capture();
    let (plan, memory) = (FaultPlan::scripted(), MemoryStore::new().into_store());
    let faulty = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let api = Api::new(Store::new(faulty), ServerLimits::default(), Shutdown::default()).unwrap();
    (api.view(&Caller::anybody()).unwrap(), memory, plan)
}

fn lines(resource: &str, what: &str) -> usize {
    logged(&["audit", &format!("resource={resource:?}"), what]).len()
}

/// It begins, and whoever asked goes away before there is an answer.
fn begun_and_given_up<T>(work: impl Future<Output = Result<T, Fault>>) {
    assert!(work.now_or_never().is_none(), "it was done at once");
}

const LATE: Failure = Failure::Delay(Duration::from_secs(3_600));

#[tokio::test]
async fn a_revocation_is_told_whoever_hears_of_it() {
    let (view, memory, plan) = view();
    let coordinator = Coordinator::new(memory).unwrap();
    let scope = |text: &str| text.parse::<Scope>().unwrap();
    for text in ["audited/gone", "audited/unknown", "audited/failed", "audited/done"] {
        coordinator.acquire(&scope(text), &Terms::new()).await.unwrap().detach();
    }
    plan.next(Operation::Commit, LATE);
    begun_and_given_up(view.revoke(&scope("audited/gone"), None, "why"));
    assert_eq!(lines("audited/gone", "perhaps revoked"), 1);

    plan.next(Operation::Commit, Failure::LostReply);
    let told = view.revoke(&scope("audited/unknown"), None, "why").await.unwrap_err();
    assert!(matches!(told, Fault::Store(Error::Unknown { .. })), "{told}");
    assert_eq!(lines("audited/unknown", "perhaps revoked"), 1);
    assert!(coordinator.holder(&scope("audited/unknown")).await.unwrap().is_none());

    // What was not done is not told as if it were.
    plan.next(Operation::Commit, Failure::Error);
    view.revoke(&scope("audited/failed"), None, "why").await.unwrap_err();
    assert_eq!(lines("audited/failed", "revoked"), 0);
    assert!(view.revoke(&scope("audited/done"), None, "why").await.unwrap());
    assert_eq!(lines("audited/done", "audit: revoked"), 1);
    assert!(!view.revoke(&scope("audited/done"), None, "why").await.unwrap());
    assert_eq!(lines("audited/done", "nothing to revoke"), 1);
    assert_eq!(lines("audited/done", "perhaps"), 0);
}

#[tokio::test]
async fn so_are_a_resize_and_a_commit() {
    let (view, _memory, plan) = view();
    let group = "audited.pool".parse().unwrap();
    plan.next(Operation::Commit, LATE);
    begun_and_given_up(view.resize(&group, None, 3));
    assert_eq!(lines("audited.pool/*", "perhaps resized"), 1);
    plan.next(Operation::Commit, Failure::LostReply);
    view.resize(&group, None, 3).await.unwrap_err();
    assert_eq!(lines("audited.pool/*", "perhaps resized"), 2);
    view.resize(&group, None, 4).await.unwrap();
    assert_eq!(lines("audited.pool/*", "audit: resized"), 1);

    let delete = |id: &str| Commit::new().delete(Key::new(LEASE, id), Expect::Any);
    plan.next(Operation::Commit, LATE);
    begun_and_given_up(view.commit(delete("audited/raw")));
    assert_eq!(lines("audited/raw", "perhaps overridden"), 1);
    plan.next(Operation::Commit, Failure::LostRequest);
    view.commit(delete("audited/raw")).await.unwrap_err();
    assert_eq!(lines("audited/raw", "perhaps overridden"), 2);
    view.commit(delete("audited/raw")).await.unwrap();
    assert_eq!(lines("audited/raw", "audit: overridden"), 1);
}
