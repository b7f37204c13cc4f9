//! SQL of the caller's in a commit: what is SQLite's own about it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rusqlite::Connection;
use tenure::clock::ManualClock;
use tenure::store::{Commit, Put, Query, Store};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_sqlite::{Options, SqlError, SqliteStore, sql};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("sql_cannot_leave_its_commit", stays_inside);
    trials.test("sql_may_do_as_it_likes_with_its_own_tables", own_tables);
    trials.test("a_refusal_that_sql_ignores_changes_nothing", ignored_refusal);
    trials.test("endless_sql_is_stopped_and_others_go_on", endless);
    trials.test("slow_sql_is_rolled_back", slow);
    trials.test("sql_that_loses_the_transaction_harms_only_itself", lost_transaction);
    trials.test("a_deferred_constraint_concerns_only_its_commit", deferred);
}

fn key(id: impl Into<String>) -> Key {
    Key::new("k", id)
}

fn fail(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

/// Somebody's connection to the same file, with a table of one row.
fn own(path: &Path) -> Result<Connection, Failure> {
    let conn = Connection::open(path).map_err(fail)?;
    let sql = "CREATE TABLE own (n INTEGER PRIMARY KEY); INSERT INTO own VALUES (0)";
    conn.execute_batch(sql).map_err(fail)?;
    Ok(conn)
}

fn rows(conn: &Connection, table: &str) -> Result<u64, Failure> {
    let sql = format!("SELECT count(*) FROM {table}");
    conn.query_row(&sql, [], |row| row.get(0)).map_err(fail)
}

fn batch(text: &'static str) -> tenure::store::Attachment {
    sql(move |conn| Ok(conn.execute_batch(text)?))
}

async fn stays_inside() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let store = SqliteStore::open(&path)?.into_store();
    let own = own(&path)?;
    for (text, said) in [
        ("COMMIT", "commit or roll back"),
        ("ROLLBACK", "commit or roll back"),
        ("BEGIN", "commit or roll back"),
        ("ROLLBACK TO Tenure_Commit", "the store's"),
        ("UPDATE Objects SET token = 1", "may not write to objects"),
        ("DELETE FROM tenure_history", "may not write to tenure_history"),
        ("UPDATE tenure_meta SET revision = 0", "may not write to tenure_meta"),
        ("DROP TABLE objects", "objects"),
        ("ALTER TABLE tenure_meta ADD COLUMN x", "tenure_meta"),
        ("CREATE INDEX mine ON objects (payload)", "objects"),
        ("CREATE TRIGGER mine AFTER INSERT ON objects BEGIN SELECT 1; END", "objects"),
        ("CREATE TEMP TABLE objects (id)", "temporary"),
        ("CREATE TEMP VIEW objects AS SELECT 1", "temporary"),
        ("ATTACH ':memory:' AS other", "attach"),
        ("PRAGMA synchronous = OFF", "PRAGMA synchronous"),
        ("PRAGMA busy_timeout = 60000", "PRAGMA busy_timeout"),
    ] {
        let text_first = format!("INSERT INTO own VALUES (1); {text}");
        let attached = sql(move |conn| Ok(conn.execute_batch(&text_first)?));
        let commit = Commit::from(Put::new(key("one"), "v")).attach(attached);
        let Err(error) = store.commit(commit).await else {
            return Err(format!("this went through: {text}").into());
        };
        ensure!(matches!(error, Error::Invalid { .. }), "{text}: {error}");
        ensure!(error.to_string().contains(said), "{text}: {error}");
        ensure_eq!(rows(&own, "own")?, 1, "rows after {text}");
        ensure_eq!(store.get(&key("one")).await?, None, "after {text}");
    }
    // Writes that a trigger of the caller's would do are the caller's too.
    own.execute_batch("CREATE TRIGGER sly AFTER INSERT ON own BEGIN DELETE FROM objects; END")
        .map_err(fail)?;
    let commit =
        Commit::from(Put::new(key("one"), "v")).attach(batch("INSERT INTO own VALUES (1)"));
    let error = store.commit(commit).await.err().ok_or("a trigger deleted objects")?;
    ensure!(error.to_string().contains("may not write to objects"), "{error}");
    let done = store.commit(Put::new(key("one"), "v")).await?;
    ensure_eq!(done.revision, Some(1), "the first revision that was drawn");
    Ok(())
}

async fn own_tables() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let store = SqliteStore::open(&path)?.into_store();
    let commit = Commit::from(Put::new(key("one"), "v")).attach(sql(|conn| {
        conn.execute_batch(
            "CREATE TABLE mine (a INTEGER PRIMARY KEY, b); CREATE INDEX mine_b ON mine (b);
             SAVEPOINT inner_one; INSERT INTO mine VALUES (1, 'gone'); ROLLBACK TO inner_one;
             SAVEPOINT left_open; INSERT INTO mine VALUES (2, 'kept');
             ALTER TABLE mine ADD COLUMN c; PRAGMA user_version = 7",
        )?;
        // What the commit writes is there to be read.
        let payload: Vec<u8> =
            conn.query_row("SELECT payload FROM objects WHERE id = 'one'", [], |row| row.get(0))?;
        conn.execute("UPDATE mine SET c = ?1", [payload])?;
        let columns: u32 =
            conn.query_row("SELECT count(*) FROM pragma_table_info('mine')", [], |r| r.get(0))?;
        match columns {
            3 => Ok(()),
            n => Err(Error::invalid("columns", n.to_string()).into()),
        }
    }));
    store.commit(commit).await?;
    // The store's own statements go on in spite of the changed schema.
    store.commit(Put::new(key("two"), "v")).await?;
    let conn = Connection::open(&path).map_err(fail)?;
    let row: (u32, String, Vec<u8>) = conn
        .query_row("SELECT a, b, c FROM mine", [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))
        .map_err(fail)?;
    ensure_eq!(row, (2, "kept".into(), b"v".to_vec()));
    Ok(())
}

async fn ignored_refusal() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let store = SqliteStore::open(&path)?.into_store();
    let own = own(&path)?;
    let commit = Commit::from(Put::new(key("one"), "v")).attach(sql(|conn| {
        for text in ["COMMIT", "ROLLBACK", "DELETE FROM objects", "INSERT INTO own VALUES (1)"] {
            let _ = conn.execute_batch(text);
        }
        Ok(())
    }));
    store.commit(commit).await?;
    ensure!(store.get(&key("one")).await?.is_some());
    ensure_eq!(rows(&own, "own")?, 2);
    Ok(())
}

/// Every third of many commits carries this; the others, with SQL and without, must go on.
async fn harmful_among_many(
    store: &Store,
    own: &Connection,
    harmful: impl Fn() -> tenure::store::Attachment,
) -> Result<Vec<Error>, Failure> {
    let before = rows(own, "own")?;
    let commits = (0..30u32).map(|n| {
        let commit = Commit::from(Put::new(key(n.to_string()), "v"));
        store.commit(match n % 3 {
            0 => commit.attach(harmful()),
            1 => commit.attach(sql(move |conn| {
                conn.execute("INSERT INTO own VALUES (?1)", [100 + n])?;
                Ok(())
            })),
            _ => commit,
        })
    });
    let mut errors = Vec::new();
    for (n, outcome) in join_all(commits).await.into_iter().enumerate() {
        match (n % 3, outcome) {
            (0, Err(error)) => errors.push(error),
            (1 | 2, Ok(_)) => {}
            (_, other) => return Err(format!("commit {n}: {other:?}").into()),
        }
    }
    ensure_eq!(store.list_all(&Query::new("k")).await?.len(), 20, "objects");
    ensure_eq!(rows(own, "own")?, before + 10, "rows");
    Ok(errors)
}

async fn endless() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let limit = Duration::from_millis(20);
    let store = Options::new(&path).sql_timeout(limit).open()?.into_store();
    let own = own(&path)?;
    let text = "INSERT INTO own WITH RECURSIVE x (n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM x)
                SELECT n FROM x";
    for error in harmful_among_many(&store, &own, || batch(text)).await? {
        ensure!(matches!(error, Error::Unavailable { .. }), "{error}");
        ensure!(error.to_string().contains("sql_timeout"), "{error}");
    }
    Ok(())
}

async fn slow() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let clock = ManualClock::new();
    let store = Options::new(&path).clock(Arc::new(clock.clone())).open()?.into_store();
    let own = own(&path)?;
    for (taken, applies) in [(Duration::from_secs(4), true), (Duration::from_secs(6), false)] {
        let (clock, id) = (clock.clone(), taken.as_secs().to_string());
        let commit = Commit::from(Put::new(key(&id), "v")).attach(sql(move |conn| {
            conn.execute("INSERT INTO own VALUES (?1)", [taken.as_secs()])?;
            clock.advance(taken);
            Ok(())
        }));
        match store.commit(commit).await {
            Ok(_) => ensure!(applies, "{taken:?} were allowed"),
            Err(error) => {
                ensure!(!applies, "{taken:?}: {error}");
                ensure!(error.to_string().contains("more than 5s"), "{error}");
            }
        }
        ensure_eq!(store.get(&key(&id)).await?.is_some(), applies);
        ensure_eq!(rows(&own, "own")?, 2);
    }
    Ok(())
}

async fn lost_transaction() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let store = SqliteStore::open(&path)?.into_store();
    let own = own(&path)?;
    let errors = harmful_among_many(&store, &own, || {
        sql(|conn| -> Result<(), SqlError> {
            let _ = conn.execute("INSERT OR ROLLBACK INTO own VALUES (0)", []);
            // Without a transaction this would commit by itself.
            let _ = conn.execute("INSERT INTO own VALUES (7)", []);
            Ok(())
        })
    });
    for error in errors.await? {
        ensure!(error.to_string().contains("rolled the transaction back"), "{error}");
    }
    Ok(())
}

async fn deferred() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let store = SqliteStore::open(&path)?.into_store();
    let own = own(&path)?;
    own.execute_batch("CREATE TABLE child (n REFERENCES own (n) DEFERRABLE INITIALLY DEFERRED)")
        .map_err(fail)?;
    for error in harmful_among_many(&store, &own, || batch("INSERT INTO child VALUES (5)")).await? {
        ensure!(matches!(error, Error::Invalid { .. }), "{error}");
        ensure!(error.to_string().contains("deferred constraint"), "{error}");
    }
    ensure_eq!(rows(&own, "child")?, 0);
    Ok(())
}
