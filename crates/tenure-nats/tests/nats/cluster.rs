//! Three servers, a bucket on all of them, and a leader that dies or is left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::Error;
use tenure::backend::Backend as _;
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::{Commit, Durability, Expect, Query, Store, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::{Nats, NatsSettings};

use crate::common::{OrFail, Outcome, eventually, key, open, put};
use crate::outage::{happen, settle, write};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("cluster::a_killed_leader_loses_nothing_and_leases_go_on", killed_leader);
    trials.test("cluster::nothing_is_settled_without_a_majority", no_majority);
    trials.test("cluster::replicas_that_came_later_are_asked_as_well", later_replicas);
    trials.test("cluster::a_frozen_server_is_left_before_a_lease_is_lost", frozen_server);
    trials.test("cluster::durability_is_that_of_all_who_keep_the_bucket", durability);
}

async fn three() -> Result<Nats, Failure> {
    let settings = NatsSettings { servers: 3, ..NatsSettings::default() };
    tokio::task::spawn_blocking(move || Nats::start_with(settings)).await?.or_fail()
}

/// The server that leads a stream, as soon as one does.
async fn led(server: Nats, stream: &'static str) -> Result<(Nats, usize), Failure> {
    happen(server, move |server| {
        for _ in 0..150 {
            if let Some(leader) = server.leader_of(stream)? {
                return Ok(leader);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(anyhow::anyhow!("nobody leads {stream}"))
    })
    .await
}

/// Has one server lead both streams; which one.
async fn led_together(
    mut server: Nats,
    first: &'static str,
    second: &'static str,
) -> Result<(Nats, usize), Failure> {
    let client = async_nats::connect(format!("127.0.0.1:{}", server.port(0))).await.or_fail()?;
    for _ in 0..100 {
        let (one, other);
        (server, one) = led(server, first).await?;
        (server, other) = led(server, second).await?;
        if one == other {
            return Ok((server, one));
        }
        let wish = format!("{{\"placement\":{{\"preferred\":\"n{}\"}}}}", one + 1);
        let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{second}");
        // It may be refused while servers elect; then it is asked again.
        let _ = client.request(subject, wish.into()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Failure::new(format!("{first} and {second} are led by different servers")))
}

/// A bucket, opened at this server and without much patience.
async fn alone_with(server: &Nats, n: usize, bucket: &str) -> Result<Store, Failure> {
    let url = format!("nats://127.0.0.1:{}/{bucket}", server.port(n));
    let options = Options::new().reply_timeout(Duration::from_secs(2));
    Ok(NatsStore::connect_with(&url, options).await?.into_store())
}

/// A leader without its followers still answers reads. What a commit says must not rest on them.
async fn no_majority() -> Outcome {
    let server = three().await?;
    drop(open_when_ready(&format!("{}?replicas=3", server.url_of("alone"))).await?);
    let (server, leader) = led(server, "KV_alone").await?;
    let store = alone_with(&server, leader, "alone").await?;
    store.commit(put("a", "x")).await?;
    let questions = || {
        [
            Commit::new().check(key("a"), Expect::Exists),
            Commit::new().check(key("b"), Expect::Absent),
            Commit::from(put("a", "x")),
            Commit::new().delete(key("b"), Expect::Any),
        ]
    };
    // With a majority each is settled and changes nothing.
    let before = store.list(&Query::new("thing")).await?.objects;
    for question in questions() {
        store.commit(question).await?;
    }
    ensure_eq!(store.list(&Query::new("thing")).await?.objects, before);
    for follower in (0..3).filter(|n| *n != leader) {
        server.pause(follower).or_fail()?;
    }
    for question in questions() {
        let told = store.commit(question.clone()).await;
        ensure!(matches!(told, Err(Error::Unavailable { .. })), "{question:?}: {told:?}");
    }
    drop(server);
    Ok(())
}

/// The same for a bucket that one server kept when it was opened.
async fn later_replicas() -> Outcome {
    let server = three().await?;
    drop(open_when_ready(&server.url_of("grown")).await?);
    let (server, leader) = led(server, "KV_grown").await?;
    let store = alone_with(&server, leader, "grown").await?;
    store.commit(put("a", "x")).await?;
    let client =
        async_nats::connect(format!("127.0.0.1:{}", server.port(leader))).await.or_fail()?;
    let raw = async_nats::jetstream::new(client);
    let mut config = raw.get_stream("KV_grown").await.or_fail()?.cached_info().config.clone();
    config.num_replicas = 3;
    raw.update_stream(config).await.or_fail()?;
    eventually("the others keep it, too", || async {
        let info = raw.get_stream("KV_grown").await.or_fail()?.cached_info().clone();
        let followers = info.cluster.map(|cluster| cluster.replicas).unwrap_or_default();
        Ok(followers.len() == 2 && followers.iter().all(|follower| follower.current))
    })
    .await?;
    let check = || Commit::new().check(key("a"), Expect::Exists);
    store.commit(check()).await?;
    for follower in (0..3).filter(|n| *n != leader) {
        server.pause(follower).or_fail()?;
    }
    let told = store.commit(check()).await;
    ensure!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    drop(server);
    Ok(())
}

/// A frozen server keeps its connections. Whoever holds a lease goes to another server in time.
async fn frozen_server() -> Outcome {
    let server = three().await?;
    drop(open_when_ready(&format!("{}?replicas=3", server.url_of("frozen"))).await?);
    let (server, leader) = led(server, "KV_frozen").await?;
    let frozen = (leader + 1) % 3;
    // It learns of the other servers from this one.
    let url = format!("nats://127.0.0.1:{}/frozen", server.port(frozen));
    let holder = Coordinator::builder(open(&url).await?).name("holder").start()?;
    let scope = Scope::new(&Namespace::new(["test"])?, "kept")?;
    // On a busy machine the servers may be about to elect another leader.
    let terms = Terms::new().ttl(Duration::from_secs(10)).wait_forever();
    let lease = holder.acquire(&scope, &terms).await?;
    server.pause(frozen).or_fail()?;
    let before = lease.valid_until();
    eventually("the lease is renewed or lost", || async {
        Ok(lease.valid_until() > before || !lease.is_valid())
    })
    .await?;
    ensure!(lease.is_valid(), "the lease was lost: {:?}", lease.loss());
    lease.release().await?;
    drop(server);
    Ok(())
}

async fn durability() -> Outcome {
    let server = three().await?;
    let url = format!("{}?replicas=3", server.url_of("flushed"));
    let declared = async |monitors: &[usize]| -> Result<(Durability, Option<u32>), Failure> {
        let monitors: Vec<_> = monitors.iter().map(|n| server.monitor(*n)).collect();
        let url = format!("{url}&monitor={}", monitors.join(","));
        let store = open_when_ready(&url).await?;
        Ok((store.capabilities().durability, store.capabilities().replicas))
    };
    // One that flushes says nothing of the other two.
    ensure_eq!(declared(&[0]).await?, (Durability::Server, Some(3)));
    ensure_eq!(declared(&[0, 2]).await?, (Durability::Server, Some(3)));
    ensure_eq!(declared(&[0, 1, 2]).await?, (Durability::Flushed, Some(3)));
    // A cluster of three may keep a bucket once.
    let alone = open_when_ready(&server.url_of("alone")).await?;
    ensure_eq!(alone.capabilities().replicas, Some(1));
    Ok(())
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
    let server = three().await?;
    let url = format!("{}?replicas=3", server.url_of("r3"));
    let first = open_when_ready(&url).await?;
    ensure_eq!(first.replicas(), 3);
    let store = first.into_store();
    let observer = open(&url).await?;
    let watch = observer.watch(&WatchRequest::kind("thing")).await?;
    // Renewals replace messages. A watch that could not be told of one while nobody leads, and cannot
    // read it back, has to end, and may. In a bucket of creations alone it may not.
    let leases = open_when_ready(&format!("{}?replicas=3", server.url_of("r3-leases"))).await?;
    let holder = Coordinator::builder(leases.into_store()).name("holder").start()?;
    let scope = Scope::new(&Namespace::new(["test"])?, "kept")?;
    let terms = Terms::new().ttl(Duration::from_secs(20)).wait_forever();
    let lease = holder.acquire(&scope, &terms).await?;
    let (server, _) = led_together(server, "KV_r3", "KV_r3-leases").await?;

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
