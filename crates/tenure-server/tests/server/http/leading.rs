//! Which of several servers on a store leads, and who is next.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure::clock::SystemClock;
use tenure::lease::Coordinator;
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_server::Server;
use tenure_sqlite::SqliteStore;

use super::place::{Place, until};

async fn campaigning(store: &Store) -> Place {
    Place::built(store.clone(), Server::builder(store.clone()).campaigns(true)).await
}

async fn told(place: &Place, what: &str) -> Value {
    place.client().get("/readyz").await.of(200).body[what].clone()
}

#[tokio::test]
async fn one_leads_all_say_so_and_the_next_one_follows_when_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap().into_store();
    let first = campaigning(&store).await;
    let me = told(&first, "replica").await["name"].clone();
    until("it leads", || async { told(&first, "leading").await["name"] == me }).await;
    let since = told(&first, "leading").await["since_ms"].as_i64().unwrap();
    assert!(since > 0);

    let second = campaigning(&store).await;
    let other = told(&second, "replica").await["name"].clone();
    assert_ne!(other, me);
    until("the other says so", || async { told(&second, "leading").await["name"] == me }).await;
    let leader = second.client().get("/v1/elections/leader?scope=tenure.server/main").await;
    let leader = leader.of(200).body["leader"].clone();
    assert_eq!(leader["metadata"], json!({"address": first.address.to_string()}));
    let coordinator = Coordinator::new(store.clone()).unwrap();
    let scope = "tenure.server/main".parse().unwrap();
    until("the other is next in line", || async {
        !coordinator.status(&scope).await.unwrap().waiters.is_empty()
    })
    .await;
    first.end().await;
    // It was let go, and did not have to expire.
    until("the other leads", || async { told(&second, "leading").await["name"] == other }).await;
    second.end().await;
    assert!(coordinator.holder(&scope).await.unwrap().is_none(), "nobody leads any more");
}

#[tokio::test]
async fn a_server_starts_without_its_store_and_leads_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(folder.path().join("store.db")).unwrap().into_store();
    let plan = FaultPlan::scripted();
    plan.next(Operation::Get, Fault::CrashBefore);
    let faulty = Faulty::new(Arc::clone(sqlite.backend()), plan.clone(), SystemClock::shared());
    let place = campaigning(&Store::new(faulty)).await;
    place.client().get("/healthz").await.of(200);
    until("it is not ready", || async { place.client().get("/readyz").await.status == 503 }).await;
    plan.restart();
    until("it leads", || async {
        place.client().get("/readyz").await.body["leading"] != Value::Null
    })
    .await;
    place.end().await;
}

#[tokio::test]
async fn nobody_campaigns_for_a_store_that_nobody_else_can_use() {
    let store = MemoryStore::new().into_store();
    let place = campaigning(&store).await;
    assert_eq!(told(&place, "leading").await, Value::Null);
    place.end().await;
    let held = Coordinator::new(store).unwrap().list_all().await.unwrap();
    assert!(held.is_empty(), "{held:?}");
}
