//! Three servers, a bucket on all of them, and a leader that dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::WatchRequest;
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::NatsStore;
use tenure_testkit::{Nats, NatsSettings};

use crate::common::{OrFail, Outcome, eventually, key, open};
use crate::outage::{happen, settle, write};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("cluster::a_killed_leader_loses_nothing_and_leases_go_on", killed_leader);
}

/// A cluster that has elected its own leaders takes a moment to accept the first bucket.
async fn open_when_ready(url: &str) -> Result<NatsStore, Failure> {
    let mut last = None;
    for _ in 0..60 {
        match NatsStore::connect(url).await {
            Ok(store) => return Ok(store),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Err(Failure::new(format!("the cluster takes no bucket: {last:?}")))
}

async fn killed_leader() -> Outcome {
    let settings = NatsSettings { servers: 3, ..NatsSettings::default() };
    let server =
        tokio::task::spawn_blocking(move || Nats::start_with(settings)).await?.or_fail()?;
    let url = format!("{}?replicas=3", server.url_of("r3"));
    let first = open_when_ready(&url).await?;
    ensure_eq!(first.replicas(), 3);
    let store = first.into_store();
    let observer = open(&url).await?;
    let watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let holder = Coordinator::builder(open(&url).await?).name("holder").start()?;
    let scope = Scope::new(&Namespace::new(["test"])?, "kept")?;
    let terms = Terms::new().ttl(Duration::from_secs(20));
    let lease = holder.acquire(&scope, &terms).await?;

    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4).map(|n| write(&store, format!("w{n}"), &stop)).collect();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (server, leader) = happen(server, |server| {
        let leader = server.leader_of("KV_r3")?;
        let leader = leader.ok_or_else(|| anyhow::anyhow!("nobody leads"))?;
        server.kill(leader)?;
        Ok(leader)
    })
    .await?;
    let before = lease.valid_until();
    eventually("another leader answers", || async { Ok(store.get(&key("w0-1")).await.is_ok()) })
        .await?;
    eventually("the lease is renewed", || async { Ok(lease.valid_until() > before) }).await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (server, ()) = happen(server, move |server| server.start_again(leader)).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Release);
    ensure!(lease.is_valid(), "the lease was lost: {:?}", lease.loss());
    settle(&store, writers, watch).await?;
    let token = lease.token();
    lease.release().await?;
    let next = holder.acquire(&scope, &terms).await?;
    ensure!(next.token() > token, "token {} after {token}", next.token());
    next.release().await?;
    drop(server);
    Ok(())
}
