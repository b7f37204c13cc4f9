//! Opening connections, creating the tables, and bringing those of earlier versions up to date.

use std::time::Duration;

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior};
use tenure::backend::hosttime::{Anchor, HostTime};
use tenure::backend::{WRITER_LEVEL, check_writer};
use tenure::{Error, Result};

use crate::error::{BACKEND, definite};
use crate::{Options, old_table};

const SCHEMA_VERSION: u32 = 2;
/// From the first version to the second: history got a row for each transaction instead of one for
/// each change. What it held is not worth copying: a watcher that was away lists again.
const FROM_FIRST: &str = "
    CREATE TABLE tenure_history (
      revision INTEGER PRIMARY KEY, recorded_ms INTEGER NOT NULL, body BLOB NOT NULL);
    DROP TABLE tenure_events;
    UPDATE tenure_meta SET schema_version = 2, compacted_revision = revision;";
/// Between two attempts to switch the file to its write-ahead log.
const SWITCH_PAUSE: Duration = Duration::from_millis(5);
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
    check_log(conn, options)?;
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
        let rows = old_table::create(&txn, &options.path)?;
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

/// Without its log a file is not what the store relies on. SQLite leaves a database without one where there
/// can be none: in memory, above all, where every connection would have a database of its own.
fn check_log(conn: &Connection, options: &Options) -> Result<()> {
    let mode: String =
        conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(definite)?;
    if mode == "wal" {
        return Ok(());
    }
    let reason = format!(
        "{:?} can have no write-ahead log (its journal is {mode:?}); name a file on a local disk",
        options.path
    );
    Err(Error::Refused { backend: BACKEND, reason })
}

fn read_meta(conn: &Connection) -> rusqlite::Result<(u32, u32, Anchor)> {
    let sql = "SELECT schema_version, min_writer, boot_id, offset_ms, last_ms FROM tenure_meta";
    conn.query_row(sql, [], |row| {
        let anchor = Anchor { boot_id: row.get(2)?, offset_ms: row.get(3)?, last_ms: row.get(4)? };
        Ok((row.get(0)?, row.get(1)?, anchor))
    })
}

/// Whether there is a table of this name, however it is spelt.
pub(crate) fn has_table(conn: &Connection, name: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    let found = conn.query_row(sql, [name], |_| Ok(())).optional().map_err(definite)?;
    Ok(found.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

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
