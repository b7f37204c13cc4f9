//! Servers that go away, come back, or say nothing at all.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Loss, Namespace, Scope, Terms};
use tenure::store::{Commit, Expect, Query, WatchRequest};
use tenure::{Error, Key};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_etcd::{EtcdStore, Options};
use tenure_testkit::{Etcd, EtcdOptions, Proxy};

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("etcd::a_restarted_server_is_found_again", a_restarted_server);
    trials.test("etcd::a_holder_whose_keep_alives_hang_stops_in_time", move || hung(server));
    trials.test("etcd::a_short_lease_survives_beside_a_server_that_hangs", move || beside(server));
    trials.test("etcd::a_commit_without_an_answer_is_unknown", move || no_answer(server));
    trials.test("etcd::many_lives_at_once_are_granted_at_once", move || many_lives(server));
    trials.test("etcd::a_watch_that_history_outran_while_it_was_away_says_so", outrun);
    trials.test("etcd::the_life_that_the_server_returns_counts", longer_lives);
    trials.test("etcd::a_wrong_address_is_told", move || wrong_addresses(server));
}

async fn a_restarted_server() -> Outcome {
    let mut server = Etcd::start().or_fail()?;
    let store = connect(&server.url("restart")).await?;
    let mut watch = store.watch(&WatchRequest::kind("thing")).await?;
    let first = store.commit(put("a", "1")).await?.revision;
    server.kill(0).or_fail()?;
    let error = store.get(&key("a")).await.err();
    if !matches!(error, Some(Error::Unavailable { .. })) {
        return Err(Failure::new(format!("a read from nobody: {error:?}")));
    }
    // The read has found that nothing listens, so nothing can have been applied.
    let error = store.commit(put("b", "1")).await.err();
    if !matches!(error, Some(Error::Unavailable { .. })) {
        return Err(Failure::new(format!("a commit to nobody: {error:?}")));
    }
    server.start_again(0).or_fail()?;
    let second = store.commit(put("a", "2").expect(Expect::Version(1))).await?.revision;
    for expected in [first, second] {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.or_fail()?;
        let told = next.ok_or("the watch ended")??.revision;
        if Some(told) != expected {
            return Err(Failure::new(format!("told {told}, expected {expected:?}")));
        }
    }
    Ok(())
}

/// A store that reaches the server through a door.
async fn through(door: &Proxy, prefix: &str) -> tenure::Result<EtcdStore> {
    let options = Options::new([format!("127.0.0.1:{}", door.port())]).prefix(prefix);
    EtcdStore::connect_with(options.timeout(Duration::from_secs(2))).await
}

fn door(server: Server) -> Result<Proxy, Failure> {
    let address = server.0.address(0);
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
    Proxy::start(port.ok_or("no port")?).or_fail()
}

/// Connections stay open, nothing passes: only the holder's own clock can tell it to stop.
async fn hung(server: Server) -> Outcome {
    let door = door(server)?;
    let store = through(&door, "hung").await?.into_store();
    let coordinator = Coordinator::builder(store).name("holder").start()?;
    let scope = Scope::new(&Namespace::new(["hung"])?, "held")?;
    let life = Duration::from_secs(3);
    let lease = coordinator.acquire(&scope, &Terms::new().ttl(life)).await?;
    tokio::time::sleep(life * 2).await;
    if let Some(loss) = lease.loss() {
        return Err(Failure::new(format!("lost while all was well: {loss}")));
    }
    let direct = connect(&server.0.url("hung")).await?;
    door.freeze();
    let frozen = SystemClock.uptime();
    let key = Key::new(tenure::lease::LEASE, scope.as_str());
    eventually("its end", || async { Ok(direct.get(&key).await?.is_none()) }).await?;
    let gone = SystemClock.uptime();
    let loss = tokio::time::timeout(life * 2, lease.lost()).await.or_fail()?;
    // It stops within a life of its last renewal, and the store has the lease for longer than that.
    // Counted by the instant it stops at, not by when a busy machine gets round to telling.
    let until = lease.valid_until();
    if loss != Loss::Expired || until > frozen + life {
        let after = until.saturating_sub(frozen);
        return Err(Failure::new(format!("{loss} after {after:?} of {life:?}")));
    }
    if gone < until {
        return Err("the store forgot the lease before its holder did".into());
    }
    Ok(())
}

/// Two ways to the server, of which one hangs and the other breaks for a moment. Connecting may take as
/// long as the lease lives, so a store that waits for the one that hangs has lost it.
async fn beside(server: Server) -> Outcome {
    let (hanging, breaking) = (door(server)?, door(server)?);
    let life = Duration::from_secs(3);
    let ways = [&hanging, &breaking].map(|door| format!("127.0.0.1:{}", door.port()));
    let options = Options::new(ways).prefix("beside").connect_timeout(life);
    let store = EtcdStore::connect_with(options).await?.into_store();
    let coordinator = Coordinator::builder(store).name("holder").start()?;
    let scope = Scope::new(&Namespace::new(["beside"])?, "held")?;
    let lease = coordinator.acquire(&scope, &Terms::new().ttl(life)).await?;
    let renewal = async || {
        let before = lease.valid_until();
        eventually("a renewal", || async {
            let lost = |loss| Failure::new(format!("the lease was lost: {loss}"));
            lease.loss().map_or(Ok(()), |loss| Err(lost(loss)))?;
            Ok(lease.valid_until() > before)
        })
        .await
    };
    // Renewed twice with the first way shut, it is renewed over the second.
    hanging.shut();
    renewal().await?;
    renewal().await?;
    hanging.open();
    hanging.freeze();
    for _ in 0..3 {
        breaking.shut();
        tokio::time::sleep(Duration::from_millis(100)).await;
        breaking.open();
        renewal().await?;
        renewal().await?;
    }
    Ok(lease.release().await?)
}

async fn no_answer(server: Server) -> Outcome {
    let door = door(server)?;
    let store = through(&door, "unknown").await?.into_store();
    store.commit(put("a", "1")).await?;
    door.freeze();
    let error = store.commit(put("a", "2")).await.err();
    if !matches!(error, Some(Error::Unknown { .. })) {
        return Err(Failure::new(format!("a commit without an answer: {error:?}")));
    }
    let error = store.get(&key("a")).await.err();
    if !matches!(error, Some(Error::Unavailable { .. })) {
        return Err(Failure::new(format!("a read without an answer: {error:?}")));
    }
    door.open();
    eventually("the store answers again", || async { Ok(store.get(&key("a")).await.is_ok()) }).await
}

/// As many as a commit takes, none of them at hand, far away: one after the other they would take five
/// seconds, which is more than a commit may.
async fn many_lives(server: Server) -> Outcome {
    let door = door(server)?;
    let store = through(&door, "many-lives").await?.into_store();
    let most = store.capabilities().limits.commit_operations;
    door.slow(Duration::from_millis(60));
    let commit = (0..most).fold(Commit::new(), |commit, n| {
        commit.put(put(n.to_string(), "v").ttl(Duration::from_secs(77)))
    });
    store.commit(commit).await?;
    door.open();
    let listed = store.list_all(&Query::new("thing")).await?.len();
    if listed != most { Err(Failure::new(format!("{listed} of {most}"))) } else { Ok(()) }
}

/// A watch that was told the beginning comes back after the rest was compacted.
async fn outrun() -> Outcome {
    let server = Etcd::start().or_fail()?;
    let server = Server(Box::leak(Box::new(server)));
    let door = door(server)?;
    let (far, near) =
        (through(&door, "outrun").await?.into_store(), connect(&server.0.url("outrun")).await?);
    let mut watch = far.watch(&WatchRequest::kind("thing")).await?;
    let told = near.commit(put("a", "1")).await?.revision;
    let wait = Duration::from_secs(20);
    let heard = tokio::time::timeout(wait, watch.next()).await.or_fail()?;
    let heard = heard.ok_or("the watch ended")??.revision;
    if Some(heard) != told {
        return Err(Failure::new(format!("told {heard} instead of {told:?}")));
    }
    door.shut();
    // Shut for certain: nothing of what follows can be told.
    eventually("the door is shut", || async { Ok(far.get(&key("a")).await.is_err()) }).await?;
    let mut last = 0;
    for n in 0..5 {
        last = near.commit(put("a", &n.to_string())).await?.revision.ok_or("no revision")?;
    }
    server.0.ctl(0, &["compaction", &last.to_string()]).or_fail()?;
    door.open();
    match tokio::time::timeout(wait, watch.next()).await.or_fail()? {
        Some(Err(Error::Compacted { requested, oldest }))
            if requested >= heard && requested < oldest && oldest < last => {}
        other => return Err(Failure::new(format!("it missed something and said {other:?}"))),
    }
    let mut watch = far.watch(&WatchRequest::kind("thing")).await?;
    let next = near.commit(put("a", "next")).await?.revision;
    let heard = tokio::time::timeout(wait, watch.next()).await.or_fail()?;
    let heard = heard.ok_or("the watch ended")??.revision;
    if Some(heard) != next { Err(Failure::new(format!("told {heard}"))) } else { Ok(()) }
}

/// A server with slow elections grants longer lives than it is asked for, and says so.
async fn longer_lives() -> Outcome {
    let arguments = ["--heartbeat-interval=500", "--election-timeout=5000"].map(String::from);
    let options = EtcdOptions { arguments: arguments.to_vec(), ..EtcdOptions::default() };
    let server = Etcd::start_with(1, options).or_fail()?;
    let store = connect(&server.url("longer")).await?;
    let shortest = store.capabilities().ttl.ok_or("no time to live")?.min;
    if shortest < Duration::from_secs(5) {
        return Err(Failure::new(format!("the shortest life is said to be {shortest:?}")));
    }
    let before = SystemClock.uptime();
    let done = store.commit(put("x", "v").ttl(Duration::from_secs(2))).await?;
    let granted = done.first_put().and_then(|put| put.ttl);
    if granted != Some(shortest) {
        return Err(Failure::new(format!("granted {granted:?}, the shortest is {shortest:?}")));
    }
    while store.get(&key("x")).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if SystemClock.uptime() > before + shortest * 3 {
            return Err("it never ended".into());
        }
    }
    let lived = SystemClock.uptime() - before;
    if lived < shortest {
        return Err(Failure::new(format!("it lived {lived:?} of {shortest:?}")));
    }
    Ok(())
}

async fn wrong_addresses(server: Server) -> Outcome {
    let nobody = Options::new(["127.0.0.1:1"]).timeout(Duration::from_millis(500));
    let error = EtcdStore::connect_with(nobody).await.err().map(|error| error.to_string());
    if !error.as_ref().is_some_and(|error| error.contains("127.0.0.1:1")) {
        return Err(Failure::new(format!("nobody there, but {error:?}")));
    }
    let user = server.0.address(0);
    let user = Options::new([user]).login("nobody", "wrong").timeout(Duration::from_secs(2));
    let error = EtcdStore::connect_with(user).await.err();
    if !matches!(&error, Some(Error::Refused { reason, .. }) if reason.contains("authentication")) {
        return Err(Failure::new(format!("a login that is not wanted: {error:?}")));
    }
    Ok(())
}
