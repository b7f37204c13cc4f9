//! Opening connections, creating the tables, and migrating an older database.
//!
//! The documents' older table had no `resource_version`, and `id` alone was its key. Migration builds
//! the new table beside it and copies the rows as they are (payloads untouched, unknown columns kept),
//! in one transaction: a crash leaves the old table or the new one. Every old row becomes version 1
//! and gets a revision of its own, in order of creation.

use std::path::Path;
use std::time::Duration;

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior};
use tenure::store::hosttime::{Anchor, HostTime};
use tenure::store::{WRITER_LEVEL, check_writer};
use tenure::{Error, Result};

use crate::Options;
use crate::error::{BACKEND, definite};

const SCHEMA_VERSION: u32 = 2;
const SCHEMA: &str = include_str!("schema.sql");
/// From the first version to the second: history got a row for each transaction instead of one for
/// each change. What it held is not worth copying: a watcher that was away lists again.
const FROM_FIRST: &str = "
    CREATE TABLE tenure_history (
      revision INTEGER PRIMARY KEY, recorded_ms INTEGER NOT NULL, body BLOB NOT NULL);
    DROP TABLE tenure_events;
    UPDATE tenure_meta SET schema_version = 2, compacted_revision = revision;";
/// Between two attempts to switch the file to its write-ahead log.
const SWITCH_PAUSE: Duration = Duration::from_millis(5);
/// The columns of the older table that the new one takes over.
const OLD_COLUMNS: [&str; 7] =
    ["object_type", "id", "name", "payload", "labels", "created_at_ms", "updated_at_ms"];
/// The one of them that tables from before it was added do without.
const LABELS: &str = "labels";
/// The columns the new table adds.
const NEW_COLUMNS: [&str; 6] =
    ["resource_version", "revision", "created_revision", "token", "ttl_ms", "expires_at_ms"];

/// Opens a connection with the settings that all of them share.
pub(crate) fn connect(options: &Options, write: bool) -> rusqlite::Result<Connection> {
    let mode = match write {
        true => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        false => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    let conn = Connection::open_with_flags(&options.path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Before anything that may lock, switching to WAL above all.
    conn.busy_timeout(options.busy_timeout)?;
    conn.pragma_update(None, "cache_size", -32_768)?;
    conn.set_prepared_statement_cache_capacity(32);
    if write {
        switch_to_wal(&conn, options)?;
        // An acknowledged commit survives loss of power: the log is flushed with every commit.
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "wal_autocheckpoint", 4_000)?;
        if let Some(bytes) = options.max_bytes {
            let page: u64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
            conn.pragma_update(None, "max_page_count", (bytes / page).max(1))?;
        }
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        conn.create_scalar_function("tenure_requires_versioned_writer", 0, flags, |_| Ok(true))?;
    }
    Ok(conn)
}

/// Two that switch to WAL at the same time may each hold the lock that the other one needs. SQLite
/// then refuses one of them at once, whatever the timeout, so trying again is up to us.
fn switch_to_wal(conn: &Connection, options: &Options) -> rusqlite::Result<()> {
    let give_up = options.clock.uptime().saturating_add(options.busy_timeout);
    loop {
        match conn.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && options.clock.uptime() < give_up =>
            {
                std::thread::sleep(SWITCH_PAUSE);
            }
            done => return done,
        }
    }
}

/// Brings the database up to date, once, however many processes start at the same time, and takes up
/// the store's timeline.
pub(crate) fn prepare(conn: &mut Connection, options: &Options) -> Result<HostTime> {
    let txn = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(definite)?;
    let clock = options.clock.clone();
    let time = if has_table(&txn, "tenure_meta")? {
        let (schema, min_writer, anchor) = read_meta(&txn).map_err(definite)?;
        check_writer(BACKEND, min_writer)?;
        if schema > SCHEMA_VERSION {
            return Err(Error::Refused {
                backend: BACKEND,
                reason: format!(
                    "its tables have version {schema}, this program knows {SCHEMA_VERSION}; upgrade it"
                ),
            });
        }
        if schema < SCHEMA_VERSION {
            txn.execute_batch(FROM_FIRST).map_err(definite)?;
        }
        // Whoever is below our level would be unsafe beside us.
        let raise = "UPDATE tenure_meta SET min_writer = ?1 WHERE min_writer < ?1";
        txn.execute(raise, [WRITER_LEVEL]).map_err(definite)?;
        HostTime::resume_in(clock, options.boot_id.clone(), Some(&anchor))
    } else {
        let time = HostTime::resume_in(clock, options.boot_id.clone(), None);
        let rows = create(&txn, &options.path)?;
        let insert = "INSERT INTO tenure_meta VALUES (1, ?1, ?2, ?3, ?3, '', 0, 0)";
        txn.execute(insert, (SCHEMA_VERSION, WRITER_LEVEL, rows)).map_err(definite)?;
        time
    };
    let anchor = time.anchor(time.now_ms());
    txn.execute(
        "UPDATE tenure_meta SET boot_id = ?1, offset_ms = ?2, last_ms = max(last_ms, ?3)",
        (&anchor.boot_id, anchor.offset_ms, anchor.last_ms),
    )
    .map_err(definite)?;
    txn.commit().map_err(definite)?;
    Ok(time)
}

fn read_meta(conn: &Connection) -> rusqlite::Result<(u32, u32, Anchor)> {
    let sql = "SELECT schema_version, min_writer, boot_id, offset_ms, last_ms FROM tenure_meta";
    conn.query_row(sql, [], |row| {
        let anchor = Anchor { boot_id: row.get(2)?, offset_ms: row.get(3)?, last_ms: row.get(4)? };
        Ok((row.get(0)?, row.get(1)?, anchor))
    })
}

fn has_table(conn: &Connection, name: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1";
    let found = conn.query_row(sql, [name], |_| Ok(())).optional().map_err(definite)?;
    Ok(found.is_some())
}

/// Creates the tables, taking over an older `objects` table if there is one. Returns how many
/// revisions its rows used.
fn create(conn: &Connection, path: &Path) -> Result<u64> {
    if !has_table(conn, "objects")? {
        conn.execute_batch(&SCHEMA.replace("/*EXTRA*/", "")).map_err(definite)?;
        return Ok(0);
    }
    let old = old_columns(conn).map_err(definite)?;
    let has = |column: &str| old.iter().any(|old| old.name == column);
    let missing: Vec<_> = OLD_COLUMNS.iter().filter(|c| **c != LABELS && !has(c)).collect();
    if !missing.is_empty() {
        return Err(Error::Refused {
            backend: BACKEND,
            reason: format!(
                "{} has a table `objects` without the columns {missing:?}, so it is not one that \
                 Tenure can take over; use another file",
                path.display()
            ),
        });
    }
    if has(LABELS) {
        check_old_labels(conn)?;
    }
    take_over(conn, &old).map_err(definite)
}

/// A column of the older table.
struct Column {
    name: String,
    kind: String,
    not_null: bool,
    default: Option<String>,
}

impl Column {
    /// As a table is made with it. One that must not be null and has no default could not be filled for
    /// new objects, so it may be null from here on.
    fn declared(&self) -> String {
        let Self { name, kind, not_null, default } = self;
        let default = default.as_deref().and_then(expression).map(|value| match not_null {
            true => format!(" NOT NULL DEFAULT ({value})"),
            false => format!(" DEFAULT ({value})"),
        });
        format!("\"{name}\" {kind}{}", default.unwrap_or_default())
    }
}

/// A default as an expression; none if it is null. SQLite takes a bare or a double-quoted word for text there,
/// but not in an expression.
fn expression(default: &str) -> Option<String> {
    const WORDS: [&str; 5] = ["TRUE", "FALSE", "CURRENT_TIME", "CURRENT_DATE", "CURRENT_TIMESTAMP"];
    let text = default.trim();
    let is_word = text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let quoted = quoted.filter(|text| !text.replace("\"\"", "").contains('"'));
    match quoted {
        Some(word) => Some(literal(&word.replace("\"\"", "\""))),
        None if text.eq_ignore_ascii_case("null") => None,
        None if is_word && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) => {
            Some(literal(text))
        }
        None => Some(text.to_owned()),
    }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn old_columns(conn: &Connection) -> rusqlite::Result<Vec<Column>> {
    let sql = "SELECT name, type, \"notnull\", dflt_value FROM pragma_table_info('objects')";
    let mut statement = conn.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let (name, kind) = (row.get(0)?, row.get(1)?);
        Ok(Column { name, kind, not_null: row.get(2)?, default: row.get(3)? })
    })?;
    rows.collect()
}

/// Labels that are no JSON object would be lost; say so before anything is changed.
fn check_old_labels(conn: &Connection) -> Result<()> {
    let sql = "SELECT object_type || '/' || id FROM objects
               WHERE labels IS NOT NULL AND trim(labels) NOT IN ('', 'null')
                 AND (NOT json_valid(labels) OR json_type(labels) <> 'object') LIMIT 1";
    let bad: Option<String> =
        conn.query_row(sql, [], |row| row.get(0)).optional().map_err(definite)?;
    match bad {
        None => Ok(()),
        Some(key) => Err(Error::corrupt(
            BACKEND,
            format!("labels of {key} are not a JSON object; mend that row, then start again"),
        )),
    }
}

fn take_over(conn: &Connection, old: &[Column]) -> rusqlite::Result<u64> {
    let has = |column: &str| old.iter().any(|old| old.name == column);
    let known = |name: &str| OLD_COLUMNS.contains(&name) || NEW_COLUMNS.contains(&name);
    let extra: Vec<_> = old.iter().filter(|column| !known(&column.name)).collect();
    // Indexes and triggers of the owner's go with the table they belong to; they are made again.
    let sql = "SELECT sql FROM sqlite_master
               WHERE tbl_name = 'objects' AND type IN ('index', 'trigger') AND sql IS NOT NULL";
    let mut statement = conn.prepare(sql)?;
    let owned: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    drop(statement);
    let version = if has("resource_version") { "resource_version" } else { "1" };
    let labels = match has(LABELS) {
        true => "CASE WHEN trim(labels) IN ('', 'null') THEN '{}' ELSE coalesce(labels, '{}') END",
        false => "'{}'",
    };
    conn.execute_batch("ALTER TABLE objects RENAME TO tenure_old_objects")?;
    let names = conn.prepare("SELECT name FROM sqlite_master WHERE tbl_name = 'tenure_old_objects' AND type = 'index' AND sql IS NOT NULL")?
        .query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    for name in names {
        conn.execute_batch(&format!("DROP INDEX \"{name}\""))?;
    }
    let declared: String = extra.iter().map(|column| format!(", {}", column.declared())).collect();
    conn.execute_batch(&SCHEMA.replace("/*EXTRA*/", &declared))?;
    // A payload that somebody wrote as text is the same bytes as a blob.
    let columns: String = extra.iter().map(|column| format!(", \"{}\"", column.name)).collect();
    let rows = conn.execute(
        &format!(
            "INSERT INTO objects (object_type, id, name, payload, labels, created_at_ms,
               updated_at_ms, resource_version, revision, created_revision, token {columns})
             SELECT object_type, id, name, CAST(payload AS BLOB), {labels},
               created_at_ms, updated_at_ms, {version}, nr, nr, nr {columns}
             FROM (SELECT *, row_number() OVER (ORDER BY created_at_ms, object_type, id) AS nr
                   FROM tenure_old_objects)"
        ),
        [],
    )?;
    conn.execute_batch("DROP TABLE tenure_old_objects")?;
    for sql in owned {
        conn.execute_batch(&sql)?;
    }
    tracing::info!(rows, "took over the objects of an older database");
    Ok(rows as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_every_kind_are_expressions() {
        for (default, wanted) in [
            ("7", Some("7")),
            ("-1.5", Some("-1.5")),
            ("'it''s'", Some("'it''s'")),
            ("'a' || 'b'", Some("'a' || 'b'")),
            ("draft", Some("'draft'")),
            ("\"dra\"\"ft's\"", Some("'dra\"ft''s'")),
            ("Current_Timestamp", Some("Current_Timestamp")),
            ("true", Some("true")),
            ("NULL", None),
        ] {
            assert_eq!(expression(default).as_deref(), wanted, "{default}");
        }
    }

    /// No kill of a process can show this; it takes a power cut.
    #[test]
    fn whoever_writes_flushes_the_log_with_every_commit() {
        let folder = tempfile::tempdir().unwrap();
        let conn = connect(&Options::new(folder.path().join("a.db")), true).unwrap();
        let setting = |name: &str| {
            conn.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
        };
        assert_eq!(setting("journal_mode").unwrap(), "wal".to_owned().into());
        assert_eq!(setting("synchronous").unwrap(), 2_i64.into(), "FULL");
    }
}
