//! What other users of NATS buckets fall into: lives that are dropped by an update or a creation over
//! a marker, markers that take a fresh write along, and reads before every write.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::{Cause, Commit, Event, Expect, Store, Touch, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::Nats;

use crate::common::{OrFail, Outcome, Server, eventually, key, open, put};

/// The shortest life there is.
const LIFE: Duration = Duration::from_secs(1);
/// How much later than its instant the server may end a life on a busy machine.
const LATE: Duration = Duration::from_millis(2500);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("traps::a_life_is_kept_across_renewals", move || renewals(server));
    trials.test("traps::an_update_keeps_its_life", move || update(server));
    trials.test("traps::a_creation_over_a_deletion_keeps_its_life", move || over_deletion(server));
    trials.test("traps::a_creation_over_an_expiry_keeps_its_life", move || over_expiry(server));
    trials.test("traps::a_life_never_ends_early", move || never_early(server));
    trials.test("traps::a_write_at_the_end_of_a_life_stays_or_is_unknown", at_end);
    trials.test("traps::those_who_go_away_hold_up_nobody", move || gone_away(server));
    trials.test("traps::a_renewal_tells_nobody_and_an_expiry_everybody", move || told(server));
    trials.test("traps::a_marker_goes_and_revisions_still_rise", move || marker_goes(server));
    trials.test("traps::the_end_of_a_deletion_is_marked_by_nobody", move || markers_end(server));
    trials.test("traps::acquire_and_release_are_one_message_each", one_message_each);
}

/// Waits until the object is gone; how long that took.
async fn end_of(store: &Store, id: &str) -> Result<Duration, Failure> {
    let began = SystemClock.uptime();
    eventually("its life ends", || async { Ok(store.get(&key(id)).await?.is_none()) }).await?;
    Ok(SystemClock.uptime() - began)
}

async fn renewals(server: Server) -> Outcome {
    // Long enough that a busy machine comes in time for every renewal.
    let life = LIFE * 5;
    let store = open(&server.fresh_bucket()).await?;
    let first = store.commit(put("a", "x").ttl(life)).await?.first_put().ok_or("no put")?;
    let until = SystemClock.uptime() + life * 2;
    while SystemClock.uptime() < until {
        tokio::time::sleep(life / 10).await;
        let touch = Touch { key: key("a"), revision: first.revision, ttl: life };
        let touched = store.touch(vec![touch]).await?.remove(0)?;
        ensure_eq!((touched.revision, touched.ttl), (first.revision, life));
    }
    let object = store.get(&key("a")).await?.ok_or("a renewed object is gone")?;
    ensure_eq!((object.version, object.token), (1, first.token));
    let took = end_of(&store, "a").await?;
    ensure!(took < life + LATE, "it lived on for {took:?}");
    Ok(())
}

async fn update(server: Server) -> Outcome {
    let store = open(&server.fresh_bucket()).await?;
    store.commit(put("a", "x").ttl(LIFE * 60)).await?;
    store.commit(put("a", "y").ttl(LIFE).expect(Expect::Version(1))).await?;
    let took = end_of(&store, "a").await?;
    ensure!(took < LIFE + LATE, "an updated object lived on for {took:?}");
    Ok(())
}

async fn over_deletion(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let (here, there) = (open(&url).await?, open(&url).await?);
    // Over a marker that this process knows, and over one that it has to find.
    for creator in [&here, &there] {
        here.commit(put("a", "x").ttl(LIFE * 60).expect(Expect::Absent)).await?;
        here.commit(Commit::new().delete(key("a"), Expect::Exists)).await?;
        let created = creator.commit(put("a", "y").ttl(LIFE).expect(Expect::Absent)).await?;
        ensure_eq!(created.first_put().map(|put| put.version), Some(1));
        let took = end_of(&here, "a").await?;
        ensure!(took < LIFE + LATE, "created over a deletion, it lived on for {took:?}");
    }
    Ok(())
}

async fn over_expiry(server: Server) -> Outcome {
    let store = open(&server.fresh_bucket()).await?;
    let mut last = 0;
    for _ in 0..2 {
        let created = store.commit(put("a", "x").ttl(LIFE).expect(Expect::Absent)).await?;
        let token = created.first_put().map_or(0, |put| put.token);
        ensure!(token > last, "token {token} after {last}");
        last = token;
        let took = end_of(&store, "a").await?;
        ensure!(took < LIFE + LATE, "created over an expiry, it lived on for {took:?}");
    }
    Ok(())
}

async fn never_early(server: Server) -> Outcome {
    let store = open(&server.fresh_bucket()).await?;
    let mut watch = store.watch(&WatchRequest::kind("thing")).await?;
    let mut sent = std::collections::BTreeMap::new();
    for n in 0..40 {
        let id = format!("o{n}");
        sent.insert(id.clone(), SystemClock.uptime());
        store.commit(put(id, "x").ttl(LIFE)).await?;
        tokio::time::sleep(Duration::from_millis(23)).await;
    }
    while !sent.is_empty() {
        let batch = tokio::time::timeout(LIFE + LATE, watch.next()).await.or_fail()?;
        for event in &batch.ok_or("the watch ended")??.events {
            let Event::Delete { key, cause, .. } = event else { continue };
            let sent = sent.remove(&key.id).ok_or_else(|| format!("{key} ended twice"))?;
            let lived = SystemClock.uptime() - sent;
            ensure_eq!(*cause, Cause::Expired);
            ensure!(lived >= LIFE, "{key} lived for {lived:?} only");
        }
    }
    Ok(())
}

/// Callers that go away take along no request of others.
async fn gone_away(server: Server) -> Outcome {
    const OBJECTS: usize = 600;
    let store = open(&server.fresh_bucket()).await?;
    for round in 0..5 {
        let mut tasks: Vec<_> = (0..OBJECTS)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { store.commit(put(format!("o{n}"), "x")).await })
            })
            .collect();
        // Some before they have begun, some while they are at it.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        tasks.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        for task in tasks.drain(..).skip(1).step_by(2) {
            task.await.or_fail()??;
        }
    }
    Ok(())
}

/// The server ends a life with a marker that replaces whatever is there. Whoever writes at that
/// instant must not be told that the write is in place if it is not.
async fn at_end() -> Outcome {
    const OBJECTS: usize = 2000;
    // It is about the server's haste, so nothing holds it up.
    let settings = tenure_testkit::NatsSettings { sync: None, ..Default::default() };
    let server = Nats::start_with(settings).or_fail()?;
    // So many at once take a busy machine a while, which is not what this is about either.
    let patience = LIFE * 60;
    let options = Options::new().reply_timeout(patience);
    let store = NatsStore::connect_with(&server.fresh_bucket(), options).await?;
    let store = store.into_store().with_timeout(patience * 2);
    let races = (0..OBJECTS).map(|n| {
        let store = store.clone();
        async move {
            let id = format!("o{n}");
            store.commit(put(&id, "mortal").ttl(LIFE)).await?;
            // Around the instants at which the server looks for what has ended.
            let pause = LIFE + Duration::from_millis(n as u64 / 4) - Duration::from_millis(100);
            tokio::time::sleep(pause).await;
            let told = store.commit(put(&id, "for ever").expect(Expect::Exists)).await;
            Ok::<_, Failure>((id, told))
        }
    });
    let told = futures::future::try_join_all(races).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut kept, mut refused) = (0, 0);
    for (id, told) in told {
        let there = store.get(&key(&id)).await?.is_some();
        match told {
            Ok(_) => {
                ensure!(there, "{id} was acknowledged and is gone");
                kept += 1;
            }
            Err(error) if error.is_not_found() => {
                ensure!(!there, "{id} was refused and is there");
                refused += 1;
            }
            Err(error) => ensure!(error.is_unknown(), "{error}"),
        }
    }
    ensure!(kept > 0 && refused > 0, "{kept} in time, {refused} too late");
    Ok(())
}

async fn told(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let (holder, observer) = (open(&url).await?, open(&url).await?);
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let created = holder.commit(put("a", "x").ttl(LIFE)).await?.first_put().ok_or("no put")?;
    for _ in 0..3 {
        let touch = Touch { key: key("a"), revision: created.revision, ttl: LIFE };
        holder.touch(vec![touch]).await?.remove(0)?;
    }
    holder.close().await;
    let mut told = Vec::new();
    for _ in 0..2 {
        let batch = tokio::time::timeout(LIFE + LATE, watch.next()).await.or_fail()?;
        told.push(batch.ok_or("the watch ended")??);
    }
    ensure!(matches!(told[0].events[..], [Event::Put(_)]), "{:?}", told[0]);
    let expired = Event::Delete { key: key("a"), cause: Cause::Expired, last: None };
    ensure_eq!(told[1].events, [expired]);
    // One for the creation, three for the renewals, one for the end.
    ensure_eq!(told[1].revision, created.revision + 4);
    Ok(())
}

async fn marker_goes(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let store = open(&url).await?;
    let first = store.commit(put("a", "x").expect(Expect::Absent)).await?.revision;
    let deleted = store.commit(Commit::new().delete(key("a"), Expect::Any)).await?.revision;
    // What the end of the marker's life does, only sooner.
    let bucket = url.rsplit('/').next().unwrap_or_default();
    let host = format!("127.0.0.1:{}", server.0.port(0));
    let client = async_nats::connect(host).await.or_fail()?;
    let stream = async_nats::jetstream::new(client).get_stream(format!("KV_{bucket}")).await;
    stream.or_fail()?.purge().await.or_fail()?;
    ensure_eq!(store.get(&key("a")).await?, None);
    let again = store.commit(put("a", "x").expect(Expect::Absent)).await?.first_put();
    let again = again.ok_or("no put")?;
    ensure!(first < deleted && deleted < Some(again.revision), "{again:?} after {deleted:?}");
    ensure_eq!((again.version, again.token), (1, again.revision));
    Ok(())
}

/// What a deletion leaves behind ends after two minutes. The server would mark that end like any other,
/// over whatever was created at that instant; not if it takes what ends for a marker of its own.
async fn markers_end(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let store = open(&url).await?;
    store.commit(put("a", "x")).await?;
    store.commit(Commit::new().delete(key("a"), Expect::Exists)).await?;
    let bucket = url.rsplit('/').next().unwrap_or_default();
    let client = async_nats::connect(format!("127.0.0.1:{}", server.0.port(0))).await.or_fail()?;
    let raw = async_nats::jetstream::new(client);
    let stream = raw.get_stream(format!("KV_{bucket}")).await.or_fail()?;
    let subject = format!("$KV.{bucket}.thing.a");
    let left = stream.get_last_raw_message_by_subject(&subject).await.or_fail()?.headers;
    for is_ours in [true, false] {
        // The same with a shorter life, and beside it what has no such headers.
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-TTL", "1");
        for name in ["KV-Operation", "Nats-Marker-Reason"].into_iter().filter(|_| is_ours) {
            let value = left.get(name).ok_or_else(|| format!("{name} is missing: {left:?}"))?;
            headers.insert(name, value.as_str());
        }
        let sent = raw.publish_with_headers(subject.clone(), headers, "".into()).await.or_fail()?;
        let sequence = sent.await.or_fail()?.sequence;
        let last = || async {
            let last = stream.get_last_raw_message_by_subject(&subject).await;
            Ok::<_, Failure>(last.ok().map(|message| message.sequence))
        };
        eventually("its end", || async { Ok(last().await? != Some(sequence)) }).await?;
        if is_ours {
            tokio::time::sleep(LIFE).await;
            ensure_eq!(last().await?, None, "somebody marked it");
        } else {
            eventually("its mark", || async { Ok(last().await? > Some(sequence)) }).await?;
        }
    }
    Ok(())
}

/// Messages that the server has taken in, counted by itself.
async fn taken_in(client: &async_nats::Client, system: &str) -> Result<u64, Failure> {
    let varz = client.request(system.to_owned(), "".into()).await.or_fail()?;
    let varz: serde_json::Value = serde_json::from_slice(&varz.payload).or_fail()?;
    varz["data"]["in_msgs"].as_u64().ok_or_else(|| Failure::new(format!("no count in {varz}")))
}

async fn one_message_each() -> Outcome {
    const CYCLES: u64 = 50;
    let accounts = "accounts { $SYS { users: [{ user: sys, password: sys }] }, \
                    A { jetstream: enabled, users: [{ user: a, password: a }] } }";
    let settings = tenure_testkit::NatsSettings { extra: accounts.into(), ..Default::default() };
    let server = Nats::start_with(settings).or_fail()?;
    let system = async_nats::ConnectOptions::with_user_and_password("sys".into(), "sys".into())
        .connect(format!("127.0.0.1:{}", server.port(0)))
        .await
        .or_fail()?;
    let id = system.server_info().server_id;
    let varz = format!("$SYS.REQ.SERVER.{id}.VARZ");
    let store = open(&format!("nats://a:a@127.0.0.1:{}", server.port(0))).await?;
    let coordinator = Coordinator::builder(store).name("one").start()?;
    let scope = Scope::new(&Namespace::new(["test"])?, "lone")?;
    let terms = Terms::new().ttl(LIFE * 30);
    coordinator.acquire(&scope, &terms).await?.release().await?;
    let before = taken_in(&system, &varz).await?;
    for _ in 0..CYCLES {
        coordinator.acquire(&scope, &terms).await?.release().await?;
    }
    let messages = taken_in(&system, &varz).await? - before;
    // The question itself is one, and a ping or an advisory may come in between.
    ensure!(messages <= CYCLES * 2 + 10, "{messages} messages for {CYCLES} cycles");
    Ok(())
}
