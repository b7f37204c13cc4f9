//! What is in etcd itself: round trips, leases, compaction, writer levels, and values of others.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::time::Duration;

use tenure::Error;
use tenure::clock::{Clock as _, SystemClock};
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::{Commit, Expect, Query, Touch, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure_eq};
use tenure_etcd::{EtcdStore, Options};
use tenure_testkit::Etcd;

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("etcd::an_uncontended_acquire_is_one_round_trip", one_round_trip);
    trials.test("etcd::a_lease_of_etcd_carries_one_object", one_object_a_lease);
    trials.test("etcd::leases_of_etcd_that_carry_nothing_do_not_add_up", nothing_adds_up);
    trials.test("etcd::a_compacted_watch_is_told_where_to_start", compaction);
    trials.test("etcd::a_watch_that_is_dropped_ends_at_the_server", dropped_watch);
    trials.test("etcd::an_older_program_is_kept_from_writing", move || writer_level(server));
    trials.test("etcd::what_others_wrote_is_not_taken_for_an_object", move || junk(server));
    trials.test("etcd::a_longer_touch_moves_name_and_object_together", move || longer(server));
    trials.test("etcd::a_commit_of_renames_at_the_limit_applies", move || renames(server));
    trials.test("etcd::ten_thousand_touches_are_one_request", move || ten_thousand(server));
}

/// What a server counts.
fn metrics(server: &Etcd) -> Result<String, Failure> {
    let address = server.address(0);
    let mut stream = std::net::TcpStream::connect(&address).or_fail()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").or_fail()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).or_fail()?;
    Ok(text)
}

/// Calls that a server has begun to handle, by method.
fn calls(server: &Etcd) -> Result<BTreeMap<String, u64>, Failure> {
    let text = metrics(server)?;
    let mut calls = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("grpc_server_started_total{")) {
        let method = line.split("grpc_method=\"").nth(1).and_then(|rest| rest.split('"').next());
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
        if let (Some(method), Some(count)) = (method, count) {
            calls.insert(method.to_owned(), count as u64);
        }
    }
    Ok(calls)
}

async fn one_round_trip() -> Outcome {
    let server = Etcd::start().or_fail()?;
    let coordinator = Coordinator::builder(connect(&server.url("trips")).await?).start()?;
    // So long that no etcd lease at hand has to be kept alive meanwhile, however slow the machine is.
    let terms = Terms::new().ttl(Duration::from_secs(300));
    let namespace = Namespace::new(["trips"])?;
    // The first of its life grants the etcd lease that the others use.
    let first = Scope::new(&namespace, "first")?;
    coordinator.acquire(&first, &terms).await?.release().await?;
    let before = calls(&server)?;
    for n in 0..20 {
        let scope = Scope::new(&namespace, &n.to_string())?;
        coordinator.acquire(&scope, &terms).await?.release().await?;
    }
    let after = calls(&server)?;
    let new = |method: &str| {
        after.get(method).copied().unwrap_or(0) - before.get(method).copied().unwrap_or(0)
    };
    // One transaction to acquire and one to release. Keep-alives go beside them, on one stream.
    let spent = ["Txn", "Range", "Put", "LeaseGrant", "LeaseKeepAlive"].map(new);
    if spent[0] != 40 || spent[1] != 0 || spent[2] != 0 || spent[3] > 1 || spent[4] != 0 {
        return Err(Failure::new(format!("Txn, Range, Put, grants, streams: {spent:?}")));
    }
    Ok(())
}

async fn one_object_a_lease() -> Outcome {
    let server = Etcd::start().or_fail()?;
    let url = server.url("shared");
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    // Longer than asking for eighty leases one by one takes on a busy machine.
    let life = Duration::from_secs(300);
    let workers = (0..16).map(|n| {
        let (mine, other) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        async move {
            for round in 0..20 {
                let id = format!("{n}-{round}");
                mine.commit(put(&id, "v").name(&id).ttl(life).expect(Expect::Absent)).await?;
                // Written, renewed and deleted by either, so that leases change hands.
                other.commit(put(&id, "w").ttl(life)).await?;
                if round % 4 != 3 {
                    let by = if round % 2 == 0 { mine } else { other };
                    by.delete(&key(&id)).await?;
                }
            }
            Ok::<(), Error>(())
        }
    });
    futures::future::try_join_all(workers).await?;
    let there: BTreeSet<String> = one
        .list_all(&Query::new("thing").limit(500))
        .await?
        .into_iter()
        .map(|object| object.key.id)
        .collect();
    if there.len() != 16 * 5 {
        return Err(Failure::new(format!("{} objects left", there.len())));
    }
    let mut carried = 0;
    let leases = server.ctl(0, &["lease", "list"]).or_fail()?;
    for lease in leases.lines().filter(|line| line.chars().all(|c| c.is_ascii_hexdigit())) {
        let keys = server.ctl(0, &["lease", "timetolive", "--keys", lease]).or_fail()?;
        let objects = keys.matches("shared/o/").count();
        carried += objects;
        if objects > 1 {
            return Err(Failure::new(format!("a lease with two objects: {keys}")));
        }
    }
    if carried != there.len() {
        return Err(Failure::new(format!("{carried} of {} objects hang on leases", there.len())));
    }
    Ok(())
}

/// Objects that live for a day leave etcd leases behind that would do the same.
async fn nothing_adds_up() -> Outcome {
    const OBJECTS: usize = 300;
    let server = Etcd::start().or_fail()?;
    let url = server.url("left");
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    let day = Duration::from_secs(86_400);
    for n in 0..OBJECTS {
        one.commit(put(n.to_string(), "v").ttl(day)).await?;
    }
    // Half of them by somebody who does not know what they hang on.
    for n in 0..OBJECTS {
        let by = if n % 2 == 0 { &one } else { &two };
        by.delete(&key(n.to_string())).await?;
    }
    eventually("only a few leases are kept at hand", || async {
        let leases = server.ctl(0, &["lease", "list"]).or_fail()?;
        Ok(leases.lines().count() < 10)
    })
    .await
}

async fn compaction() -> Outcome {
    let server = Etcd::start().or_fail()?;
    let store = connect(&server.url("compacted")).await?;
    let mut revisions = Vec::new();
    for n in 0..10 {
        revisions.extend(store.commit(put("x", &n.to_string())).await?.revision);
    }
    let at = revisions[6];
    server.ctl(0, &["compaction", &at.to_string()]).or_fail()?;
    let from = |after: u64| WatchRequest::kind("thing").after(after);
    let mut watch = store.watch(&from(revisions[2])).await?;
    let oldest = match watch.next().await {
        Some(Err(Error::Compacted { requested, oldest })) if requested == revisions[2] => oldest,
        other => return Err(Failure::new(format!("behind the compaction: {other:?}"))),
    };
    if watch.next().await.is_some() {
        return Err("a watch that ended went on".into());
    }
    // From where it says, everything since is told.
    let mut watch = store.watch(&from(oldest)).await?;
    for expected in revisions.iter().filter(|revision| **revision > oldest) {
        let told = watch.next().await.ok_or("it ended")??.revision;
        if told != *expected {
            return Err(Failure::new(format!("told {told} instead of {expected}")));
        }
    }
    Ok(())
}

async fn dropped_watch() -> Outcome {
    const STREAMS: &str = "etcd_debugging_mvcc_watch_stream_total ";
    let server = Etcd::start().or_fail()?;
    let store = connect(&server.url("dropped")).await?;
    let streams = |number: &'static str| {
        let server = &server;
        move || async move {
            let text = metrics(server)?;
            Ok(text.lines().any(|line| line.strip_prefix(STREAMS) == Some(number)))
        }
    };
    let mut watch = store.watch(&WatchRequest::kind("thing")).await?;
    let written = store.commit(put("x", "1")).await?.revision;
    let told = watch.next().await.ok_or("it ended")??.revision;
    ensure_eq!(Some(told), written, "what was told");
    eventually("a stream", streams("1")).await?;
    drop(watch);
    eventually("the end of the stream", streams("0")).await
}

async fn writer_level(server: Server) -> Outcome {
    let url = server.0.url("level");
    let store = connect(&url).await?;
    store.commit(put("x", "1")).await?;
    // Opening raises the level to that of this program, and never lowers it.
    let level = || server.0.ctl(0, &["get", "level/writer", "--print-value-only"]).or_fail();
    ensure_eq!(level()?.trim(), "1", "the level of a new store");
    server.0.ctl(0, &["put", "level/writer", "0"]).or_fail()?;
    let raising = connect(&url).await?;
    ensure_eq!(level()?.trim(), "1", "the level of an older store");
    for other in [&raising, &store] {
        other.commit(put("x", "1")).await?;
    }
    server.0.ctl(0, &["put", "level/writer", "99"]).or_fail()?;
    // Also those that connected before.
    for result in [store.commit(put("x", "2")).await.err(), connect(&url).await.err()] {
        if !matches!(&result, Some(Error::Refused { reason, .. }) if reason.contains("level 99")) {
            return Err(Failure::new(format!("an older program: {result:?}")));
        }
    }
    if store.get(&key("x")).await?.is_none_or(|object| object.payload != "1") {
        return Err("it wrote all the same".into());
    }
    // A level that this program has is fine, whoever set it.
    server.0.ctl(0, &["put", "level/writer", "1"]).or_fail()?;
    store.commit(put("x", "3")).await?;
    Ok(())
}

async fn junk(server: Server) -> Outcome {
    let store = connect(&server.0.url("junk")).await?;
    store.commit(put("good", "1")).await?;
    server.0.ctl(0, &["put", "junk/o/thing/bad", "hello"]).or_fail()?;
    for result in [
        store.get(&key("bad")).await.map(drop),
        store.commit(put("bad", "2")).await.map(drop),
        store.list(&Query::new("thing")).await.map(drop),
    ] {
        if !matches!(result, Err(Error::Corrupt { .. })) {
            return Err(Failure::new(format!("junk is taken for {result:?}")));
        }
    }
    // Other prefixes are nobody's business, also where one begins with another.
    server.0.ctl(0, &["put", "junk2/o/thing/bad", "hello"]).or_fail()?;
    server.0.ctl(0, &["del", "junk/o/thing/bad"]).or_fail()?;
    let listed = store.list_all(&Query::new("thing")).await?.len();
    if listed != 1 { Err(Failure::new(format!("{listed} listed"))) } else { Ok(()) }
}

async fn longer(server: Server) -> Outcome {
    let store = connect(&server.fresh()).await?;
    let other = connect(&server.fresh()).await?;
    other.commit(put("x", "elsewhere")).await?;
    let short = Duration::from_secs(4);
    let write = put("x", "v").name("n").ttl(short);
    let done = store.commit(write.clone()).await?.first_put().ok_or("no put")?;
    let mut watch = store.watch(&WatchRequest::kind("thing")).await?;
    let touch = Touch { key: key("x"), revision: done.revision, ttl: short * 3 };
    store.touch(vec![touch]).await?.remove(0)?;
    tokio::time::sleep(short * 2).await;
    let found = store.get_by_name("thing", "n").await?.ok_or("its name went before it did")?;
    if (found.version, found.revision, found.token) != (1, done.revision, done.token) {
        return Err(Failure::new(format!("the touch changed it: {found:?}")));
    }
    // What was read before the touch may still be built on, and the next version follows.
    let next = put("x", "w").name("n").ttl(short).expect(Expect::Revision(done.revision));
    let next = store.commit(next).await?.first_put().ok_or("no put")?;
    if (next.version, next.token) != (2, done.token) {
        return Err(Failure::new(format!("after the touch came {next:?}")));
    }
    let told = watch.next().await.ok_or("it ended")??.revision;
    if told != next.revision {
        return Err(Failure::new(format!("told {told} before {}", next.revision)));
    }
    // The shorter life counts again, for the name as well.
    let wrote = SystemClock.uptime();
    eventually("its end", || async { Ok(store.get(&key("x")).await?.is_none()) }).await?;
    if store.get_by_name("thing", "n").await?.is_some() {
        return Err("its name lived on".into());
    }
    let lived = SystemClock.uptime() - wrote;
    if lived > short * 2 {
        return Err(Failure::new(format!("it lived on for {lived:?}")));
    }
    store.commit(put("y", "v").name("n")).await?;
    Ok(())
}

/// The most that a commit costs in etcd: each object written, its old name deleted, the new one put.
/// All of that, and what it reads if it fails, has to fit into one transaction.
async fn renames(server: Server) -> Outcome {
    let url = server.fresh();
    let (store, other) = (connect(&url).await?, connect(&url).await?);
    let most = store.capabilities().limits.commit_operations;
    let named = |round: u32, life: u64| {
        (0..most).fold(Commit::new(), |commit, n| {
            let life = Duration::from_secs(life);
            commit.put(put(n.to_string(), "v").name(format!("{round}-{n}")).ttl(life))
        })
    };
    // The other life moves each of them to another etcd lease as well.
    for (round, life) in [(1, 60), (2, 60), (3, 90)] {
        store.commit(named(round, life)).await?;
        let found = store.get_by_name("thing", &format!("{round}-{}", most - 1)).await?;
        if found.is_none_or(|object| object.key != key((most - 1).to_string())) {
            return Err(Failure::new(format!("the names of round {round} are not there")));
        }
    }
    if store.get_by_name("thing", "2-0").await?.is_some() {
        return Err("an old name stayed".into());
    }
    // What this handle remembers is old then: its transaction fails, and reads everything instead.
    other.commit(named(4, 60)).await?;
    store.commit(named(5, 60)).await?;
    other.commit(named(6, 90)).await?;
    Ok(())
}

async fn ten_thousand(server: Server) -> Outcome {
    const MANY: usize = 10_000;
    // As long as a busy machine takes: this is about one request, not about its speed.
    let patience = Duration::from_secs(60);
    let options = Options::new([server.0.address(0)]).prefix("ten-thousand");
    let store = EtcdStore::connect_with(options.timeout(patience).attempt(patience / 2)).await?;
    let store = store.into_store().with_timeout(patience);
    let life = Duration::from_secs(120);
    let mut touches = Vec::with_capacity(MANY);
    let ids: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
    for chunk in ids.chunks(40) {
        let commit = chunk
            .iter()
            .fold(tenure::store::Commit::new(), |commit, id| commit.put(put(id, "v").ttl(life)));
        let revision = store.commit(commit).await?.revision.ok_or("no revision")?;
        touches.extend(chunk.iter().map(|id| Touch { key: key(id), revision, ttl: life }));
    }
    // Somebody who knows none of the leases, and has the patience for one of them with each server.
    let options = Options::new([server.0.address(0)]).prefix("ten-thousand");
    let options = options.timeout(patience / 2).attempt(Duration::from_millis(100));
    let cold = EtcdStore::connect_with(options).await?.into_store().with_timeout(patience);
    for store in [store, cold] {
        let answers = store.touch(touches.clone()).await?;
        let refused = answers.iter().filter(|answer| answer.is_err()).count();
        if answers.len() != MANY || refused > 0 {
            return Err(Failure::new(format!("{refused} of {} refused", answers.len())));
        }
    }
    Ok(())
}
