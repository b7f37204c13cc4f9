//! Servers that are killed, restarted and frozen. Writers are told the truth: what was acknowledged
//! is there, what was refused is not, and only `Unknown` leaves it open. Watchers miss nothing or are
//! told that they did.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::{Cause, Event, Expect, Query, Store, Watch, WatchRequest};
use tenure::{Error, Result};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::Nats;
use tokio::task::JoinHandle;

use crate::common::{OrFail, Outcome, eventually, key, open, put};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("outage::a_killed_server_loses_nothing", || restarts(|server| server.kill(0)));
    trials.test("outage::a_restarted_server_loses_nothing", || restarts(|server| server.stop(0)));
    trials.test("outage::a_holder_keeps_its_lease_across_a_crash", holder_resumes);
    trials.test("outage::an_expiry_during_a_crash_is_told", expiry_while_away);
    trials.test("outage::a_watch_that_missed_something_says_so", missed);
    trials.test("outage::a_frozen_server_is_told_in_time", frozen);
    trials.test("outage::a_name_that_leads_nowhere_keeps_nobody_away", leads_nowhere);
}

/// One of two servers has a name that cannot be resolved. When the other is back, it is found again.
async fn leads_nowhere() -> Outcome {
    let mut server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let (hosts, bucket) = url.rsplit_once('/').ok_or("an address without a bucket")?;
    let store = open(&format!("{hosts},does-not-exist.invalid/{bucket}")).await?;
    store.commit(put("before", "x")).await?;
    server.stop(0).or_fail()?;
    // Long enough for several attempts at both.
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.start_again(0).or_fail()?;
    let found = eventually("the server that is back is found", || async {
        Ok(store.commit(put("after", "x")).await.is_ok())
    });
    let found = tokio::time::timeout(Duration::from_secs(40), found).await;
    found.map_err(|_| Failure::new("the server that is back is not found"))?
}

/// What a writer was told.
#[derive(Default)]
pub(crate) struct Told {
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
}

/// So many by each of four writers: together fewer than a watch keeps that nobody reads meanwhile.
const WRITES: u32 = 3_500;
/// Between two writes, so that there are some left to write when something happens.
const PACE: Duration = Duration::from_millis(2);

/// Creates objects until told to stop, and keeps account.
pub(crate) fn write(
    store: &Store,
    name: String,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<Result<Told, Failure>> {
    let (store, stop) = (store.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let mut told = Told::default();
        let mut n = 0;
        while !stop.load(Ordering::Acquire) {
            tokio::time::sleep(PACE).await;
            if n == WRITES {
                continue;
            }
            n += 1;
            let id = format!("{name}-{n}");
            match store.commit(put(&id, "x").expect(Expect::Absent)).await {
                Ok(_) => {
                    told.acknowledged.insert(id);
                }
                Err(Error::Unavailable { .. }) => {
                    told.refused.insert(id);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(Error::Unknown { .. }) => {}
                Err(other) => return Err(Failure::new(format!("a writer was told: {other}"))),
            }
        }
        Ok(told)
    })
}

/// Compares what writers were told with what is there, and with what the watcher heard.
pub(crate) async fn settle(
    store: &Store,
    writers: Vec<JoinHandle<Result<Told, Failure>>>,
    watch: Watch,
) -> Outcome {
    let mut told = Told::default();
    for writer in writers {
        let own = writer.await??;
        told.acknowledged.extend(own.acknowledged);
        told.refused.extend(own.refused);
    }
    let end = store.commit(put("the-end", "x")).await?.revision.unwrap_or(0);
    let stored = store.list_all(&Query::new("thing").limit(1000)).await?;
    let stored: BTreeSet<String> = stored.into_iter().map(|object| object.key.id).collect();
    let lost: Vec<_> = told.acknowledged.difference(&stored).collect();
    ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let undead: Vec<_> = told.refused.intersection(&stored).collect();
    ensure!(undead.is_empty(), "refused and applied: {undead:?}");
    ensure!(told.acknowledged.len() > 20, "only {} were acknowledged", told.acknowledged.len());
    let heard = heard_until(watch, end).await?;
    ensure_eq!(heard, stored, "heard, and stored");
    Ok(())
}

/// The ids of everything created up to this revision, each told once and in order.
async fn heard_until(mut watch: Watch, end: u64) -> Result<BTreeSet<String>, Failure> {
    let (mut heard, mut last) = (BTreeSet::new(), watch.start());
    while last < end {
        let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.or_fail()?;
        let batch = batch.ok_or("the watch ended")??;
        ensure!(batch.revision > last, "revision {} after {last}", batch.revision);
        last = batch.revision;
        for event in &batch.events {
            let id = event.key().id.clone();
            ensure!(heard.insert(id.clone()), "{id} was told twice");
        }
    }
    Ok(heard)
}

/// Lets something happen to a server that blocks.
pub(crate) async fn happen<T: Send + 'static>(
    mut server: Nats,
    happening: impl FnOnce(&mut Nats) -> anyhow::Result<T> + Send + 'static,
) -> Result<(Nats, T), Failure> {
    let done = tokio::task::spawn_blocking(move || happening(&mut server).map(|t| (server, t)));
    done.await?.or_fail()
}

async fn restarts(end: fn(&mut Nats) -> anyhow::Result<()>) -> Outcome {
    let mut server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let (store, observer) = (open(&url).await?, open(&url).await?);
    let watch = observer.watch(&WatchRequest::default()).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8).map(|n| write(&store, format!("w{n}"), &stop)).collect();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        (server, ()) = happen(server, move |server| {
            end(server)?;
            server.start_again(0)
        })
        .await?;
    }
    eventually("the store is back", || async { Ok(store.get(&key("w0-1")).await.is_ok()) }).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Release);
    settle(&store, writers, watch).await?;
    drop(server);
    Ok(())
}

async fn holder_resumes() -> Outcome {
    let server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let coordinator = Coordinator::builder(open(&url).await?).name("holder").start()?;
    let rival = Coordinator::builder(open(&url).await?).name("rival").start()?;
    let scope = Scope::new(&Namespace::new(["test"])?, "kept")?;
    let lease = coordinator.acquire(&scope, &Terms::new().ttl(Duration::from_secs(20))).await?;
    let before = lease.valid_until();
    let (server, ()) = happen(server, |server| {
        server.kill(0)?;
        std::thread::sleep(Duration::from_millis(500));
        server.start_again(0)
    })
    .await?;
    eventually("it is renewed", || async { Ok(lease.valid_until() > before) }).await?;
    ensure!(lease.is_valid(), "the lease is lost: {:?}", lease.loss());
    let taken = rival.acquire(&scope, &Terms::new()).await;
    ensure!(matches!(taken, Err(Error::Held { token, .. }) if token == lease.token()), "{taken:?}");
    lease.release().await?;
    let next = rival.acquire(&scope, &Terms::new()).await?;
    next.release().await?;
    drop(server);
    Ok(())
}

async fn expiry_while_away() -> Outcome {
    let server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let (store, observer) = (open(&url).await?, open(&url).await?);
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let life = Duration::from_secs(3);
    store.commit(put("a", "x").ttl(life)).await?;
    let patience = Duration::from_secs(20);
    // It is heard of before the server goes: what replaces it later could not be read back.
    let told = tokio::time::timeout(patience, watch.next()).await.or_fail()?;
    let told = told.ok_or("the watch ended")??;
    let is_put = matches!(&told.events[..], [Event::Put(object)] if object.key == key("a"));
    ensure!(is_put, "{told:?}");
    let (server, ()) = happen(server, move |server| {
        server.kill(0)?;
        std::thread::sleep(life);
        server.start_again(0)
    })
    .await?;
    let told = tokio::time::timeout(patience, watch.next()).await.or_fail()?;
    let ended = Event::Delete { key: key("a"), cause: Cause::Expired, last: None };
    ensure_eq!(told.ok_or("the watch ended")??.events, vec![ended]);
    ensure_eq!(store.get(&key("a")).await?, None);
    drop(server);
    Ok(())
}

/// While one client is cut off, another changes an object twice: the first value is gone for good.
async fn missed() -> Outcome {
    let server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let writer = open(&url).await?;
    let relay = Relay::to(server.port(0)).await?;
    let bucket = url.rsplit('/').next().unwrap_or_default();
    let observer = open(&format!("nats://127.0.0.1:{}/{bucket}", relay.port)).await?;
    writer.commit(put("a", "1")).await?;
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    writer.commit(put("a", "2")).await?;
    let heard = watch.next().await.ok_or("the watch ended")??;
    ensure_eq!(heard.events.len(), 1);
    // What was created once is read back after the connection is.
    relay.cut().await;
    writer.commit(put("b", "1")).await?;
    relay.mend();
    let wait = Duration::from_secs(15);
    let heard = tokio::time::timeout(wait, watch.next()).await.or_fail()?;
    let heard = heard.ok_or("the watch ended")??;
    ensure_eq!(heard.events[0].key().id, "b");
    // What was replaced meanwhile cannot be.
    relay.cut().await;
    let requested = writer.commit(put("a", "3")).await?.revision.unwrap_or(0) - 1;
    let oldest = writer.commit(put("a", "4")).await?.revision.unwrap_or(0);
    relay.mend();
    let told = tokio::time::timeout(wait, watch.next()).await.or_fail()?;
    match told {
        Some(Err(Error::Compacted { requested: r, oldest: o })) => {
            ensure_eq!((r, o), (requested, oldest));
        }
        other => return Err(Failure::new(format!("a watch that missed a change said {other:?}"))),
    }
    // As the error says: list and watch again.
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let next = writer.commit(put("a", "5")).await?.revision;
    let heard = tokio::time::timeout(wait, watch.next()).await.or_fail()?;
    ensure_eq!(Some(heard.ok_or("the watch ended")??.revision), next);
    Ok(())
}

/// A way to the server that can be cut.
pub(crate) struct Relay {
    pub(crate) port: u16,
    open: tokio::sync::watch::Sender<bool>,
    /// How many connections pass.
    passing: tokio::sync::watch::Receiver<u32>,
}

impl Relay {
    pub(crate) async fn to(server: u16) -> Result<Self, Failure> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (open, gate) = tokio::sync::watch::channel(true);
        let (count, passing) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                let (gate, count) = (gate.clone(), count.clone());
                tokio::spawn(async move {
                    pass(near, server, gate).await;
                    count.send_modify(|count| *count -= 1);
                });
            }
        });
        Ok(Self { port, open, passing })
    }

    /// Returns when nothing passes any more.
    pub(crate) async fn cut(&self) {
        self.open.send_replace(false);
        // Fails only if nobody accepts connections any more, and then none passes.
        let _ = self.passing.clone().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn mend(&self) {
        self.open.send_replace(true);
    }
}

/// One connection, for as long as the way is open.
async fn pass(
    mut near: tokio::net::TcpStream,
    server: u16,
    mut gate: tokio::sync::watch::Receiver<bool>,
) {
    if !*gate.borrow_and_update() {
        return;
    }
    let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", server)).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = gate.wait_for(|open| !open) => {}
    }
}

async fn frozen() -> Outcome {
    let server = Nats::start().or_fail()?;
    let options = Options::new().reply_timeout(Duration::from_millis(700));
    let store = NatsStore::connect_with(&server.fresh_bucket(), options).await?.into_store();
    store.commit(put("a", "x")).await?;
    server.pause(0).or_fail()?;
    let began = SystemClock.uptime();
    let read = store.get(&key("a")).await;
    ensure!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    let written = store.commit(put("b", "x").expect(Expect::Absent)).await;
    ensure!(matches!(written, Err(Error::Unknown { .. })), "{written:?}");
    let took = SystemClock.uptime() - began;
    ensure!(took < Duration::from_secs(4), "{took:?}");
    server.resume(0).or_fail()?;
    // It was sent, so it happened.
    eventually("the write arrives", || async { Ok(store.get(&key("b")).await?.is_some()) }).await
}
