//! What the writer remembers of rows must never outlive the truth: others write to the file, too.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tenure::clock::ManualClock;
use tenure::store::{Commit, Expect, Put, Store, Touch};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_sqlite::{Options, SqliteStore};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("what_another_process_wrote_is_seen_at_once", another_process);
    trials.test("a_life_that_another_process_prolonged_is_seen", prolonged);
    trials.test("a_commit_undone_by_its_sql_is_forgotten", undone);
    trials.test("rows_of_any_size_and_number_are_as_written", sizes);
    trials.test("triggers_of_the_owner_fire", triggers);
}

fn sql(error: rusqlite::Error) -> Failure {
    Failure::new(error.to_string())
}

fn key(id: &str) -> Key {
    Key::new("k", id)
}

/// Two handles stand for two processes: each has a writer of its own.
fn two(folder: &tempfile::TempDir) -> tenure::Result<(Store, Store)> {
    let path = folder.path().join("two.db");
    Ok((SqliteStore::open(&path)?.into_store(), SqliteStore::open(&path)?.into_store()))
}

async fn another_process() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (one, other) = two(&folder)?;
    for n in 0..50u32 {
        // By turns, so that each knows what the other one is about to change.
        let (writer, late) = if n % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let seen =
            late.get(&key("row")).await?.map_or(Expect::Absent, |o| Expect::Version(o.version));
        writer.commit(Put::new(key("row"), n.to_string()).expect(seen)).await?;
        let clobber = late.commit(Put::new(key("row"), "late").expect(seen)).await;
        ensure!(clobber.is_err(), "round {n}: a late writer got through");
        if n % 5 == 4 {
            writer.commit(Commit::new().delete(key("row"), Expect::Exists)).await?;
            let gone = late.commit(Commit::new().delete(key("row"), Expect::Exists)).await;
            ensure!(matches!(gone, Err(Error::NotFound { .. })), "round {n}: {gone:?}");
        }
    }
    Ok(())
}

async fn prolonged() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let clock = ManualClock::new();
    let open = || {
        let options = Options::new(folder.path().join("two.db"));
        Ok::<_, Error>(options.clock(Arc::new(clock.clone())).open()?.into_store())
    };
    let (one, other) = (open()?, open()?);
    let put = Put::new(key("mortal"), "x").ttl(Duration::from_millis(300));
    let revision = one.commit(put).await?.revision.ok_or("no revision")?;
    let touch = Touch { key: key("mortal"), revision, ttl: Duration::from_secs(60) };
    other.touch(vec![touch]).await?.pop().ok_or("no answer")??;
    // A touch draws no revision, so the counter alone would not have told.
    clock.advance(Duration::from_millis(400));
    let taken = one.commit(Put::new(key("mortal"), "y").expect(Expect::Absent)).await;
    ensure!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
    Ok(())
}

async fn undone() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("undone.db"))?.into_store();
    let refuse = || tenure_sqlite::sql(|_| Err(Error::invalid("order", "nothing is left").into()));
    let put = Put::new(key("row"), "never").expect(Expect::Absent);
    let refused = store.commit(Commit::from(put).attach(refuse())).await;
    ensure!(refused.is_err(), "the commit stands");
    let gone = store.commit(Commit::new().delete(key("row"), Expect::Exists)).await;
    ensure!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
    store.commit(Put::new(key("row"), "first").expect(Expect::Absent)).await?;
    let delete = Commit::new().delete(key("row"), Expect::Exists).attach(refuse());
    ensure!(store.commit(delete).await.is_err(), "the delete stands");
    store.commit(Put::new(key("row"), "second").expect(Expect::Version(1))).await?;
    Ok(())
}

async fn sizes() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("sizes.db"))?.into_store();
    // More than what is remembered, small ones and ones too large to be, by turns.
    let body = |n: usize, round: usize| match (n + round) % 3 {
        0 => vec![n as u8; 40_000],
        1 => vec![n as u8; 12_000],
        _ => vec![n as u8; 10],
    };
    for round in 0..2usize {
        for chunk in (0..900).collect::<Vec<usize>>().chunks(30) {
            let mut commit = Commit::new();
            for &n in chunk {
                let expect =
                    if round == 0 { Expect::Absent } else { Expect::Version(round as u64) };
                commit = commit.put(Put::new(key(&n.to_string()), body(n, round)).expect(expect));
            }
            store.commit(commit).await?;
        }
    }
    for n in (0..900usize).step_by(7) {
        let object = store.get(&key(&n.to_string())).await?.ok_or("gone")?;
        ensure_eq!(object.version, 2);
        ensure_eq!(object.payload, body(n, 1));
    }
    Ok(())
}

async fn triggers() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("triggers.db");
    let store = SqliteStore::open(&path)?.into_store();
    store.commit(Put::new(key("before"), "x")).await?;
    let own = Connection::open(&path).map_err(sql)?;
    own.execute_batch(
        "CREATE TABLE seen (what TEXT);
         CREATE TRIGGER mine AFTER INSERT ON objects BEGIN INSERT INTO seen VALUES (NEW.id); END;
         CREATE TABLE own (n INTEGER);
         CREATE TRIGGER own_too AFTER INSERT ON own BEGIN INSERT INTO seen VALUES ('own'); END;",
    )
    .map_err(sql)?;
    store.commit(Put::new(key("after"), "x")).await?;
    own.execute_batch("DROP TRIGGER mine").map_err(sql)?;
    let attached = tenure_sqlite::sql(|conn| {
        conn.execute("INSERT INTO own VALUES (1)", [])?;
        Ok(())
    });
    store.commit(Commit::from(Put::new(key("third"), "x")).attach(attached)).await?;
    store.commit(Put::new(key("fourth"), "x")).await?;
    let sql_text = "SELECT group_concat(what) FROM seen";
    let seen: String = own.query_row(sql_text, [], |row| row.get(0)).map_err(sql)?;
    ensure_eq!(seen, "after,own");
    Ok(())
}
