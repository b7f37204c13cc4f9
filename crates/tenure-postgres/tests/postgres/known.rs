//! What a process believes to know of its rows, and everything that can make it untrue.
//!
//! Each test first lets a store write the same objects a few times, so that it commits in one exchange
//! without reading, and makes sure that it does. Then something happens behind its back.

mod lives;
mod quiet;
mod seen;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use tenure::Error;
use tenure::store::{Commit, Committed, Event, Expect, Store, WatchRequest, WriteResult};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tokio_postgres::Client;

use crate::common::{OrFail, Outcome, Server, connect, key, put, raw};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("known::two_processes_take_turns", move || turns(server));
    trials.test("known::two_processes_race", move || race(server));
    trials.test("known::a_row_changed_directly_is_noticed", move || directly(server));
    trials.test("known::a_counter_that_was_restored_is_noticed", move || restored(server));
    trials.test("known::a_raised_writer_level_is_noticed", move || level(server));
    trials.test("known::a_life_given_and_taken_is_judged_by_the_clock", move || {
        lives::mortal(server)
    });
    trials
        .test("known::what_comes_and_goes_takes_one_exchange_each", move || lives::cycles(server));
    trials.test("known::a_life_ends_or_goes_on_as_the_server_says", move || lives::lives(server));
    trials.test("known::a_vague_notion_of_time_prolongs_no_life", move || lives::vague(server));
    trials.test("known::what_is_said_to_be_absent_must_be", move || lives::absent(server));
    trials.test("known::what_others_wrote_is_looked_at_first", move || seen::others(server));
    trials.test("known::what_was_seen_may_have_changed_since", move || seen::race(server));
    trials.test("known::what_nobody_waits_for_after_a_look_is_not_sent", move || {
        seen::abandoned(server)
    });
    trials.test("known::a_name_has_one_object_at_any_revision", move || seen::names(server));
    trials.test("known::what_is_refused_leaves_no_error_in_the_log", quiet::refused);
    trials.test("known::what_is_contended_leaves_no_error_in_the_log", quiet::contended);
    trials.test("known::answers_and_events_are_the_same_as_ever", move || answers(server));
    trials.test("known::lost_connections_leave_nothing_open_but_what_is_said_to_be", move || {
        lost(server)
    });
    trials.test("known::a_session_that_ends_takes_it_along", move || ended(server));
}

/// Whether the last group of a store went in one exchange.
async fn was_quick(client: &Client) -> Result<bool, Failure> {
    let sql = "select count(*) from pg_stat_activity where application_name = 'tenure commit' \
               and datname = current_database() and query like 'with locked as%'";
    Ok(client.query_one(sql, &[]).await.or_fail()?.get::<_, i64>(0) > 0)
}

/// Writes an object until the store knows it; gives what it was left at.
async fn known(store: &Store, client: &Client, id: &str) -> Result<WriteResult, Failure> {
    for n in 0..200 {
        let done = store.commit(put(id, &format!("known {n}"))).await?;
        if was_quick(client).await? {
            return result(&done);
        }
    }
    Err(Failure::new("two hundred commits in a row, and each was read before it was written"))
}

fn result(done: &Committed) -> Result<WriteResult, Failure> {
    done.first_put().ok_or_else(|| Failure::new(format!("no put: {done:?}")))
}

/// A connection that passes for a writer, as a careless operator would.
async fn operator(url: &str) -> Result<Client, Failure> {
    let client = raw(url).await?;
    client.batch_execute("set tenure.writer = '1'").await.or_fail()?;
    Ok(client)
}

async fn turns(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (a, b) = (connect(&url).await?, connect(&url).await?);
    let client = raw(&url).await?;
    for round in 0..30 {
        let left = known(&a, &client, "x").await?;
        let theirs = result(&b.commit(put("x", &format!("theirs {round}"))).await?)?;
        ensure_eq!((theirs.version, theirs.revision), (left.version + 1, left.revision + 1));
        // What we left is not there any more; what they left is.
        let late = a.commit(put("x", "late").expect(Expect::Version(left.version))).await;
        let told = matches!(&late, Err(Error::Conflict { current, .. })
            if (current.version, current.revision) == (theirs.version, theirs.revision));
        ensure!(told, "{late:?}");
        let next = put("x", "next").expect(Expect::Revision(theirs.revision));
        ensure_eq!(result(&a.commit(next).await?)?.version, theirs.version + 1);
        // What they wrote was none of ours, but they drew a revision.
        let left = known(&a, &client, "x").await?;
        let theirs = result(&b.commit(put("theirs", &format!("{round}"))).await?)?;
        ensure_eq!(theirs.revision, left.revision + 1);
        let ours = result(&a.commit(put("x", "after theirs")).await?)?;
        ensure_eq!((ours.version, ours.revision), (left.version + 1, theirs.revision + 1));
        // Deleted by the other, it is not ours to replace.
        let left = known(&a, &client, "y").await?;
        b.commit(Commit::new().delete(key("y"), Expect::Exists)).await?;
        let gone = a.commit(put("y", "late").expect(Expect::Version(left.version))).await;
        ensure!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
    }
    Ok(())
}

/// Three processes add to the same numbers, each with compare-and-swap; none may be lost.
async fn race(server: Server) -> Outcome {
    const ADDS: u64 = 60;
    let url = server.fresh_database()?;
    let stores = [connect(&url).await?, connect(&url).await?, connect(&url).await?];
    for id in ["p", "q"] {
        stores[0].commit(put(id, "0")).await?;
    }
    let adders = stores.iter().flat_map(|store| ["p", "q"].map(|id| add_up(store, id, ADDS)));
    try_join_all(adders).await?;
    for id in ["p", "q"] {
        let object = stores[0].get(&key(id)).await?.ok_or("gone")?;
        ensure_eq!(object.payload.as_ref(), (3 * ADDS).to_string().as_bytes());
        ensure_eq!(object.version, 3 * ADDS + 1);
    }
    Ok(())
}

async fn add_up(store: &Store, id: &str, times: u64) -> Outcome {
    let mut added = 0;
    while added < times {
        let object = store.get(&key(id)).await?.ok_or("gone")?;
        let number: u64 = std::str::from_utf8(&object.payload).or_fail()?.parse().or_fail()?;
        let next = put(id, &(number + 1).to_string()).expect(Expect::Version(object.version));
        match store.commit(next).await {
            Ok(_) => added += 1,
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn directly(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, operator) = (connect(&url).await?, operator(&url).await?);
    // Neither counter nor revision moves: only the row itself tells.
    known(&store, &operator, "x").await?;
    let change = "update objects set payload = 'theirs', resource_version = 77 where id = 'x'";
    operator.batch_execute(change).await.or_fail()?;
    ensure_eq!(result(&store.commit(put("x", "ours")).await?)?.version, 78);

    let left = known(&store, &operator, "x").await?;
    operator.batch_execute("delete from objects where id = 'x'").await.or_fail()?;
    let gone = store.commit(put("x", "late").expect(Expect::Version(left.version))).await;
    ensure!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
    ensure_eq!(result(&store.commit(put("x", "anew").expect(Expect::Absent)).await?)?.version, 1);

    // A whole group, of which one row is not as it was: the others' outcomes are their own.
    let ids: Vec<String> = (0..20).map(|n| format!("many-{n}")).collect();
    for id in &ids {
        known(&store, &operator, id).await?;
    }
    operator.batch_execute("delete from objects where id = 'many-7'").await.or_fail()?;
    let commits = ids.iter().map(|id| store.commit(put(id, "late").expect(Expect::Exists)));
    let answers = futures::future::join_all(commits).await;
    for (n, answer) in answers.into_iter().enumerate() {
        ensure_eq!(answer.is_ok(), n != 7);
    }
    Ok(())
}

async fn restored(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (a, b, operator) = (connect(&url).await?, connect(&url).await?, operator(&url).await?);
    let mut left = known(&a, &operator, "x").await?;
    // A backup from before the object was is put back, and the counter with it.
    let restore = "delete from objects; delete from tenure_events; \
                   update tenure_meta set revision = 0, compacted_revision = 0";
    operator.batch_execute(restore).await.or_fail()?;
    let gone = a.commit(put("x", "late").expect(Expect::Version(left.version))).await;
    ensure!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");

    // Once more, and then others come to the very same revision and version.
    left = known(&a, &operator, "x").await?;
    operator.batch_execute(restore).await.or_fail()?;
    let mut theirs = result(&b.commit(put("x", "theirs")).await?)?;
    while theirs.revision < left.revision {
        theirs = result(&b.commit(put("x", "theirs").new_token()).await?)?;
    }
    ensure_eq!((theirs.version, theirs.revision), (left.version, left.revision));
    let next = result(&a.commit(put("x", "next").expect(Expect::Version(left.version))).await?)?;
    ensure_eq!((next.version, next.token), (theirs.version + 1, theirs.token));
    Ok(())
}

async fn level(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, client) = (connect(&url).await?, raw(&url).await?);
    let left = known(&store, &client, "x").await?;
    client.batch_execute("update tenure_meta set min_writer = 2").await.or_fail()?;
    let late = store.commit(put("x", "late")).await;
    ensure!(matches!(late, Err(Error::Refused { .. })), "{late:?}");
    let object = store.get(&key("x")).await?.ok_or("gone")?;
    ensure_eq!(object.version, left.version);
    Ok(())
}

async fn answers(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, client) = (connect(&url).await?, raw(&url).await?);
    let named = |payload: &str| put("x", payload).name("n").label("l", payload);
    store.commit(named("0")).await?;
    let left = result(&store.commit(named("1")).await?)?;
    let mut watch = store.watch(&WatchRequest::default()).await?;
    let quick = result(&store.commit(named("2").expect(Expect::Token(left.token))).await?)?;
    ensure!(was_quick(&client).await?, "a put that keeps its name was not quick");
    ensure_eq!((quick.version, quick.revision), (left.version + 1, left.revision + 1));
    ensure_eq!(
        (quick.created_revision, quick.token, quick.created_at_ms),
        (left.created_revision, left.token, left.created_at_ms)
    );
    ensure!(quick.updated_at_ms >= left.updated_at_ms, "{quick:?} {left:?}");
    let object = store.get_by_name("thing", "n").await?.ok_or("gone")?;
    ensure_eq!((object.version, object.labels["l"].as_str()), (quick.version, "2"));
    ensure_eq!(object.updated_at_ms, quick.updated_at_ms);
    // Watchers of this process, and those who read it from the table, are told the same.
    let told = watch.next().await.ok_or("the watch ended")??;
    let mut elsewhere =
        connect(&url).await?.watch(&WatchRequest::default().after(left.revision)).await?;
    let read = elsewhere.next().await.ok_or("the watch ended")??;
    ensure_eq!(told, read);
    ensure!(matches!(&told.events[..], [Event::Put(put)] if **put == object), "{told:?}");
    // Equal, refused and renamed ones are answered as ever.
    ensure_eq!(store.commit(named("2")).await?.revision, None);
    let stale = store.commit(named("3").expect(Expect::Version(left.version))).await;
    ensure!(stale.is_err_and(|error| error.is_conflict()));
    store.commit(put("other", "x").name("taken")).await?;
    let taken = store.commit(put("x", "3").name("taken")).await;
    ensure!(matches!(taken, Err(Error::NameTaken { .. })), "{taken:?}");
    store.commit(put("x", "3")).await?;
    store.commit(put("other", "y").name("n")).await?;
    let taken = store.commit(named("4")).await;
    ensure!(matches!(taken, Err(Error::NameTaken { .. })), "{taken:?}");
    Ok(())
}

/// Connections die under groups that commit in one exchange. What was acknowledged is there, what was
/// refused is not: the very same expectation must hold again.
async fn lost(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, client) = (connect(&url).await?, raw(&url).await?);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for id in (0..16).map(|n| format!("w{n}")) {
        let version = result(&store.commit(put(&id, "0")).await?)?.version;
        writers.push((store.clone(), id, version));
    }
    let writers: Vec<_> = writers
        .into_iter()
        .map(|(store, id, version)| tokio::spawn(rewrite(store, id, version, Arc::clone(&stop))))
        .collect();
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
               where application_name = 'tenure commit' and datname = current_database() \
               and state = 'active' and query like 'with locked as%'";
    let mut ended = 0;
    for _ in 0..2_000 {
        ended += client.query(end, &[]).await.or_fail()?.len();
        if ended >= 25 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::Release);
    let mut total = 0;
    for writer in writers {
        total += writer.await??;
    }
    ensure!(ended >= 25, "only {ended} connections died");
    let head = client.query_one("select revision from tenure_meta", &[]).await.or_fail()?;
    ensure_eq!(u64::try_from(head.get::<_, i64>(0)).or_fail()?, total);
    Ok(())
}

/// Replaces an object of this version again and again, always expecting the version that it must have;
/// tells which it has in the end.
async fn rewrite(
    store: Store,
    id: String,
    mut version: u64,
    stop: Arc<AtomicBool>,
) -> Result<u64, Failure> {
    while !stop.load(Ordering::Acquire) {
        let next = put(&id, &version.to_string()).expect(Expect::Version(version));
        match store.commit(next).await {
            Ok(done) => {
                ensure_eq!(result(&done)?.version, version + 1);
                version += 1;
            }
            Err(Error::Unavailable { .. }) => {
                ensure_eq!(store.get(&key(&id)).await?.map(|object| object.version), Some(version));
            }
            Err(Error::Unknown { .. }) => {
                let found = store.get(&key(&id)).await?.ok_or("gone")?.version;
                ensure!(found == version || found == version + 1, "{found} after {version}");
                version = found;
            }
            Err(other) => return Err(Failure::new(format!("{id} at {version}: {other}"))),
        }
    }
    Ok(version)
}

async fn ended(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, operator) = (connect(&url).await?, operator(&url).await?);
    let left = known(&store, &operator, "x").await?;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity \
               where application_name = 'tenure commit' and datname = current_database()";
    operator.query(end, &[]).await.or_fail()?;
    operator.batch_execute("delete from objects where id = 'x'").await.or_fail()?;
    // The first one may be told that the connection was lost while it was under way.
    let mut answer = store.commit(put("x", "late").expect(Expect::Version(left.version))).await;
    if matches!(answer, Err(Error::Unknown { .. })) {
        answer = store.commit(put("x", "late").expect(Expect::Version(left.version))).await;
    }
    ensure!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
    Ok(())
}
