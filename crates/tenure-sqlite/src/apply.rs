//! Looking at rows and changing them, inside the writer's transaction.

use rusqlite::{Connection, OptionalExtension as _};
use tenure::store::decide::{Change, Row, Step, View};
use tenure::{Key, Object, Result};

use crate::error::{BACKEND, definite};
use crate::rows::{cause_text, first_seq, labels_text, stored, ttl_ms, with_columns};

/// The rows as the transaction sees them.
pub(crate) struct Rows<'a>(pub(crate) &'a Connection);

impl View for Rows<'_> {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        find(self.0, key).map_err(|error| of_row(error, key))
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        by_name(self.0, kind, name).map_err(|error| of_row(error, &Key::new(kind, name)))
    }
}

/// A row that cannot be read is damage, and the key says where.
pub(crate) fn of_row(error: rusqlite::Error, key: &Key) -> tenure::Error {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
            tenure::Error::corrupt(BACKEND, format!("the row of {key} cannot be read: {error}"))
        }
        error => definite(error),
    }
}

pub(crate) fn find(conn: &Connection, key: &Key) -> rusqlite::Result<Option<Row>> {
    let sql =
        with_columns!("SELECT ", ", expires_at_ms FROM objects WHERE object_type = ?1 AND id = ?2");
    conn.prepare_cached(sql)?.query_row((&key.kind, &key.id), stored).optional()
}

pub(crate) fn by_name(conn: &Connection, kind: &str, name: &str) -> rusqlite::Result<Option<Row>> {
    let sql = with_columns!(
        "SELECT ",
        ", expires_at_ms FROM objects WHERE object_type = ?1 AND name = ?2"
    );
    conn.prepare_cached(sql)?.query_row((kind, name), stored).optional()
}

/// Rows whose life has ended, the oldest first.
pub(crate) fn expired(conn: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Row>> {
    let sql = with_columns!(
        "SELECT ",
        ", expires_at_ms FROM objects WHERE expires_at_ms <= ?1
         ORDER BY expires_at_ms LIMIT ?2"
    );
    conn.prepare_cached(sql)?.query_map((now_ms, limit), stored)?.collect()
}

/// When the next row's life ends.
pub(crate) fn next_expiry(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT min(expires_at_ms) FROM objects WHERE expires_at_ms IS NOT NULL";
    conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

pub(crate) fn extend(conn: &Connection, key: &Key, expires_at_ms: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE objects SET expires_at_ms = ?3 WHERE object_type = ?1 AND id = ?2";
    conn.prepare_cached(sql)?.execute((&key.kind, &key.id, expires_at_ms))?;
    Ok(())
}

/// Carries out one step: rows and the events that tell of it.
pub(crate) fn apply(conn: &Connection, step: &Step, now_ms: i64) -> rusqlite::Result<()> {
    // Everything that gives up a name goes first: objects may trade names within a commit.
    for change in &step.changes {
        match change {
            Change::Remove { row, .. } => remove(conn, &row.object.key)?,
            Change::Put { row, before: Some(before) } if row.object.name != before.object.name => {
                let key = &row.object.key;
                conn.prepare_cached(
                    "UPDATE objects SET name = NULL WHERE object_type = ?1 AND id = ?2",
                )?
                .execute((&key.kind, &key.id))?;
            }
            Change::Put { .. } => {}
        }
    }
    for (place, change) in step.changes.iter().enumerate() {
        let seq = first_seq(step.revision) + place as u64;
        match change {
            Change::Put { row, before } => {
                match before {
                    Some(_) => update(conn, row)?,
                    None => insert(conn, row)?,
                }
                record(conn, seq, now_ms, None, &row.object)?;
            }
            Change::Remove { row, cause } => {
                record(conn, seq, now_ms, Some(cause_text(*cause)), &row.object)?;
            }
        }
    }
    Ok(())
}

fn remove(conn: &Connection, key: &Key) -> rusqlite::Result<()> {
    let sql = "DELETE FROM objects WHERE object_type = ?1 AND id = ?2";
    conn.prepare_cached(sql)?.execute((&key.kind, &key.id))?;
    Ok(())
}

fn insert(conn: &Connection, row: &Row) -> rusqlite::Result<()> {
    let object = &row.object;
    let sql = with_columns!(
        "INSERT INTO objects (",
        ", expires_at_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
    );
    conn.prepare_cached(sql)?.execute(rusqlite::params![
        object.key.kind,
        object.key.id,
        object.name,
        &object.payload[..],
        labels_text(&object.labels),
        object.created_at_ms,
        object.updated_at_ms,
        object.version,
        object.revision,
        object.created_revision,
        object.token,
        ttl_ms(object.ttl),
        row.expires_at_ms,
    ])?;
    Ok(())
}

fn update(conn: &Connection, row: &Row) -> rusqlite::Result<()> {
    let object = &row.object;
    let sql = "UPDATE objects SET name = ?3, payload = ?4, labels = ?5, updated_at_ms = ?6,
                 resource_version = ?7, revision = ?8, token = ?9, ttl_ms = ?10, expires_at_ms = ?11
               WHERE object_type = ?1 AND id = ?2";
    conn.prepare_cached(sql)?.execute(rusqlite::params![
        object.key.kind,
        object.key.id,
        object.name,
        &object.payload[..],
        labels_text(&object.labels),
        object.updated_at_ms,
        object.version,
        object.revision,
        object.token,
        ttl_ms(object.ttl),
        row.expires_at_ms,
    ])?;
    Ok(())
}

fn record(
    conn: &Connection,
    seq: u64,
    now_ms: i64,
    cause: Option<&str>,
    object: &Object,
) -> rusqlite::Result<()> {
    let sql = with_columns!(
        "INSERT INTO tenure_events (",
        ", seq, cause, recorded_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)"
    );
    conn.prepare_cached(sql)?.execute(rusqlite::params![
        object.key.kind,
        object.key.id,
        object.name,
        &object.payload[..],
        labels_text(&object.labels),
        object.created_at_ms,
        object.updated_at_ms,
        object.version,
        object.revision,
        object.created_revision,
        object.token,
        ttl_ms(object.ttl),
        seq,
        cause,
        now_ms,
    ])?;
    Ok(())
}
