//! Looking at rows and changing them.

use rusqlite::{CachedStatement, Connection, OptionalExtension as _};
use tenure::Key;
use tenure::backend::decide::{Change, Row, Step};

use crate::error::{BACKEND, definite};
use crate::rows::{labels_text, stored, ttl_ms, with_columns};

/// A row that cannot be read is damage, and the key says where.
pub(crate) fn of_row(error: rusqlite::Error, key: &Key) -> tenure::Error {
    match is_damage(&error) {
        true => {
            tenure::Error::corrupt(BACKEND, format!("the row of {key} cannot be read: {error}"))
        }
        false => definite(error),
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as E;
    matches!(
        error,
        E::FromSqlConversionFailure(..)
            | E::InvalidColumnType(..)
            | E::Utf8Error(..)
            | E::IntegralValueOutOfRange(..)
    )
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

/// What one sweep takes at most: it becomes one revision, and so one row of history.
pub(crate) struct Sweep {
    pub(crate) rows: usize,
    /// Of payloads; a last one may go beyond.
    pub(crate) bytes: usize,
}

/// Rows whose life has ended, the oldest first. One that cannot be read stays, and keeps nobody else.
pub(crate) fn expired(conn: &Connection, now_ms: i64, most: &Sweep) -> rusqlite::Result<Vec<Row>> {
    let sql = with_columns!(
        "SELECT ",
        ", expires_at_ms FROM objects WHERE expires_at_ms <= ?1
         ORDER BY expires_at_ms"
    );
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = Vec::new();
    let mut bytes = 0;
    for row in statement.query_map([now_ms], stored)? {
        let row = match row {
            Err(error) if is_damage(&error) => {
                tracing::warn!(%error, "a row that has expired cannot be read, and stays");
                continue;
            }
            row => row?,
        };
        bytes += row.object.payload.len();
        rows.push(row);
        if bytes >= most.bytes || rows.len() >= most.rows {
            break;
        }
    }
    Ok(rows)
}

/// When the next row's life ends.
pub(crate) fn next_expiry(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT min(expires_at_ms) FROM objects WHERE expires_at_ms IS NOT NULL";
    conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// What changes rows, prepared once for all that a transaction does.
pub(crate) struct Statements<'c> {
    conn: &'c Connection,
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
    remove: CachedStatement<'c>,
    extend: CachedStatement<'c>,
}

impl<'c> Statements<'c> {
    pub(crate) fn new(conn: &'c Connection) -> rusqlite::Result<Self> {
        let insert = with_columns!(
            "INSERT INTO objects (",
            ", expires_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
        );
        let update = "UPDATE objects SET name = ?3, payload = ?4, labels = ?5, updated_at_ms = ?6,
                 resource_version = ?7, revision = ?8, token = ?9, ttl_ms = ?10, expires_at_ms = ?11
               WHERE object_type = ?1 AND id = ?2";
        let remove = "DELETE FROM objects WHERE object_type = ?1 AND id = ?2";
        let extend = "UPDATE objects SET expires_at_ms = ?3 WHERE object_type = ?1 AND id = ?2";
        Ok(Self {
            conn,
            insert: conn.prepare_cached(insert)?,
            update: conn.prepare_cached(update)?,
            remove: conn.prepare_cached(remove)?,
            extend: conn.prepare_cached(extend)?,
        })
    }

    /// Carries out one step.
    pub(crate) fn apply(&mut self, step: &Step) -> rusqlite::Result<()> {
        // Everything that gives up a name goes first: objects may trade names within a commit.
        for change in &step.changes {
            match change {
                Change::Remove { row, .. } => {
                    let key = &row.object.key;
                    self.remove.execute((&key.kind, &key.id))?;
                }
                Change::Put { row, before: Some(before) }
                    if row.object.name != before.object.name =>
                {
                    self.free_name(&row.object.key)?;
                }
                Change::Put { .. } => {}
            }
        }
        for change in &step.changes {
            match change {
                Change::Put { row, before: Some(_) } => self.update(row)?,
                Change::Put { row, before: None } => self.insert(row)?,
                Change::Remove { .. } => {}
            }
        }
        Ok(())
    }

    pub(crate) fn extend(&mut self, key: &Key, expires_at_ms: i64) -> rusqlite::Result<()> {
        self.extend.execute((&key.kind, &key.id, expires_at_ms))?;
        Ok(())
    }

    fn free_name(&self, key: &Key) -> rusqlite::Result<()> {
        let sql = "UPDATE objects SET name = NULL WHERE object_type = ?1 AND id = ?2";
        self.conn.prepare_cached(sql)?.execute((&key.kind, &key.id))?;
        Ok(())
    }

    fn insert(&mut self, row: &Row) -> rusqlite::Result<()> {
        let object = &row.object;
        self.insert.execute(rusqlite::params![
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

    fn update(&mut self, row: &Row) -> rusqlite::Result<()> {
        let object = &row.object;
        self.update.execute(rusqlite::params![
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
}
