//! Servers that restart, connections that die, processes that freeze. Writers are told the truth:
//! what was acknowledged is there, what was refused is not, and only `Unknown` leaves it open.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::store::{Commit, Durability, Expect, Query, Store, Touch, WatchRequest};
use tenure::{Error, Result};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_postgres::{Options, PostgresStore};
use tenure_testkit::{Postgres, StopMode};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::common::{HAMMER, OrFail, Outcome, Server, connect, eventually, key, put, raw};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("outage::a_crash_of_the_server_loses_nothing", || restarts(StopMode::Immediate));
    trials.test("outage::a_restart_of_the_server_loses_nothing", || restarts(StopMode::Fast));
    trials.test(
        "outage::a_server_that_waits_for_no_disk_is_made_to_and_one_without_is_declared",
        lax,
    );
    trials.test("outage::killed_connections_lose_nothing", move || killed(server));
    trials.test("outage::a_frozen_server_is_told_in_time", frozen_server);
    trials.test("outage::a_frozen_process_stops_nobody_for_long", move || frozen_process(server));
    trials
        .test("outage::a_frozen_process_that_takes_no_answer_is_cut_off", move || unheard(server));
    trials.test("outage::a_held_lock_is_told", move || held_lock(server));
    trials.test("outage::a_connection_that_hangs_is_read_from_once", move || hangs(server));
}

/// What a writer was told.
#[derive(Default)]
struct Told {
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
}

/// Creates objects until told to stop, and keeps account.
fn write(store: &Store, name: String, stop: &Arc<AtomicBool>) -> JoinHandle<Result<Told, Failure>> {
    let (store, stop) = (store.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let mut told = Told::default();
        let mut n = 0;
        while !stop.load(Ordering::Acquire) {
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
async fn settle(
    store: &Store,
    writers: Vec<JoinHandle<Result<Told, Failure>>>,
    mut watch: tenure::store::Watch,
) -> Outcome {
    let mut told = Told::default();
    for writer in writers {
        let own = writer.await??;
        told.acknowledged.extend(own.acknowledged);
        told.refused.extend(own.refused);
    }
    let stored = store.list_all(&Query::new("thing").limit(1000)).await?;
    let stored: BTreeSet<String> = stored.into_iter().map(|object| object.key.id).collect();
    let lost: Vec<_> = told.acknowledged.difference(&stored).collect();
    ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let undead: Vec<_> = told.refused.intersection(&stored).collect();
    ensure!(undead.is_empty(), "refused and applied: {undead:?}");
    ensure!(told.acknowledged.len() > 20, "only {} were acknowledged", told.acknowledged.len());

    let end = store.commit(put("the-end", "x")).await?.revision.unwrap_or(0);
    let (mut heard, mut last) = (BTreeSet::new(), watch.start());
    while last < end {
        let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.or_fail()?;
        let batch = batch.ok_or("the watch ended")??;
        ensure_eq!(batch.revision, last + 1, "revisions are heard one by one");
        last = batch.revision;
        heard.extend(batch.events.iter().map(|event| event.key().id.clone()));
    }
    heard.remove("the-end");
    ensure_eq!(heard, stored);
    Ok(())
}

async fn restarts(mode: StopMode) -> Outcome {
    let mut server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let (store, observer) = (connect(&url).await?, connect(&url).await?);
    let watch = observer.watch(&WatchRequest::default()).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8).map(|n| write(&store, format!("w{n}"), &stop)).collect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        server = tokio::task::spawn_blocking(move || {
            server.restart(mode)?;
            Ok::<_, anyhow::Error>(server)
        })
        .await?
        .or_fail()?;
    }
    eventually("the store is back", || async { Ok(store.commit(put("back", "x")).await.is_ok()) })
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Release);
    settle(&store, writers, watch).await
}

async fn killed(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, observer) = (connect(&url).await?, connect(&url).await?);
    let watch = observer.watch(&WatchRequest::default()).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8).map(|n| write(&store, format!("w{n}"), &stop)).collect();
    let client = raw(&url).await?;
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity \
                where datname = current_database() and application_name like 'tenure %'";
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.batch_execute(kill).await.or_fail()?;
    }
    eventually("the store is back", || async { Ok(store.commit(put("back", "x")).await.is_ok()) })
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Release);
    settle(&store, writers, watch).await
}

async fn frozen_server() -> Outcome {
    let server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let patience = Duration::from_millis(700);
    let options = Options::new().reply_timeout(patience).connect_timeout(patience);
    let store = PostgresStore::connect_with(&url, options).await?.into_store();
    store.commit(put("a", "x")).await?;
    server.pause().or_fail()?;
    let began = SystemClock.uptime();
    let read = store.get(&key("a")).await;
    ensure!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    let written = store.commit(put("b", "x")).await;
    ensure!(
        matches!(written, Err(Error::Unavailable { .. } | Error::Unknown { .. })),
        "{written:?}"
    );
    let took = SystemClock.uptime() - began;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    server.resume().or_fail()?;
    eventually("the store is back", || async { Ok(store.commit(put("c", "x")).await.is_ok()) })
        .await
}

async fn frozen_process(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let client = raw(&url).await?;
    let hammer = Killed::hammer(&url, "0")?;
    hammer.stop_while(&client, "state = 'idle in transaction'").await?;
    let began = SystemClock.uptime();
    store.commit(put("mine", "x")).await?;
    let took = SystemClock.uptime() - began;
    ensure!(took < Duration::from_secs(3), "the frozen process held everybody up for {took:?}");

    // When it wakes, its transaction is gone, it says so, and it carries on.
    let before = store.list(&Query::new("thing")).await?.revision;
    hammer.signal("CONT")?;
    eventually("the process that was frozen writes again", || async {
        Ok(store.list(&Query::new("thing")).await?.revision > before + 3)
    })
    .await
}

/// It is frozen with the commit lock, and with more to hear than fits between the server and it.
async fn unheard(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let client = raw(&url).await?;
    let hammer = Killed::hammer(&url, "8")?;
    hammer.stop_while(&client, "wait_event = 'ClientWrite'").await?;
    let began = SystemClock.uptime();
    while let Err(error) = store.commit(put("mine", "x")).await {
        let waited = SystemClock.uptime() - began;
        ensure!(waited < Duration::from_secs(15), "held up for {waited:?}: {error}");
    }
    Ok(())
}

/// Settings of the server's that trade durability for speed.
async fn lax() -> Outcome {
    let mut server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let owner = raw(&url).await?;
    for setting in ["synchronous_commit = off", "wal_writer_delay = '10s'"] {
        owner.batch_execute(&format!("alter system set {setting}")).await.or_fail()?;
    }
    owner.batch_execute("select pg_reload_conf()").await.or_fail()?;
    let is_off = "select current_setting('synchronous_commit') = 'off'";
    eventually("the settings count", || async {
        Ok(owner.query_one(is_off, &[]).await.or_fail()?.get(0))
    })
    .await?;
    let store = connect(&url).await?;
    let life = Duration::from_secs(600);
    let revision = store.commit(put("acknowledged", "x").ttl(life)).await?.revision;
    let touch = Touch { key: key("acknowledged"), revision: revision.unwrap_or(0), ttl: life * 2 };
    store.touch(vec![touch]).await?.remove(0)?;
    server.restart(StopMode::Immediate).or_fail()?;
    let there = connect(&url).await?.get(&key("acknowledged")).await?.ok_or("it was lost")?;
    ensure!(there.expires_in.is_some_and(|left| left > life), "{:?} left", there.expires_in);

    let owner = raw(&url).await?;
    owner.batch_execute("alter system set fsync = off").await.or_fail()?;
    owner.batch_execute("select pg_reload_conf()").await.or_fail()?;
    eventually("the setting counts", || async {
        Ok(connect(&url).await?.capabilities().durability == Durability::Server)
    })
    .await
}

async fn held_lock(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let mut client = raw(&url).await?;
    let transaction = client.transaction().await.or_fail()?;
    transaction.query("select * from tenure_meta for update", &[]).await.or_fail()?;
    let told = store.commit(put("a", "x")).await;
    let Err(Error::Unavailable { reason, .. }) = &told else {
        return Err(Failure::new(format!("{told:?}")));
    };
    ensure!(reason.contains("pg_stat_activity"), "{reason}");
    transaction.rollback().await.or_fail()?;
    store.commit(put("a", "x")).await?;
    Ok(())
}

/// The server answers, but not on the connection that reads.
async fn hangs(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let options = Options::new().read_connections(1).reply_timeout(Duration::from_secs(2));
    let store = PostgresStore::connect_with(&url, options).await?.into_store();
    store.get(&key("a")).await?;
    let sessions = "select array_agg(pid) from pg_stat_activity \
                    where datname = current_database() and application_name = 'tenure read'";
    let sessions: Vec<i32> = raw(&url).await?.query_one(sessions, &[]).await.or_fail()?.get(0);
    server.0.pause_sessions(&sessions).or_fail()?;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(store.get(&key("a")).await);
    }
    server.0.resume_sessions(&sessions).or_fail()?;
    ensure!(answers.iter().any(Result::is_ok), "{answers:?}");
    Ok(())
}

/// A process of ours, ended with the test.
struct Killed(Child);

impl Killed {
    /// A process that writes again and again, each time with a look at so many large objects.
    fn hammer(url: &str, large: &str) -> std::io::Result<Self> {
        let program = std::env::current_exe()?;
        Command::new(program).args([HAMMER, url, large]).stdout(Stdio::null()).spawn().map(Self)
    }

    fn signal(&self, signal: &str) -> std::io::Result<()> {
        let pid = self.0.id().to_string();
        Command::new("kill").args([&format!("-{signal}"), &pid]).status().map(|_| ())
    }

    /// Stops it at an instant at which this is so of the session that commits.
    async fn stop_while(&self, client: &Client, is_so: &str) -> Outcome {
        let held = format!(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name = 'tenure commit' and {is_so}"
        );
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.signal("STOP")?;
            // Long enough for a statement in flight to end, short enough not to be cut off.
            tokio::time::sleep(Duration::from_millis(100)).await;
            if client.query_one(&held, &[]).await.or_fail()?.get::<_, i64>(0) > 0 {
                return Ok(());
            }
            self.signal("CONT")?;
        }
        Err(Failure::new(format!("the other process was never stopped while {is_so}")))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Commits without a pause until killed. A commit with a check takes two exchanges, so that there is an
/// instant at which it holds the lock and has the next word.
pub(crate) fn hammer(url: &str, large: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    let large: usize = large.parse().unwrap_or(0);
    runtime.block_on(async {
        let Ok(store) = connect(url).await else { return };
        for n in 0..large {
            let _ = store.commit(put(format!("large{n}"), &"x".repeat(1024 * 1024))).await;
        }
        for n in 0u64.. {
            let commit = Commit::from(put("hammered", &n.to_string()));
            let commit = (0..large)
                .fold(commit, |commit, n| commit.check(key(format!("large{n}")), Expect::Exists));
            // Errors are part of its life: it is frozen now and then.
            let _ = store.commit(commit.check(key("hammered"), Expect::Any)).await;
        }
    });
}
