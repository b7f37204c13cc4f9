//! Full disks, damaged files, and other processes in the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use rusqlite::Connection;
use tenure::clock::Clock;
use tenure::store::{Commit, Event, Expect, Put, Query, Touch, WatchRequest};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_sqlite::{Options, SqliteStore};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("a_full_store_says_so_and_loses_nothing", full);
    trials.test("a_damaged_file_says_so", damaged);
    trials.test("a_file_that_is_no_database_says_so", no_database);
    trials.test("a_damaged_row_concerns_only_itself", damaged_row);
    trials.test("a_damaged_row_keeps_nobody_from_renewing_or_expiring", damaged_and_mortal);
    trials.test("a_stuck_process_makes_writers_wait_then_unavailable", stuck);
    trials.test("a_missing_folder_says_so", missing_folder);
    trials.test("conflicts_in_a_group_concern_only_themselves", group);
    trials.test("a_closed_store_refuses", closed);
    trials.test("history_is_kept_within_its_bounds", history);
    trials.test("history_is_cut_as_fast_as_it_grows", burst);
    trials.test("damaged_history_says_so_and_objects_stay", damaged_history);
    trials.test("large_objects_that_expire_together_go_in_pieces", large_and_mortal);
    trials.test("large_objects_that_are_deleted_together_go_in_pieces", large_and_deleted);
}

async fn full() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("small.db");
    let store = Options::new(&path).max_bytes(1024 * 1024).open()?.into_store();
    let mut written = 0;
    let error = loop {
        let put = Put::new(Key::new("big", written.to_string()), vec![7u8; 50_000]);
        match store.commit(put.expect(Expect::Absent)).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        ensure!(written < 100, "a store of 1 MiB took 5 MB");
    };
    ensure!(matches!(error, Error::Full { .. }), "{error}");
    ensure!(error.to_string().contains("free space"), "{error}");
    ensure_eq!(store.list_all(&Query::new("big")).await?.len(), written, "acknowledged objects");
    store.close().await;
    // With room again, it goes on.
    let store = SqliteStore::open(&path)?.into_store();
    store.commit(Put::new(Key::new("big", written.to_string()), vec![7u8; 50_000])).await?;
    ensure_eq!(store.list_all(&Query::new("big")).await?.len(), written + 1);
    Ok(())
}

async fn damaged() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("damaged.db");
    let store = SqliteStore::open(&path)?.into_store();
    for n in 0..200 {
        store.commit(Put::new(Key::new("k", n.to_string()), vec![1u8; 500])).await?;
    }
    store.close().await;
    drop(store);
    // Everything behind the first page becomes noise.
    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(|e| e.to_string())?;
    drop(conn);
    let mut bytes = std::fs::read(&path)?;
    bytes[4096..].fill(0xA5);
    std::fs::write(&path, bytes)?;
    let outcome = match SqliteStore::open(&path) {
        Ok(store) => store.into_store().list_all(&Query::new("k")).await.map(drop),
        Err(error) => Err(error),
    };
    let Err(error) = outcome else { return Err("noise was read as data".into()) };
    ensure!(matches!(error, Error::Corrupt { .. }), "{error}");
    ensure!(error.to_string().contains("backup"), "{error}");
    Ok(())
}

async fn no_database() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("letter.txt");
    std::fs::write(&path, "Dear reader, this is not a database at all, and it is long enough.")?;
    let Err(error) = SqliteStore::open(&path) else { return Err("a letter was opened".into()) };
    ensure!(matches!(error, Error::Corrupt { .. }), "{error}");
    ensure!(std::fs::read_to_string(&path)?.starts_with("Dear reader"), "the letter was changed");
    Ok(())
}

async fn damaged_row() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("row.db");
    let store = SqliteStore::open(&path)?.into_store();
    for id in ["bad", "good"] {
        store.commit(Put::new(Key::new("k", id), id)).await?;
    }
    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    let spoil = "UPDATE objects SET labels = 'nonsense', revision = revision + 1 WHERE id = 'bad'";
    conn.execute(spoil, []).map_err(|error| error.to_string())?;
    let bad = Key::new("k", "bad");
    for error in [store.get(&bad).await.err(), store.commit(Put::new(bad, "x")).await.err()] {
        let error = error.ok_or("a damaged row was read")?;
        ensure!(matches!(error, Error::Corrupt { .. }), "{error}");
        ensure!(error.to_string().contains("k/bad"), "{error}");
    }
    store.commit(Put::new(Key::new("k", "good"), "still writable")).await?;
    ensure!(store.get(&Key::new("k", "good")).await?.is_some());
    Ok(())
}

async fn damaged_and_mortal() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("row.db");
    let store = SqliteStore::open(&path)?.into_store();
    let (brief, life) = (Duration::from_millis(300), Duration::from_secs(60));
    let mortal = |id: &str, ttl| Put::new(Key::new("k", id), "x").ttl(ttl);
    let bad = store.commit(mortal("bad", life)).await?.revision.unwrap_or(0);
    store.commit(mortal("worse", brief)).await?;
    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    let spoil = "UPDATE objects SET labels = 'nonsense', revision = revision + 1";
    conn.execute(spoil, []).map_err(|error| error.to_string())?;
    let good = store.commit(mortal("good", life)).await?.revision.unwrap_or(0);
    let touch = |id: &str, revision| Touch { key: Key::new("k", id), revision, ttl: life };
    for n in 0..50 {
        let touches = store.touch(vec![touch("bad", bad), touch("good", good)]);
        let other = store.commit(Put::new(Key::new("other", n.to_string()), "x"));
        let (touched, other) = futures::future::join(touches, other).await;
        let touched = touched?;
        ensure!(matches!(touched[0], Err(Error::Corrupt { .. })), "{touched:?}");
        ensure!(touched[1].is_ok() && other.is_ok(), "{touched:?} {other:?}");
    }
    // One that has expired and cannot be read stays; the others' ends are told all the same.
    let mut watch = store.watch(&WatchRequest::kind("k")).await?;
    store.commit(mortal("last", brief)).await?;
    for told in ["its creation", "its end"] {
        let batch = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
        batch.map_err(|_| format!("nobody tells {told}"))?.ok_or("the watch ended")??;
    }
    Ok(())
}

async fn stuck() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("stuck.db");
    let options = Options::new(&path).busy_timeout(Duration::from_millis(200));
    let store = options.open()?.into_store();
    let other = Connection::open(&path).map_err(|error| error.to_string())?;
    other.execute_batch("BEGIN IMMEDIATE").map_err(|error| error.to_string())?;
    let key = Key::new("k", "1");
    let Err(error) = store.commit(Put::new(key.clone(), "x")).await else {
        return Err("two writers at once".into());
    };
    ensure!(matches!(error, Error::Unavailable { .. }), "{error}");
    ensure!(error.to_string().contains("write lock"), "{error}");
    ensure_eq!(store.get(&key).await?, None, "readers do not wait");
    other.execute_batch("ROLLBACK").map_err(|error| error.to_string())?;
    store.commit(Put::new(key, "x")).await?;
    Ok(())
}

async fn missing_folder() -> Result<(), Failure> {
    let Err(error) = SqliteStore::open("/nonexistent/folder/x.db") else {
        return Err("a store in no folder".into());
    };
    ensure!(error.to_string().contains("does the folder exist"), "{error}");
    Ok(())
}

async fn group() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("group.db"))?.into_store();
    let key = |n: usize| Key::new("k", n.to_string());
    store.commit(Put::new(key(0), "there")).await?;
    // All of these wait at once, so they share transactions; every third must fail, alone.
    let commits = (0..600).map(|n| {
        let key = if n % 3 == 0 { key(0) } else { key(n) };
        store.commit(Put::new(key, "x").expect(Expect::Absent))
    });
    let outcomes = futures::future::join_all(commits).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match (n % 3, outcome) {
            (0, Err(Error::AlreadyExists { .. })) => {}
            (1 | 2, Ok(committed)) => ensure!(committed.revision.is_some()),
            (_, other) => return Err(format!("commit {n}: {other:?}").into()),
        }
    }
    ensure_eq!(store.list_all(&Query::new("k")).await?.len(), 401);
    Ok(())
}

async fn closed() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("closed.db"))?.into_store();
    store.commit(Put::new(Key::new("k", "1"), "x")).await?;
    store.close().await;
    let Err(error) = store.commit(Put::new(Key::new("k", "2"), "x")).await else {
        return Err("a closed store took a commit".into());
    };
    ensure!(matches!(error, Error::Unavailable { .. }), "{error}");
    Ok(())
}

async fn history() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("history.db");
    let clock = tenure::clock::ManualClock::new();
    let store = Options::new(&path)
        .clock(std::sync::Arc::new(clock.clone()))
        .history(Duration::from_secs(60), 1_000)
        .open()?
        .into_store();
    let key = Key::new("k", "1");
    for n in 0..3_000 {
        store.commit(Put::new(key.clone(), n.to_string())).await?;
        if n % 500 == 0 {
            clock.advance(Duration::from_secs(6));
        }
    }
    let count = || -> Result<u32, Failure> {
        let conn = Connection::open(&path).map_err(|error| error.to_string())?;
        let sql = "SELECT count(*) FROM tenure_history";
        Ok(conn.query_row(sql, [], |row| row.get(0)).map_err(|error| error.to_string())?)
    };
    ensure!(count()? <= 2_000, "{} events for a bound of 1,000", count()?);
    // The rest goes with time. The commits wake the writer, which then looks at the clock.
    for n in 0..4 {
        clock.advance(Duration::from_secs(61));
        store.commit(Put::new(key.clone(), format!("late {n}"))).await?;
    }
    ensure!(count()? <= 5, "{} events after their time", count()?);
    Ok(())
}

/// Commits come much faster than one look at history removes them.
async fn burst() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("burst.db");
    let clock = tenure::clock::ManualClock::new();
    let store = Options::new(&path)
        .clock(std::sync::Arc::new(clock.clone()))
        .history(Duration::from_secs(600), 1_000)
        .open()?
        .into_store();
    for round in 0..20 {
        let put = |n: u32| Put::new(Key::new("k", n.to_string()), format!("{round}"));
        let commits = (0..1_000).map(|n| store.commit(put(n)));
        futures::future::try_join_all(commits).await?;
    }
    clock.advance(Duration::from_secs(6));
    // Before a commit is answered, the writer has tidied up behind the one before it.
    for n in 0..10 {
        store.commit(Put::new(Key::new("k", "last"), n.to_string())).await?;
    }
    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    let sql = "SELECT max(revision) - min(revision) FROM tenure_history";
    let kept: u64 = conn.query_row(sql, [], |row| row.get(0)).map_err(|e| e.to_string())?;
    // What one transaction did goes as a whole, so up to a group more may stay.
    ensure!(kept <= 1_000 + 1_024, "{kept} revisions are kept for a bound of 1,000");
    Ok(())
}

async fn damaged_history() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("damaged.db");
    let store = SqliteStore::open(&path)?.into_store();
    let key = Key::new("k", "1");
    store.commit(Put::new(key.clone(), "x")).await?;
    store.close().await;
    drop(store);
    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    conn.execute("UPDATE tenure_history SET body = substr(body, 1, length(body) - 3)", [])
        .map_err(|error| error.to_string())?;
    let store = SqliteStore::open(&path)?.into_store();
    let mut watch = store.watch(&WatchRequest::kind("k").after(0)).await?;
    let told = watch.next().await.ok_or("the watch ended without a word")?;
    let Err(error @ Error::Corrupt { .. }) = told else { return Err(format!("{told:?}").into()) };
    ensure!(error.to_string().contains("history"), "{error}");
    // What is stored is not concerned, nor is whoever watches from here on.
    store.commit(Put::new(key.clone(), "y").expect(Expect::Version(1))).await?;
    let mut watch = store.watch(&WatchRequest::kind("k").after(1)).await?;
    ensure_eq!(watch.next().await.ok_or("the watch ended")??.revision, 2);
    Ok(())
}

async fn large_and_mortal() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("large.db");
    let clock = tenure::clock::ManualClock::new();
    let options = Options::new(&path).clock(std::sync::Arc::new(clock.clone()));
    let store = options.open()?.into_store();
    for n in 0..24 {
        let put = Put::new(Key::new("k", n.to_string()), vec![n; 1024 * 1024]);
        store.commit(put.ttl(Duration::from_secs(1))).await?;
    }
    clock.advance(Duration::from_secs(2));
    let mut watch = store.watch(&WatchRequest::kind("k").after(24)).await?;
    // A commit wakes the writer, which then goes on until nothing is left.
    store.commit(Put::new(Key::new("other", "1"), "x")).await?;
    let all_gone = async {
        let mut gone = 0;
        while gone < 24 {
            gone += watch.next().await.ok_or("the watch ended")??.events.len();
        }
        Ok::<_, Failure>(())
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), all_gone).await;
    waited.map_err(|_| "some of them stay")??;
    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    let sql = "SELECT max(length(body)) FROM tenure_history";
    let largest: u64 =
        conn.query_row(sql, [], |row| row.get(0)).map_err(|error| error.to_string())?;
    ensure!(largest < 6 * 1024 * 1024, "{largest} bytes in one row");
    Ok(())
}

/// A clock that no two readers read alike, so that history tells transactions apart.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall_ms(&self) -> i64 {
        0
    }

    fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A delete is a small request, whatever it is that goes, and is told with what went.
async fn large_and_deleted() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("large.db");
    let store = Options::new(&path).clock(Arc::new(Ticking::default())).open()?.into_store();
    let keys: Vec<_> = (0..48).map(|n| Key::new("k", n.to_string())).collect();
    for key in &keys {
        store.commit(Put::new(key.clone(), vec![7; 1024 * 1024])).await?;
    }
    let gone = futures::future::try_join_all(keys.iter().map(|key| store.delete(key))).await?;
    ensure!(gone.iter().all(|gone| *gone), "{gone:?}");
    let many = (0..20).map(|n| Key::new("m", n.to_string()));
    let mut all = Commit::new();
    for key in many {
        store.commit(Put::new(key.clone(), vec![7; 1024 * 1024])).await?;
        all = all.delete(key, Expect::Exists);
    }
    let last = store.commit(all).await?.revision.unwrap_or(0);

    let conn = Connection::open(&path).map_err(|error| error.to_string())?;
    let sql = "SELECT max(bytes) FROM (SELECT sum(length(body)) AS bytes FROM tenure_history
                                       GROUP BY recorded_ms)";
    let most: u64 = conn.query_row(sql, [], |row| row.get(0)).map_err(|error| error.to_string())?;
    ensure!(most < 12 * 1024 * 1024, "{most} bytes in one transaction");
    let length = "SELECT length(body) FROM tenure_history WHERE revision = ?1";
    let one: u64 =
        conn.query_row(length, [last], |row| row.get(0)).map_err(|error| error.to_string())?;
    ensure!(one < 5 * 1024 * 1024, "{one} bytes for one commit");
    // From history as it was told: all of the keys, and some of what they were.
    let mut watch = store.watch(&WatchRequest::kind("m").after(last - 1)).await?;
    let batch = watch.next().await.ok_or("the watch ended")??;
    let told = batch.events.iter().filter(|e| matches!(e, Event::Delete { last: Some(_), .. }));
    ensure_eq!((batch.events.len(), told.count()), (20, 4));
    Ok(())
}
