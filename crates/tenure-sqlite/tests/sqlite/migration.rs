//! Taking over a database made with the documents' older table, and turning away programs too old.

use std::path::Path;
use std::sync::{Arc, Barrier};

use rusqlite::Connection;
use tenure::store::{Expect, Put, Query, Selector, WatchRequest, WriteCondition};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_sqlite::SqliteStore;

use crate::open;

pub(crate) fn add(trials: &mut Trials) {
    trials.test("takes_over_the_older_table_with_its_rows", takes_over);
    trials.test("an_older_table_without_labels_keeps_its_owners_defaults", without_labels);
    trials.test("many_starting_at_once_migrate_once", many_at_once);
    trials.test("an_older_program_cannot_write_past_us", older_program);
    trials.test("a_program_below_the_writer_level_is_refused", writer_level);
    trials.test("a_file_of_the_first_version_is_taken_over", first_version);
    trials.test("a_foreign_table_is_refused_untouched", foreign_table);
    trials.test("opening_raises_the_writer_level", raises_the_level);
    trials.test("old_labels_that_are_no_strings_are_read", odd_labels);
    trials.test("malformed_old_labels_stop_the_migration_untouched", bad_labels);
}

/// The table as it was before versions, with a column and an index of its owner's.
fn older_database(path: &Path, rows: usize) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.execute_batch(
        "CREATE TABLE objects (
           object_type TEXT NOT NULL, id TEXT NOT NULL PRIMARY KEY, name TEXT, scope TEXT,
           payload BLOB NOT NULL, labels TEXT, created_at_ms INTEGER NOT NULL,
           updated_at_ms INTEGER NOT NULL);
         CREATE UNIQUE INDEX objects_name ON objects (object_type, name) WHERE name IS NOT NULL;
         CREATE INDEX objects_scope ON objects (scope);",
    )?;
    for n in 0..rows {
        conn.execute(
            "INSERT INTO objects VALUES ('sandbox', ?1, ?2, 'team', ?3, ?4, ?5, ?5)",
            (
                format!("id-{n:04}"),
                format!("box-{n}"),
                vec![0u8, 255, n as u8],
                (n % 2 == 0).then_some(r#"{"tier":"gold"}"#),
                1_000 + n as i64,
            ),
        )?;
    }
    Ok(conn)
}

fn sql(error: rusqlite::Error) -> Failure {
    Failure::new(error.to_string())
}

async fn takes_over() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("old.db");
    drop(older_database(&path, 250).map_err(sql)?);
    let store = SqliteStore::open(&path)?.into_store();

    let all = store.list_all(&Query::new("sandbox")).await?;
    ensure_eq!(all.len(), 250);
    for (n, object) in all.iter().enumerate() {
        ensure_eq!(object.version, 1, "version of {}", object.key);
        ensure_eq!(object.payload.to_vec(), vec![0u8, 255, n as u8], "payload of {}", object.key);
        ensure_eq!(object.created_at_ms, 1_000 + n as i64);
        ensure_eq!(object.labels.len(), usize::from(n % 2 == 0), "labels of {}", object.key);
        ensure_eq!(object.revision, n as u64 + 1, "each old row has a revision of its own");
    }
    let named = store.get_by_name("sandbox", "box-7").await?;
    ensure_eq!(named.map(|object| object.key.id), Some("id-0007".to_owned()));

    let key = Key::new("sandbox", "id-0007");
    let put = Put::new(key.clone(), "new").name("box-7");
    let written = store.put_if(put, WriteCondition::MatchResourceVersion(1)).await?;
    ensure_eq!((written.version, written.revision), (2, 251));
    // The same id in another kind was impossible before and is fine now.
    store.commit(Put::new(Key::new("provider", "id-0007"), "x").expect(Expect::Absent)).await?;
    // History begins where the old table ended.
    let early = store.watch(&WatchRequest::default().after(249)).await;
    ensure!(matches!(early, Err(tenure::Error::Compacted { oldest: 250, .. })), "{early:?}");
    store.close().await;

    let conn = Connection::open(&path).map_err(sql)?;
    let scope: String = conn
        .query_row("SELECT scope FROM objects WHERE id = 'id-0003'", [], |row| row.get(0))
        .map_err(sql)?;
    ensure_eq!(scope, "team", "the owner's own column");
    let sql_text = "SELECT count(*) FROM sqlite_master WHERE name = 'objects_scope'";
    let indexes: u32 = conn.query_row(sql_text, [], |row| row.get(0)).map_err(sql)?;
    ensure_eq!(indexes, 1, "the owner's own index");
    Ok(())
}

/// Labels came to the documents' table later than the rest; and an owner's column that fills itself goes on
/// doing so for what Tenure writes.
async fn without_labels() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("old.db");
    let conn = Connection::open(&path).map_err(sql)?;
    conn.execute_batch(
        "CREATE TABLE objects (
           object_type TEXT NOT NULL, id TEXT NOT NULL PRIMARY KEY, name TEXT,
           payload BLOB NOT NULL, created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL,
           region TEXT NOT NULL DEFAULT ('it''s ' || 'here'), seen INTEGER DEFAULT 7,
           state TEXT NOT NULL DEFAULT draft, stage TEXT DEFAULT \"new\", at TEXT DEFAULT CURRENT_DATE,
           never TEXT NOT NULL DEFAULT NULL,
           must TEXT NOT NULL);
         INSERT INTO objects VALUES
           ('box', 'old', NULL, 'x', 1, 1, 'there', 3, 'done', 'old', 'once', 'ever', 'be');",
    )
    .map_err(sql)?;
    drop(conn);
    let store = SqliteStore::open(&path)?.into_store();
    let old = store.get(&Key::new("box", "old")).await?.ok_or("the old row is gone")?;
    ensure_eq!((old.version, old.labels.len()), (1, 0));
    store.commit(Put::new(Key::new("box", "new"), "y").label("a", "b")).await?;
    store.close().await;
    let conn = Connection::open(&path).map_err(sql)?;
    let own = |id: &str| -> Result<(String, i64, Option<String>), Failure> {
        let text = "SELECT region, seen, must FROM objects WHERE id = ?1";
        conn.query_row(text, [id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(sql)
    };
    ensure_eq!(own("old")?, ("there".to_owned(), 3, Some("be".to_owned())));
    ensure_eq!(own("new")?, ("it's here".to_owned(), 7, None));
    let text =
        "SELECT state || ' ' || stage || ' ' || (at = date('now')) FROM objects WHERE id = 'new'";
    let words: String = conn.query_row(text, [], |row| row.get(0)).map_err(sql)?;
    ensure_eq!(words, "draft new 1");
    Ok(())
}

/// Again and again, since what went wrong here once went wrong in one of several hundred starts.
async fn many_at_once() -> Result<(), Failure> {
    for round in 0..40 {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("old.db");
        drop(older_database(&path, 50).map_err(sql)?);
        start_together(&path).await.map_err(|why| format!("round {round}: {why}"))?;
    }
    Ok(())
}

async fn start_together(path: &Path) -> Result<(), Failure> {
    let line = Arc::new(Barrier::new(8));
    let start = || {
        let (path, line) = (path.to_owned(), Arc::clone(&line));
        std::thread::spawn(move || {
            line.wait();
            SqliteStore::open(path)
        })
    };
    let threads: Vec<_> = (0..8).map(|_| start()).collect();
    let mut stores = Vec::new();
    for thread in threads {
        let opened = thread.join().map_err(|_| "opening panicked")?;
        stores.push(opened?.into_store());
    }
    for (n, store) in stores.iter().enumerate() {
        ensure_eq!(store.list_all(&Query::new("sandbox")).await?.len(), 50);
        let written = store.commit(Put::new(Key::new("after", n.to_string()), "x")).await?;
        ensure_eq!(written.revision, Some(51 + n as u64), "one counter for all");
    }
    Ok(())
}

async fn older_program() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shared.db");
    let old = older_database(&path, 1).map_err(sql)?;
    let store = SqliteStore::open(&path)?.into_store();
    let key = Key::new("sandbox", "id-0000");
    store.commit(Put::new(key.clone(), "ours").name("box-0").expect(Expect::Version(1))).await?;

    let upsert =
        "INSERT INTO objects (object_type, id, name, payload, created_at_ms, updated_at_ms)
                  VALUES ('sandbox', 'fresh', 'box-0', 'late', 1, 1)
                  ON CONFLICT (object_type, name) WHERE name IS NOT NULL
                  DO UPDATE SET payload = excluded.payload, updated_at_ms = excluded.updated_at_ms";
    for (statement, says) in [
        (upsert, "must be upgraded"),
        ("UPDATE objects SET payload = 'late' WHERE id = 'id-0000'", "must be upgraded"),
        ("DELETE FROM objects WHERE id = 'id-0000'", "tenure_requires_versioned_writer"),
    ] {
        let refused = old.execute(statement, []).map_err(|error| error.to_string());
        let Err(reason) = refused else { return Err(format!("not refused: {statement}").into()) };
        ensure!(reason.contains(says), "{statement}: {reason}");
    }
    let kept = store.get(&key).await?;
    ensure_eq!(kept.map(|object| (object.payload, object.version)), Some(("ours".into(), 2)));
    Ok(())
}

async fn writer_level() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("newer.db");
    SqliteStore::open(&path)?.into_store().close().await;
    let conn = Connection::open(&path).map_err(sql)?;
    conn.execute("UPDATE tenure_meta SET min_writer = 99", []).map_err(sql)?;
    let refused = open(path.to_string_lossy().into_owned()).await.map_err(|e| e.to_string());
    let Err(reason) = refused else { return Err("an old program was let in".into()) };
    ensure!(reason.contains("level 99") && reason.contains("upgrade"), "{reason}");
    Ok(())
}

/// What an earlier program let in may no longer be safe beside this one.
async fn raises_the_level() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("raised.db");
    SqliteStore::open(&path)?.into_store().close().await;
    let conn = Connection::open(&path).map_err(sql)?;
    conn.execute("UPDATE tenure_meta SET min_writer = 0", []).map_err(sql)?;
    let running = SqliteStore::open(&path)?.into_store();
    let level = "SELECT min_writer FROM tenure_meta";
    let level: u32 = conn.query_row(level, [], |row| row.get(0)).map_err(sql)?;
    ensure_eq!(level, tenure::backend::WRITER_LEVEL);
    // One that is already running is stopped from writing as well.
    running.commit(Put::new(Key::new("k", "1"), "x")).await?;
    conn.execute("UPDATE tenure_meta SET min_writer = 99", []).map_err(sql)?;
    // And not only the first time.
    for _ in 0..3 {
        let late = running.commit(Put::new(Key::new("k", "1"), "y")).await;
        ensure!(matches!(late, Err(Error::Refused { .. })), "{late:?}");
    }
    Ok(())
}

async fn odd_labels() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("labels.db");
    let conn = older_database(&path, 3).map_err(sql)?;
    let odd = r#"{"n":7,"on":true,"none":null,"list":[1,"a"],"s":"x"}"#;
    conn.execute("UPDATE objects SET labels = ?1 WHERE id = 'id-0001'", [odd]).map_err(sql)?;
    conn.execute("UPDATE objects SET labels = ' null ' WHERE id = 'id-0002'", []).map_err(sql)?;
    let store = SqliteStore::open(&path)?.into_store();
    let all = store.list_all(&Query::new("sandbox")).await?;
    ensure_eq!(all.len(), 3);
    let read: Vec<_> = all[1].labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let want = [("list", r#"[1,"a"]"#), ("n", "7"), ("none", "null"), ("on", "true"), ("s", "x")];
    ensure_eq!(read, want);
    ensure!(all[2].labels.is_empty());
    let seven = Query::new("sandbox").selector(Selector::equals("n", "7"));
    ensure_eq!(store.list_all(&seven).await?.len(), 1);
    let key = Key::new("sandbox", "id-0001");
    store.commit(Put::new(key, "new").expect(Expect::Version(1))).await?;
    Ok(())
}

async fn foreign_table() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("foreign.db");
    let conn = Connection::open(&path).map_err(sql)?;
    conn.execute_batch("CREATE TABLE objects (colour TEXT); INSERT INTO objects VALUES ('red')")
        .map_err(sql)?;
    let refused = SqliteStore::open(&path).err().map(|error| error.to_string());
    let reason = refused.ok_or("a foreign table was taken over")?;
    ensure!(reason.contains("object_type") && reason.contains("another file"), "{reason}");
    let colour: String =
        conn.query_row("SELECT colour FROM objects", [], |row| row.get(0)).map_err(sql)?;
    ensure_eq!(colour, "red");
    Ok(())
}

async fn bad_labels() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("labels.db");
    let conn = older_database(&path, 3).map_err(sql)?;
    conn.execute("UPDATE objects SET labels = 'not json' WHERE id = 'id-0001'", []).map_err(sql)?;
    let refused = SqliteStore::open(&path).err().map(|error| error.to_string());
    let reason = refused.ok_or("malformed labels were let through")?;
    ensure!(reason.contains("sandbox/id-0001"), "{reason}");
    conn.execute("UPDATE objects SET labels = NULL WHERE id = 'id-0001'", []).map_err(sql)?;
    let store = SqliteStore::open(&path)?.into_store();
    ensure_eq!(store.list_all(&Query::new("sandbox")).await?.len(), 3);
    Ok(())
}

/// A file whose history has a row for each change, as the first version wrote it.
async fn first_version() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("first.db");
    let store = SqliteStore::open(&path)?.into_store();
    for n in 0..3 {
        store.commit(Put::new(Key::new("k", n.to_string()), "x")).await?;
    }
    store.close().await;
    drop(store);
    let conn = Connection::open(&path).map_err(sql)?;
    conn.execute_batch(
        "DROP TABLE tenure_history;
         CREATE TABLE tenure_events (seq INTEGER PRIMARY KEY, recorded_ms INTEGER NOT NULL);
         INSERT INTO tenure_events VALUES (1024, 0), (2048, 0), (3072, 0);
         UPDATE tenure_meta SET schema_version = 1;",
    )
    .map_err(sql)?;
    drop(conn);
    let store = SqliteStore::open(&path)?.into_store();
    ensure_eq!(store.list_all(&Query::new("k")).await?.len(), 3);
    let all = WatchRequest::kind("k");
    let gone = store.watch(&all.clone().after(1)).await;
    ensure!(matches!(gone, Err(Error::Compacted { oldest: 3, .. })), "{:?}", gone.err());
    let mut watch = store.watch(&all.after(3)).await?;
    store.commit(Put::new(Key::new("k", "0"), "y").expect(Expect::Version(1))).await?;
    let batch = watch.next().await.ok_or("the watch ended")??;
    ensure_eq!(batch.revision, 4);
    Ok(())
}
