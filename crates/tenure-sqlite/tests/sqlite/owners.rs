//! Older tables whose owners did more than the documents say: rules, views and tables of their own,
//! odd columns and odd rows. What cannot be taken over is named, and nothing is changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tenure::store::{Commit, Expect, Put, Query, Touch};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_sqlite::SqliteStore;

pub(crate) fn add(trials: &mut Trials) {
    trials.test("an_owners_views_and_triggers_outlast_the_migration", neighbours);
    trials.test("a_table_that_refers_to_the_older_one_keeps_its_rows", referring);
    trials.test("an_owners_columns_are_kept_or_named", columns);
    trials.test("odd_rows_of_the_older_table_are_named", odd_rows);
    trials.test("an_empty_name_of_the_older_table_is_none", empty_name);
    trials.test("a_rule_of_the_owners_concerns_only_who_breaks_it", own_rule);
}

fn sql(error: rusqlite::Error) -> Failure {
    Failure::new(error.to_string())
}

/// An older table as loose as SQLite allows, with two rows and whatever else is asked for.
fn older(folder: &Path, more: &str) -> Result<(PathBuf, Connection), Failure> {
    let path = folder.join("old.db");
    let conn = Connection::open(&path).map_err(sql)?;
    let table = "CREATE TABLE objects (
           object_type TEXT, id TEXT, name TEXT, payload BLOB, labels TEXT,
           created_at_ms INTEGER, updated_at_ms INTEGER);
         INSERT INTO objects VALUES ('box', 'a', 'first', 'x', NULL, 1, 1);
         INSERT INTO objects VALUES ('box', 'b', 'second', 'y', NULL, 2, 2);";
    conn.execute_batch(table).and_then(|()| conn.execute_batch(more)).map_err(sql)?;
    Ok((path, conn))
}

fn number(conn: &Connection, query: &str) -> Result<i64, Failure> {
    conn.query_row(query, [], |row| row.get(0)).map_err(|error| format!("{query}: {error}").into())
}

/// Opening is refused with an error of this code that says all of this, and changes nothing.
fn refused(path: &Path, code: &str, says: &[&str]) -> Result<(), Failure> {
    let opened = SqliteStore::open(path);
    let Err(error) = opened else { return Err(format!("not refused: {says:?}").into()) };
    ensure_eq!(error.code(), code, "{error}");
    for word in says {
        ensure!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    let conn = Connection::open(path).map_err(sql)?;
    ensure_eq!(number(&conn, "SELECT count(*) FROM sqlite_master WHERE name GLOB 'tenure_*'")?, 0);
    Ok(())
}

async fn neighbours() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, conn) = older(
        folder.path(),
        "CREATE VIEW boxes AS SELECT id FROM objects WHERE object_type = 'box';
         CREATE TABLE log (word TEXT, boxes INTEGER);
         CREATE TRIGGER count_boxes AFTER INSERT ON log
         BEGIN UPDATE log SET boxes = (SELECT count(*) FROM objects) WHERE rowid = NEW.rowid; END;",
    )?;
    let store = SqliteStore::open(&path)?.into_store();
    store.commit(Put::new(Key::new("box", "c"), "z")).await?;
    ensure_eq!(number(&conn, "SELECT count(*) FROM boxes")?, 3, "what the owner's view shows");
    conn.execute("INSERT INTO log (word) VALUES ('now')", []).map_err(sql)?;
    ensure_eq!(number(&conn, "SELECT boxes FROM log")?, 3, "what the owner's trigger counts");
    Ok(())
}

async fn referring() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, conn) = older(
        folder.path(),
        "CREATE UNIQUE INDEX objects_id ON objects (id);
         CREATE TABLE notes (object TEXT REFERENCES Objects (id) ON DELETE CASCADE, note TEXT);
         INSERT INTO notes VALUES ('a', 'keep me');",
    )?;
    refused(&path, "refused", &["notes", "foreign key"])?;
    ensure_eq!(number(&conn, "SELECT count(*) FROM notes")?, 1, "the owner's rows");
    ensure_eq!(number(&conn, "SELECT count(*) FROM objects")?, 2);
    Ok(())
}

async fn columns() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, conn) =
        older(folder.path(), "ALTER TABLE objects ADD COLUMN nr INTEGER DEFAULT 77")?;
    let store = SqliteStore::open(&path)?.into_store();
    let revisions: Vec<_> =
        store.list_all(&Query::new("box")).await?.iter().map(|object| object.revision).collect();
    ensure_eq!(revisions, [1, 2], "revisions, whatever the owner calls its columns");
    ensure_eq!(number(&conn, "SELECT sum(nr) FROM objects")?, 154);

    for (column, named) in [
        ("token TEXT DEFAULT 'mine'", "token"),
        ("Revision INTEGER", "Revision"),
        ("size INTEGER AS (length(payload))", "size"),
    ] {
        let folder = tempfile::tempdir()?;
        let (path, conn) =
            older(folder.path(), &format!("ALTER TABLE objects ADD COLUMN {column}"))?;
        refused(&path, "refused", &[named, "rename"])?;
        number(&conn, &format!("SELECT count({named}) FROM objects"))?;
    }
    Ok(())
}

async fn odd_rows() -> Result<(), Failure> {
    for (change, says) in [
        ("payload = NULL", "payload"),
        ("object_type = NULL", "object_type"),
        ("id = NULL", "id"),
        ("id = x'00ff'", "id"),
        ("name = x'00ff'", "name"),
        ("created_at_ms = NULL", "created_at_ms"),
        ("updated_at_ms = 'yesterday'", "updated_at_ms"),
        ("updated_at_ms = 1.5", "updated_at_ms"),
        ("name = 'first'", "name"),
        ("id = 'a'", "id"),
    ] {
        let folder = tempfile::tempdir()?;
        let (path, conn) = older(folder.path(), "")?;
        let odd = format!("UPDATE objects SET {change} WHERE id = 'b'");
        conn.execute(&odd, []).map_err(sql)?;
        refused(&path, "corrupt", &[says, "mend", "start again"])
            .map_err(|failure| format!("{change}: {failure}"))?;
        // Somebody did.
        let mended = "DELETE FROM objects WHERE id IS NOT 'a' OR payload IS NOT 'x'";
        conn.execute(mended, []).map_err(sql)?;
        let store = SqliteStore::open(&path)?.into_store();
        ensure_eq!(store.list_all(&Query::new("box")).await?.len(), 1, "{change}");
    }
    // What only looks odd is not: numbers are text where text belongs, and the other way round.
    let folder = tempfile::tempdir()?;
    let odd = "ALTER TABLE objects RENAME TO loose; CREATE TABLE objects AS SELECT * FROM loose;
               UPDATE objects SET id = 7, created_at_ms = '12', updated_at_ms = 13.0 WHERE id = 'b'";
    let (path, _conn) = older(folder.path(), odd)?;
    let store = SqliteStore::open(&path)?.into_store();
    let found = store.get(&Key::new("box", "7")).await?.ok_or("a row was lost")?;
    ensure_eq!((found.created_at_ms, found.updated_at_ms, found.version), (12, 13, 1));
    Ok(())
}

async fn empty_name() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, _conn) = older(folder.path(), "UPDATE objects SET name = ''")?;
    let store = SqliteStore::open(&path)?.into_store();
    let found = store.get(&Key::new("box", "b")).await?.ok_or("a row was lost")?;
    ensure_eq!(found.name, None);
    // What was read can be written again.
    let again = found.to_put().new_token().expect(Expect::Revision(found.revision));
    store.commit(again).await?;
    Ok(())
}

/// An index of the owner's that is stricter than ours. Many share a transaction with who breaks it.
async fn own_rule() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, conn) = older(folder.path(), "CREATE UNIQUE INDEX strict ON objects (id)")?;
    let store = SqliteStore::open(&path)?.into_store();
    let commits = (0..64).map(|n| {
        let key = match n {
            31 => Key::new("crate", "a"),
            n => Key::new("crate", format!("new-{n}")),
        };
        let both = Put::new(Key::new("tub", format!("t-{n}")), "w");
        store.commit(Commit::from(both).put(Put::new(key, "v")))
    });
    let answers = futures::future::join_all(commits).await;
    for (n, answer) in answers.into_iter().enumerate() {
        match (n, answer) {
            (31, Err(error @ Error::Invalid { .. })) => {
                ensure!(error.to_string().contains("objects.id"), "{error}");
            }
            (31, answer) => return Err(format!("not refused: {answer:?}").into()),
            (_, answer) => drop(answer?),
        }
    }
    ensure_eq!(store.list_all(&Query::new("crate")).await?.len(), 63);
    ensure_eq!(store.list_all(&Query::new("tub")).await?.len(), 63, "all or nothing");
    ensure_eq!(number(&conn, "SELECT count(*) FROM objects")?, 128);

    let rule = "CREATE TRIGGER rule BEFORE UPDATE OF expires_at_ms ON objects WHEN OLD.id = 'late'
                BEGIN SELECT RAISE(ABORT, 'it is late'); END";
    conn.execute_batch(rule).map_err(sql)?;
    let minute = Duration::from_secs(60);
    let mut touches = Vec::new();
    for id in ["early", "late", "later"] {
        let key = Key::new("mortal", id);
        let put = store.commit(Put::new(key.clone(), "v").ttl(minute)).await?;
        touches.push(Touch { key, revision: put.revision.unwrap_or(0), ttl: minute });
    }
    let answers = store.touch(touches).await?;
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().map_or_else(Error::code, |_| "ok")).collect();
    ensure_eq!(codes, ["ok", "invalid", "ok"]);
    Ok(())
}
