//! Tenants of one store: each passes the suite as if it were alone, and none sees another.

use std::time::Duration;

use futures::FutureExt;
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::memory::MemoryStore;
use tenure::store::prefixed::Prefixed;
use tenure::store::{Expect, Put, Query, Store, Touch, Watch, WatchRequest};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, OrFail, Subject, ensure, ensure_eq};

/// Names that are close to each other: one begins the other, and they sort side by side.
const TENANTS: [&str; 3] = ["acme", "acme-2", "acm"];

pub(crate) fn add(trials: &mut Trials, store: &MemoryStore) {
    let whole = store.clone().into_store();
    let subject = Subject::new(std::sync::Arc::new(move || {
        let tenant = Prefixed::tenant(&whole, "acme").map(Prefixed::into_store);
        Box::pin(async move { tenant })
    }));
    trials.suite_with("tenant", subject);
    trials.test("tenant::tenants_never_see_each_other", tenants_never_see_each_other);
    trials.test("tenant::tenants_hold_the_same_scopes_and_slots", tenants_hold_the_same);
    trials.test("tenant::a_closed_part_leaves_the_rest_open", a_closed_part_leaves_the_rest_open);
}

fn tenants(whole: &Store) -> Result<Vec<Store>, Failure> {
    let tenant = |name: &&str| Ok(Prefixed::tenant(whole, name)?.into_store());
    TENANTS.iter().map(tenant).collect()
}

/// What a watch has told by now.
fn told(watch: &mut Watch) -> Result<Vec<(String, Option<String>)>, Failure> {
    let mut told = Vec::new();
    while let Some(Some(batch)) = watch.next().now_or_never() {
        for event in &batch?.events {
            let name = match event {
                tenure::store::Event::Put(object) => object.name.clone(),
                tenure::store::Event::Delete { last, .. } => {
                    last.as_ref().and_then(|last| last.name.clone())
                }
            };
            told.push((event.key().to_string(), name));
        }
    }
    Ok(told)
}

async fn tenants_never_see_each_other() -> Result<(), Failure> {
    let whole = MemoryStore::new().into_store();
    let stores = tenants(&whole)?;
    let keys = ["1", "2", "~", "zz"].map(|id| Key::new("order", id));
    let mut watches = Vec::new();
    for store in &stores {
        let kind = store.watch(&WatchRequest::kind("order").prefix("1")).await?;
        watches.push((store.watch(&WatchRequest::default()).await?, kind));
    }
    // Equal ids and equal names, written by everybody, with neighbours on both sides.
    whole.commit(Put::new(Key::new("order", "acme"), "whole").name("first")).await?;
    for (store, tenant) in stores.iter().zip(TENANTS) {
        for key in &keys {
            let put = Put::new(key.clone(), tenant).expect(Expect::Absent);
            let put = put.name(format!("n{}", key.id)).ttl(Duration::from_secs(60));
            store.commit(put).await?;
        }
    }
    for ((store, tenant), (all, ones)) in stores.iter().zip(TENANTS).zip(&mut watches) {
        for query in [
            Query::new("order"),
            Query::new("order").limit(1),
            Query::new("order").from("1"),
            Query::new("order").until("~~"),
        ] {
            let objects = store.list_all(&query).await?;
            let ids: Vec<&str> = objects.iter().map(|object| &*object.key.id).collect();
            ensure_eq!(ids, ["1", "2", "zz", "~"], "{tenant} {query:?}");
            ensure!(objects.iter().all(|object| object.payload == tenant), "{objects:?}");
        }
        let named = store.get_by_name("order", "n2").await?.ok_or("no such name")?;
        ensure_eq!((named.key.id.as_str(), named.name.as_deref()), ("2", Some("n2")));
        ensure_eq!(store.get(&Key::new("order", "acme~1")).await?, None, "{tenant}");
        ensure_eq!(store.get_by_name("order", "first").await?, None, "{tenant}");
        match store.commit(Put::new(Key::new("order", "3"), "x").name("n2")).await {
            Err(Error::NameTaken { name, id, .. }) => ensure_eq!((&*name, &*id), ("n2", "2")),
            other => return Err(Failure::new(format!("not taken: {other:?}"))),
        }
        let touch = Touch { key: keys[0].clone(), revision: 1, ttl: Duration::from_secs(9) };
        match store.touch(vec![touch]).await?.pop() {
            Some(Err(Error::Conflict { key, .. })) => ensure_eq!(key, keys[0]),
            other => return Err(Failure::new(format!("touched another: {other:?}"))),
        }
        store.delete(&keys[0]).await?;
        let name = |id: &str| (format!("order/{id}"), Some(format!("n{id}")));
        ensure_eq!(told(all)?, ["1", "2", "~", "zz", "1"].map(name), "{tenant} is told");
        ensure_eq!(told(ones)?, ["1", "1"].map(name), "{tenant} is told of ones");
    }
    ensure_eq!(whole.list_all(&Query::new("order")).await?.len(), 3 * 3 + 1, "in all");
    Ok(())
}

async fn tenants_hold_the_same() -> Result<(), Failure> {
    let whole = MemoryStore::new().into_store();
    let scope: Scope = "billing.nightly/close".parse()?;
    let group: Namespace = "billing.workers".parse()?;
    let mut tokens = Vec::new();
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for store in tenants(&whole)? {
        let coordinator = Coordinator::builder(store).name("worker").start()?;
        let lease = coordinator.acquire(&scope, &Terms::new()).await?;
        let slot = coordinator.slots(&group).acquire(1, &Terms::new()).await?;
        ensure_eq!((lease.id(), slot.index()), (scope.as_str(), 0));
        let standby = coordinator.clone();
        let wanted = scope.clone();
        waiting.push(tokio::spawn(async move {
            standby.acquire(&wanted, &Terms::new().wait_forever()).await
        }));
        while coordinator.status(&scope).await?.waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokens.push(lease.token());
        held.push((coordinator, lease, slot));
    }
    for ((coordinator, lease, _), token) in held.iter().zip(&tokens) {
        let status = coordinator.status(&scope).await?;
        ensure_eq!(status.holder.map(|info| info.token), Some(*token));
        ensure_eq!(status.waiters.len(), 1, "waiters");
        ensure_eq!(coordinator.list_all().await?.len(), 2, "leases");
        ensure_eq!(coordinator.list_holders(&group).await?.len(), 1, "slots");
        ensure!(lease.is_valid());
    }
    // In the whole store they are scopes still, each in its tenant's name.
    let all = Coordinator::builder(whole).name("all").start()?.list_all().await?;
    ensure_eq!(all.len(), 6, "{all:?}");
    for info in &all {
        let scope: Scope = info.id.parse()?;
        ensure!(TENANTS.iter().any(|tenant| scope.as_str().starts_with(&format!("{tenant}~"))));
    }
    // A release serves the tenant's own waiter, and nobody else's.
    let (_, lease, _) = held.remove(1);
    let served = waiting.remove(1);
    lease.release().await?;
    let next = tokio::time::timeout(Duration::from_secs(10), served).await.or_fail()???;
    ensure!(
        waiting.iter().all(|waiting| !waiting.is_finished()),
        "another one's waiter was served"
    );
    Ok(next.release().await?)
}

async fn a_closed_part_leaves_the_rest_open() -> Result<(), Failure> {
    let whole = MemoryStore::new().into_store();
    let stores = tenants(&whole)?;
    let key = Key::new("order", "1");
    let mut watch = stores[0].watch(&WatchRequest::default()).await?;
    stores[0].close().await;
    let closed = stores[0].get(&key).await;
    ensure!(matches!(closed, Err(Error::Unavailable { .. })), "{closed:?}");
    let end = watch.next().await;
    ensure!(matches!(end, Some(Err(Error::Unavailable { .. }))), "{end:?}");
    ensure!(watch.next().await.is_none(), "something after the end");
    for open in [&stores[1], &whole] {
        open.commit(Put::new(key.clone(), "v")).await?;
    }
    Ok(())
}
