//! Three nodes: the leader is killed and a follower is cut off while clients go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::{Commit, Event, Expect, Query, Store, Touch, WatchRequest};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_etcd::{EtcdStore, Options};
use tenure_testkit::Etcd;

use crate::common::{OrFail, Outcome, connect, eventually, key, put};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("etcd::a_killed_leader_loses_nothing", a_killed_leader_loses_nothing);
    trials.test(
        "etcd::a_client_of_a_cut_off_follower_moves_on_and_reads_nothing_stale",
        a_cut_off_follower,
    );
    trials.test("etcd::a_deposed_leader_renews_nothing", a_deposed_leader);
    trials.test("etcd::a_change_of_leader_cuts_no_life_short", a_change_of_leader);
}

/// Writes new objects until told to stop: what was acknowledged, with its revision.
async fn write_on(
    store: Store,
    writer: usize,
    stop: Arc<AtomicBool>,
) -> Result<BTreeMap<String, u64>, Failure> {
    let mut acknowledged = BTreeMap::new();
    for n in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let id = format!("{writer}-{n}");
        // An outcome that is not known, or a store that is away, is not what this is about.
        if let Ok(done) = store.commit(put(&id, "v").expect(Expect::Absent)).await {
            acknowledged.insert(id, done.revision.ok_or("no revision")?);
        }
    }
    Ok(acknowledged)
}

async fn a_killed_leader_loses_nothing() -> Outcome {
    let mut cluster = Etcd::start_cluster(3).or_fail()?;
    let url = cluster.url("killed");
    let store = connect(&url).await?;
    if store.capabilities().replicas != Some(3) {
        return Err("three servers are not declared as such".into());
    }
    let coordinator = Coordinator::builder(connect(&url).await?).name("holder").start()?;
    let scope = Scope::new(&Namespace::new(["cluster"])?, "held")?;
    let lease = coordinator.acquire(&scope, &Terms::new().ttl(Duration::from_secs(20))).await?;
    let mut watch = store.watch(&WatchRequest::kind("thing")).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 0..4 {
        let store = connect(&url).await?;
        writers.push(tokio::spawn(write_on(store, writer, Arc::clone(&stop))));
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let leader = cluster.find_leader().or_fail()?;
        cluster.kill(leader).or_fail()?;
        // The others elect another and go on: something new is written meanwhile, and the lease is
        // renewed.
        let (before, head) = (lease.valid_until(), AtomicU64::new(u64::MAX));
        eventually("a commit after the leader's death", || async {
            let page = store.list(&Query::new("thing").limit(1)).await;
            let Ok(page) = page else { return Ok(false) };
            // The first answer is where to count from.
            let head = head.fetch_min(page.revision, Ordering::Relaxed);
            Ok(page.revision > head.saturating_add(20))
        })
        .await?;
        eventually("a renewal", || async { Ok(lease.valid_until() > before) }).await?;
        cluster.start_again(leader).or_fail()?;
    }
    stop.store(true, Ordering::Release);
    let mut acknowledged = BTreeMap::new();
    for writer in writers {
        acknowledged.extend(writer.await.or_fail()??);
    }
    let there: BTreeMap<String, u64> = store
        .list_all(&Query::new("thing").limit(500))
        .await?
        .into_iter()
        .map(|object| (object.key.id, object.revision))
        .collect();
    for (id, revision) in &acknowledged {
        if there.get(id) != Some(revision) {
            return Err(Failure::new(format!("{id} at {revision} became {:?}", there.get(id))));
        }
    }
    // The watch told everything that is there, once, in order, over all of that.
    let mut told = BTreeMap::new();
    let mut last = 0;
    while told.len() < there.len() {
        let next = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.or_fail()?;
        let batch = next.ok_or("the watch ended")??;
        if batch.revision <= last {
            return Err(Failure::new(format!("{} told after {last}", batch.revision)));
        }
        last = batch.revision;
        for event in &batch.events {
            let Event::Put(object) = event else { return Err("a delete was told".into()) };
            told.insert(object.key.id.clone(), object.revision);
        }
    }
    if told != there {
        return Err("the watch and the list disagree".into());
    }
    // The lease was renewed through both elections, and its fence still holds.
    if let Some(loss) = lease.loss() {
        return Err(Failure::new(format!("the lease was lost: {loss}")));
    }
    store.commit(Commit::from(put("fenced", "v")).fenced_by(&lease)).await?;
    lease.release().await?;
    eprintln!("{} commits acknowledged around two killed leaders", acknowledged.len());
    Ok(())
}

async fn a_cut_off_follower() -> Outcome {
    let cluster = Etcd::start_cluster(3).or_fail()?;
    let leader = cluster.find_leader().or_fail()?;
    let (cut, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let order = [cut, other, leader].map(|node| cluster.address(node));
    // This one begins at the follower that will be cut off.
    let here = EtcdStore::connect_with(Options::new(order).prefix("cut")).await?.into_store();
    let elsewhere = Options::new([cluster.address(leader)]).prefix("cut");
    let elsewhere = EtcdStore::connect_with(elsewhere).await?.into_store();
    here.commit(put("x", "0")).await?;
    cluster.cut_off(cut).or_fail()?;
    eventually("the follower notices", || async { Ok(cluster.leader(cut).or_fail()?.is_none()) })
        .await?;
    for n in 1..=20 {
        let value = n.to_string();
        elsewhere.commit(put("x", &value)).await?;
        // It may take a while to move on; what it may not do is to answer with what was.
        let read = here.get(&key("x")).await?.ok_or("gone")?;
        if read.payload != value {
            return Err(Failure::new(format!("read {:?} after {value} was written", read.payload)));
        }
    }
    here.commit(put("y", "written after moving on")).await?;
    cluster.heal();
    // Nobody but the one that was cut off: linearizable there as well.
    let only = Options::new([cluster.address(cut)]).prefix("cut");
    let only = EtcdStore::connect_with(only).await?.into_store();
    let read = only.get(&key("x")).await?.ok_or("gone")?;
    if read.payload != "20" || only.get(&key("y")).await?.is_none() {
        return Err(Failure::new(format!("the healed follower says {:?}", read.payload)));
    }
    Ok(())
}

/// A leader that was cut off goes on to answer keep-alives for a while. None of them may count.
async fn a_deposed_leader() -> Outcome {
    let cluster = Etcd::start_cluster(3).or_fail()?;
    let leader = cluster.find_leader().or_fail()?;
    let others = [1, 2].map(|n| cluster.address((leader + n) % 3));
    let here = Options::new([cluster.address(leader)]).prefix("deposed");
    let here = here.timeout(Duration::from_secs(2)).attempt(Duration::from_millis(500));
    let here = EtcdStore::connect_with(here).await?.into_store();
    let there = EtcdStore::connect_with(Options::new(others).prefix("deposed")).await?.into_store();
    let life = Duration::from_secs(6);
    let revision = here.commit(put("x", "v").ttl(life)).await?.revision.ok_or("no revision")?;
    let touch = || async {
        let touch = Touch { key: key("x"), revision, ttl: life };
        here.touch(vec![touch]).await?.remove(0)
    };
    eventually("a first touch", || async { Ok(touch().await.is_ok()) }).await?;
    cluster.cut_off(leader).or_fail()?;
    let cut = SystemClock.uptime();
    let (mut believed_until, mut refused) = (cut + life, 0);
    while SystemClock.uptime() < cut + life * 3 {
        let asked = SystemClock.uptime();
        match touch().await {
            Ok(_) => believed_until = asked + life,
            Err(_) => refused += 1,
        }
        // As long as the touches were believed, it must be there.
        let now = SystemClock.uptime();
        if there.get(&key("x")).await?.is_none() {
            if now < believed_until {
                return Err(Failure::new(format!("gone {:?} early", believed_until - now)));
            }
            if refused == 0 {
                return Err("a leader without a majority renewed to the end".into());
            }
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A new leader may have given it another full life; the old one may not have gone on for ever.
    if refused == 0 { Err("nothing was ever refused".into()) } else { Ok(()) }
}

/// A new leader gives every lease a full life: later than promised is allowed, earlier never.
async fn a_change_of_leader() -> Outcome {
    let cluster = Etcd::start_cluster(3).or_fail()?;
    let store = connect(&cluster.url("change")).await?;
    // Long enough that it has not ended before the leader changes, however slow the machine is.
    let life = Duration::from_secs(12);
    let leader = cluster.find_leader().or_fail()?;
    let before = SystemClock.uptime();
    let done = store.commit(put("x", "v").ttl(life)).await?;
    let granted = done.first_put().and_then(|put| put.ttl).ok_or("no life granted")?;
    tokio::time::sleep(life / 4).await;
    // Counted from before it is asked for: the new leader begins all lives anew later than that.
    let changed = SystemClock.uptime();
    cluster.move_leader(leader, (leader + 1) % 3).or_fail()?;
    eventually("the end of its life", || async {
        let there = store.get(&key("x")).await?.is_some();
        Ok(!there)
    })
    .await?;
    let now = SystemClock.uptime();
    let gone_after = now - before;
    if gone_after < granted {
        return Err(Failure::new(format!("gone after {gone_after:?} of {granted:?}")));
    }
    // The new leader began its life anew.
    if now - changed < life {
        let since = now - changed;
        return Err(Failure::new(format!("{since:?} after the change, not a full life again")));
    }
    Ok(())
}
