//! Groups of commits, touches beside them, and what watchers hear of both.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tenure::Error;
use tenure::clock::{Clock as _, SystemClock};
use tenure::store::{Cause, Commit, Event, Expect, Query, Selector, Touch, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_postgres::{Options, PostgresStore};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put, raw};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("groups::outcomes_are_independent", move || independent(server));
    trials.test("groups::a_damaged_row_concerns_its_own_commits", move || damaged(server));
    trials.test("groups::a_missing_counter_is_told", move || no_counter(server));
    trials.test("groups::touches_notify_nobody", move || silent(server));
    trials.test("groups::a_watch_misses_nothing_of_many_writers", move || nothing_missed(server));
    trials.test("groups::touches_and_commits_do_not_deadlock", move || no_deadlock(server));
    trials.test("groups::history_is_compacted", move || compacted(server));
    trials.test("groups::a_page_is_bounded_in_size", move || big_page(server));
    trials.test("groups::a_watch_keeps_the_store_open", move || kept_open(server));
    trials.test("groups::a_blocked_runtime_starves_nobody", move || blocked(server));
    trials.test("groups::a_short_touch_is_swept_in_time", move || short_touch(server));
    trials.test("groups::what_is_written_during_a_sweep_is_swept_in_time", move || swept(server));
}

async fn independent(server: Server) -> Outcome {
    let store = connect(&server.fresh_database()?).await?;
    store.commit(put("taken", "x").name("taken")).await?;
    let before = store.commit(put("hot", "0")).await?.revision.unwrap_or(0);
    // All of these wait at the same time, so they share a few transactions.
    let commits: Vec<Commit> = (0..400)
        .map(|n| match n % 4 {
            0 => put(format!("good-{n}"), "x").expect(Expect::Absent).into(),
            1 => put("taken", "y").expect(Expect::Absent).into(),
            2 => put(format!("named-{n}"), "x").name("taken").into(),
            _ => put("hot", &n.to_string()).expect(Expect::Revision(before)).into(),
        })
        .collect();
    let answers = join_all(commits.into_iter().map(|commit| store.commit(commit))).await;
    let mut revisions = Vec::new();
    for (n, answer) in answers.iter().enumerate() {
        let fine = match (n % 4, answer) {
            (0, Ok(done)) | (3, Ok(done)) => {
                revisions.extend(done.revision);
                true
            }
            (1, Err(Error::AlreadyExists { .. })) | (2, Err(Error::NameTaken { .. })) => true,
            (3, Err(Error::Conflict { current, .. })) => current.revision > before,
            _ => false,
        };
        ensure!(fine, "{n}: {answer:?}");
    }
    // A hundred creations and one winner on the hot object, each with a revision of its own.
    revisions.sort_unstable();
    ensure_eq!(revisions, (before + 1..=before + 101).collect::<Vec<_>>());
    Ok(())
}

async fn damaged(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, operator) = (connect(&url).await?, raw(&url).await?);
    store.commit(put("damaged", "x").label("a", "b")).await?;
    let damage = "set tenure.writer = '1'; update objects set labels = 'no JSON'";
    operator.batch_execute(damage).await.or_fail()?;
    let ids = (0..20).map(|n| if n == 11 { "damaged".to_owned() } else { n.to_string() });
    let answers = join_all(ids.map(|id| store.commit(put(id, "y")))).await;
    for (n, answer) in answers.into_iter().enumerate() {
        let fine = match answer {
            Err(Error::Corrupt { .. }) => n == 11,
            answer => n != 11 && answer.is_ok(),
        };
        ensure!(fine, "{n} was not answered for itself");
    }
    Ok(())
}

async fn no_counter(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, operator) = (connect(&url).await?, raw(&url).await?);
    store.commit(put("a", "x")).await?;
    operator.batch_execute("delete from tenure_meta").await.or_fail()?;
    let told = store.commit(put("a", "y")).await;
    ensure!(
        matches!(&told, Err(Error::Corrupt { reason, .. }) if reason.contains("tenure_meta")),
        "{told:?}"
    );
    Ok(())
}

async fn silent(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.or_fail()?;
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    client.batch_execute("listen tenure_public").await.or_fail()?;
    let ttl = Duration::from_secs(60);
    let revision = store.commit(put("a", "x").ttl(ttl)).await?.revision.unwrap_or(0);
    eventually("the commit is told", || async { Ok(heard.load(Ordering::SeqCst) == 1) }).await?;
    for _ in 0..20 {
        let touched = store.touch(vec![Touch { key: key("a"), revision, ttl }]).await?;
        ensure!(touched.iter().all(Result::is_ok), "{touched:?}");
    }
    // Equal puts and refusals change nothing either.
    store.commit(put("a", "x").ttl(ttl)).await?;
    ensure!(store.commit(put("a", "y").expect(Expect::Absent)).await.is_err());
    // Notifications come in order: when the next commit's is here, no other is on its way.
    store.commit(put("b", "x")).await?;
    eventually("the next is told", || async { Ok(heard.load(Ordering::SeqCst) >= 2) }).await?;
    ensure_eq!(heard.load(Ordering::SeqCst), 2);
    Ok(())
}

async fn nothing_missed(server: Server) -> Outcome {
    const WRITERS: usize = 16;
    const COMMITS: usize = 25;
    let url = server.fresh_database()?;
    let stores = [connect(&url).await?, connect(&url).await?];
    let observer = connect(&url).await?;
    // Somebody's long transaction in the same database, with a write of its own and a snapshot.
    let mut client = raw(&url).await?;
    client.batch_execute("create table theirs (n int)").await.or_fail()?;
    let transaction = client.transaction().await.or_fail()?;
    transaction.batch_execute("insert into theirs values (1)").await.or_fail()?;
    transaction.query("select count(*) from objects", &[]).await.or_fail()?;

    let mut watch = observer.watch(&WatchRequest::default()).await?;
    let start = watch.start();
    let writers = (0..WRITERS).map(|writer| {
        let store = stores[writer % 2].clone();
        tokio::spawn(async move {
            for n in 0..COMMITS {
                store.commit(put(format!("{writer}-{n}"), "x")).await?;
            }
            Ok::<(), Failure>(())
        })
    });
    let writers: Vec<_> = writers.collect();
    let expected = start + (WRITERS * COMMITS) as u64;
    for revision in start + 1..=expected {
        let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.or_fail()?;
        ensure_eq!(batch.ok_or("the watch ended")??.revision, revision);
    }
    for writer in writers {
        writer.await??;
    }
    transaction.rollback().await.or_fail()?;
    Ok(())
}

async fn no_deadlock(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, other) = (connect(&url).await?, connect(&url).await?);
    let ttl = Duration::from_secs(60);
    let ids: Vec<String> = (0..50).map(|n| format!("{n:02}")).collect();
    let mut touches = Vec::new();
    for id in &ids {
        let revision = store.commit(put(id, "x").ttl(ttl)).await?.revision.unwrap_or(0);
        touches.push(Touch { key: key(id), revision, ttl });
    }
    // Touches in ascending and descending order by two processes, commits that check everything.
    let backward: Vec<Touch> = touches.iter().rev().cloned().collect();
    let touching = |store: &tenure::store::Store, touches: Vec<Touch>| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..40 {
                let answers = store.touch(touches.clone()).await?;
                ensure!(answers.iter().all(Result::is_ok), "{answers:?}");
            }
            Ok::<(), Failure>(())
        })
    };
    let tasks = [touching(&store, touches.clone()), touching(&other, backward)];
    for n in 0..40 {
        let checks = ids
            .iter()
            .rev()
            .fold(Commit::new(), |commit, id| commit.check(key(id), Expect::Exists));
        other.commit(checks.put(put("counter", &n.to_string()))).await?;
    }
    for task in tasks {
        task.await??;
    }
    let client = raw(&url).await?;
    let sql = "select deadlocks from pg_stat_database where datname = current_database()";
    ensure_eq!(client.query_one(sql, &[]).await.or_fail()?.get::<_, i64>(0), 0);
    Ok(())
}

async fn compacted(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let options = Options::new().history_revisions(10).sweep_interval(Duration::from_millis(20));
    let store = PostgresStore::connect_with(&url, options).await?.into_store();
    for n in 0..40 {
        store.commit(put("a", &n.to_string())).await?;
    }
    let client = raw(&url).await?;
    let count = "select count(*) from tenure_history";
    eventually("old events are gone", || async {
        Ok(client.query_one(count, &[]).await.or_fail()?.get::<_, i64>(0) <= 10)
    })
    .await?;
    let mut late = store.watch(&WatchRequest::default().after(5)).await?;
    let answer = late.next().await.ok_or("the watch ended")?;
    let oldest = match answer {
        Err(Error::Compacted { requested: 5, oldest }) => oldest,
        other => return Err(Failure::new(format!("{other:?}"))),
    };
    let mut watch = store.watch(&WatchRequest::default().after(oldest)).await?;
    let next = watch.next().await.ok_or("the watch ended")??;
    ensure_eq!(next.revision, oldest + 1);
    Ok(())
}

async fn short_touch(server: Server) -> Outcome {
    let store = connect(&server.fresh_database()?).await?;
    let long = put("a", "x").ttl(Duration::from_secs(3600));
    let revision = store.commit(long).await?.revision.unwrap_or(0);
    let mut watch = store.watch(&WatchRequest::default()).await?;
    let touch = Touch { key: key("a"), revision, ttl: Duration::from_millis(200) };
    store.touch(vec![touch]).await?.remove(0)?;
    let end = tokio::time::timeout(Duration::from_secs(5), watch.next()).await.or_fail()?;
    let batch = end.ok_or("the watch ended")??;
    let expired = matches!(&batch.events[..], [Event::Delete { cause: Cause::Expired, .. }]);
    ensure!(expired, "{batch:?}");
    Ok(())
}

/// A sweep has looked what expires next, and before it writes that down, somebody else writes what expires
/// before it.
async fn swept(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let sweeper = connect(&url).await?;
    sweeper.commit(put("opens the session", "x")).await?;
    let looking = raw(&url).await?;
    let sessions = "select array_agg(pid) from pg_stat_activity where datname = current_database()
                    and application_name = 'tenure commit'";
    let sessions: Vec<i32> = looking.query_one(sessions, &[]).await.or_fail()?.get(0);
    let idle = Options::new().sweep_interval(Duration::from_secs(3600));
    let writer = PostgresStore::connect_with(&url, idle).await?.into_store();
    server.0.pause_sessions(&sessions).or_fail()?;
    let is_so = async |sql: &str| -> Result<bool, Failure> {
        Ok(looking.query_one(sql, &[]).await.or_fail()?.get(0))
    };
    let claimed = "select next_expiry_ms % 2 = 1 and next_expiry_ms < 9e18 from tenure_meta";
    let mut held_up = Ok(false);
    // The writer looks what is due once, when it starts, and may be the one that sweeps the first of these.
    for n in 0..10 {
        writer.commit(put(format!("due{n}"), "x").ttl(Duration::from_millis(100))).await?;
        held_up = within(Duration::from_secs(3), || is_so(claimed)).await;
        if !matches!(held_up, Ok(false)) {
            break;
        }
    }
    let wrote = writer.commit(put("later", "x").ttl(Duration::from_secs(30))).await;
    server.0.resume_sessions(&sessions).or_fail()?;
    wrote?;
    ensure!(held_up?, "no sweep of the first store's began");
    let swept = "select not exists (select from objects where id like 'due%')";
    eventually("it ends", || is_so(swept)).await?;
    let covered =
        "select next_expiry_ms <= (select min(expires_at_ms) from objects) from tenure_meta";
    ensure!(is_so(covered).await?, "nobody would come to sweep it");
    Ok(())
}

/// Whether it became so in time.
async fn within<F>(time: Duration, mut look: impl FnMut() -> F) -> Result<bool, Failure>
where
    F: Future<Output = Result<bool, Failure>>,
{
    let until = SystemClock.uptime() + time;
    while SystemClock.uptime() < until {
        if look().await? {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(false)
}

async fn big_page(server: Server) -> Outcome {
    let store = connect(&server.fresh_database()?).await?;
    let payload = "x".repeat(1024 * 1024);
    for n in 0..20 {
        store.commit(put(format!("{n:02}"), &payload).label("big", "yes")).await?;
    }
    for selector in [Selector::default(), Selector::equals("big", "yes")] {
        let query = Query::new("thing").limit(1000).selector(selector);
        let page = store.list(&query).await?;
        ensure!((1..20).contains(&page.objects.len()), "{} objects", page.objects.len());
        ensure_eq!(page.next, page.objects.last().map(|last| last.key.id.clone()));
        let all = store.list_all(&query).await?;
        let ids: Vec<_> = all.iter().map(|object| object.key.id.clone()).collect();
        ensure_eq!(ids, (0..20).map(|n| format!("{n:02}")).collect::<Vec<_>>());
    }
    Ok(())
}

async fn kept_open(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, other) = (connect(&url).await?, connect(&url).await?);
    let mut watch = store.watch(&WatchRequest::default()).await?;
    drop(store);
    other.commit(put("a", "x")).await?;
    let batch = tokio::time::timeout(Duration::from_secs(5), watch.next()).await.or_fail()?;
    ensure_eq!(batch.ok_or("the watch ended")??.revision, 1);
    // Closing says so instead of falling silent.
    let mut watch = other.watch(&WatchRequest::default()).await?;
    other.close().await;
    let end = tokio::time::timeout(Duration::from_secs(5), watch.next()).await.or_fail()?;
    ensure!(matches!(end, Some(Err(Error::Unavailable { .. }))), "{end:?}");
    ensure!(watch.next().await.is_none());
    Ok(())
}

/// The runtime that opened the store is blocked for as long as another one uses it: renewals must not
/// depend on what else a program does on its runtime.
async fn blocked(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (opened, open) = std::sync::mpsc::channel();
    let (used, done) = std::sync::mpsc::channel::<()>();
    let owner = std::thread::spawn(move || -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = connect(&url).await?;
            store.commit(put("held", "x").ttl(Duration::from_secs(60))).await?;
            opened.send(store.clone()).or_fail()?;
            // Blocks the only thread of this runtime until the other one is done or gave up.
            done.recv().or_fail()?;
            Ok(())
        })
    });
    let store = tokio::task::spawn_blocking(move || open.recv()).await?.or_fail()?;
    let work = async {
        let held = store.get(&key("held")).await?.ok_or("not there")?;
        let ttl = Duration::from_secs(60);
        let touch = Touch { key: held.key, revision: held.revision, ttl };
        store.touch(vec![touch]).await?.remove(0)?;
        store.commit(put("other", "y")).await?;
        let mut watch = store.watch(&WatchRequest::default()).await?;
        store.commit(put("third", "z")).await?;
        watch.next().await.ok_or("the watch ended")??;
        Ok::<_, Failure>(())
    };
    let worked = tokio::time::timeout(Duration::from_secs(20), work).await;
    used.send(()).or_fail()?;
    tokio::task::spawn_blocking(move || owner.join())
        .await?
        .map_err(|_| "the owner panicked")??;
    worked.map_err(|_| Failure::new("a blocked runtime starved the store"))?
}
