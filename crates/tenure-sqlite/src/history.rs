//! What happened, for watchers: one row for all that a transaction did.
//!
//! A row holds whole revisions, in order, and is called after the last of them. Many small commits
//! share a transaction, and a row of its own for each would cost more than everything else in it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _};
use tenure::backend::decide::{Change, LastWords, Step};
use tenure::store::{Batch, Cause, Event};
use tenure::{Error, Key, Labels, Object, Result};

use crate::apply::of_row;
use crate::error::definite;
use crate::rows::ttl_ms;

/// A row is closed once it has so many bytes; a reader decodes whole rows.
const ROW_BYTES: usize = 64 * 1024;

/// One change, as it is kept.
#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(uint64, tag = "1")]
    revision: u64,
    /// Empty for a put, else why the object went.
    #[prost(string, tag = "2")]
    cause: String,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(string, tag = "4")]
    id: String,
    #[prost(string, optional, tag = "5")]
    name: Option<String>,
    #[prost(bytes = "bytes", tag = "6")]
    payload: Bytes,
    #[prost(btree_map = "string, string", tag = "7")]
    labels: Labels,
    #[prost(int64, tag = "8")]
    created_at_ms: i64,
    #[prost(int64, tag = "9")]
    updated_at_ms: i64,
    #[prost(uint64, tag = "10")]
    version: u64,
    /// The object's own, which is an earlier one if it went.
    #[prost(uint64, tag = "11")]
    object_revision: u64,
    #[prost(uint64, tag = "12")]
    created_revision: u64,
    #[prost(uint64, tag = "13")]
    token: u64,
    #[prost(int64, optional, tag = "14")]
    ttl_ms: Option<i64>,
    /// The object went, and its payload was left out.
    #[prost(bool, tag = "15")]
    bare: bool,
}

impl Record {
    fn new(revision: u64, change: &Change, last_words: &mut LastWords) -> Self {
        let (object, cause, bare) = match change {
            Change::Put { row, .. } => (&row.object, "", false),
            Change::Remove { row, cause } => {
                (&row.object, cause_text(*cause), !last_words.fits(&row.object))
            }
        };
        Self {
            revision,
            cause: cause.to_owned(),
            kind: object.key.kind.clone(),
            id: object.key.id.clone(),
            name: object.name.clone(),
            payload: if bare { Bytes::new() } else { object.payload.clone() },
            labels: object.labels.clone(),
            created_at_ms: object.created_at_ms,
            updated_at_ms: object.updated_at_ms,
            version: object.version,
            object_revision: object.revision,
            created_revision: object.created_revision,
            token: object.token,
            ttl_ms: ttl_ms(object.ttl),
            bare,
        }
    }

    fn into_event(self) -> Event {
        let (cause, bare) = (cause(&self.cause), self.bare);
        let object = Arc::new(Object {
            key: Key::new(self.kind, self.id),
            name: self.name,
            payload: self.payload,
            labels: self.labels,
            created_at_ms: self.created_at_ms,
            updated_at_ms: self.updated_at_ms,
            version: self.version,
            revision: self.object_revision,
            created_revision: self.created_revision,
            token: self.token,
            ttl: self.ttl_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
            expires_in: None,
        });
        match cause {
            None => Event::Put(object),
            Some(cause) => {
                Event::Delete { key: object.key.clone(), cause, last: (!bare).then_some(object) }
            }
        }
    }
}

fn cause_text(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "deleted",
        Cause::Expired => "expired",
        Cause::Unspecified => "unspecified",
    }
}

fn cause(text: &str) -> Option<Cause> {
    match text {
        "" => None,
        "deleted" => Some(Cause::Deleted),
        "expired" => Some(Cause::Expired),
        _ => Some(Cause::Unspecified),
    }
}

/// Writes down what a transaction did.
pub(crate) fn record(conn: &Connection, steps: &[Step], now_ms: i64) -> rusqlite::Result<()> {
    let mut body = Vec::with_capacity(256 * steps.len().min(256));
    for (place, step) in steps.iter().enumerate() {
        let mut last_words = LastWords::default();
        for change in &step.changes {
            let record = Record::new(step.revision, change, &mut last_words);
            // A vector grows as it needs to.
            let _ = record.encode_length_delimited(&mut body);
        }
        if body.len() >= ROW_BYTES || place + 1 == steps.len() {
            let sql =
                "INSERT INTO tenure_history (revision, recorded_ms, body) VALUES (?1, ?2, ?3)";
            conn.prepare_cached(sql)?.execute((step.revision, now_ms, &body[..]))?;
            body.clear();
        }
    }
    Ok(())
}

/// Whole batches after a revision, in order, `limit` at most.
pub(crate) fn batches_after(
    conn: &Connection,
    after: u64,
    limit: usize,
) -> Result<Vec<Arc<Batch>>> {
    let sql = "SELECT compacted_revision FROM tenure_meta";
    let compacted: u64 = conn
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(definite)?;
    if after < compacted {
        return Err(Error::Compacted { requested: after, oldest: compacted });
    }
    read(conn, after, limit).map_err(|error| of_row(error, &Key::new("history", after.to_string())))
}

fn read(conn: &Connection, after: u64, limit: usize) -> rusqlite::Result<Vec<Arc<Batch>>> {
    let sql = "SELECT body FROM tenure_history WHERE revision > ?1 ORDER BY revision";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([after])?;
    let mut batches: Vec<Batch> = Vec::new();
    while let Some(row) = rows.next()? {
        let mut body = Bytes::from(row.get::<_, Vec<u8>>(0)?);
        while !body.is_empty() {
            let record = Record::decode_length_delimited(&mut body).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, Box::new(error))
            })?;
            let revision = record.revision;
            if revision <= after {
                continue;
            }
            let full = batches.len() >= limit;
            match batches.last_mut() {
                Some(batch) if batch.revision == revision => batch.events.push(record.into_event()),
                _ if full => return Ok(batches.into_iter().map(Arc::new).collect()),
                _ => batches.push(Batch { revision, events: vec![record.into_event()] }),
            }
        }
    }
    Ok(batches.into_iter().map(Arc::new).collect())
}

/// How much history is kept.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// OldTable than this instant may go.
    pub(crate) before_ms: i64,
    /// Beyond so many revisions may go, too.
    pub(crate) revisions: u64,
    /// At most so many revisions at a time.
    pub(crate) at_once: u64,
}

/// How far history may go now.
pub(crate) struct Cut {
    /// Up to here, which is the last revision of a row.
    pub(crate) revision: u64,
    /// What comes behind may go as well, another time.
    pub(crate) more: bool,
}

/// How far history may go now, if it may.
pub(crate) fn cut(conn: &Connection, head: u64, bounds: Bounds) -> rusqlite::Result<Option<Cut>> {
    let sql = "SELECT min(revision) FROM tenure_history";
    let oldest: Option<u64> = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    let Some(oldest) = oldest else { return Ok(None) };
    let last = head.min(oldest + bounds.at_once);
    let crowded = head.saturating_sub(bounds.revisions);
    // The newest revision in the slice that is too old, by time or by count.
    let sql = "SELECT max(revision) FROM tenure_history
               WHERE revision <= ?1 AND (recorded_ms < ?2 OR revision <= ?3)";
    let found = conn
        .prepare_cached(sql)?
        .query_row((last, bounds.before_ms, crowded), |row| row.get::<_, Option<u64>>(0))?;
    let Some(revision) = found else { return Ok(None) };
    let sql = "SELECT recorded_ms < ?2 OR revision <= ?3 FROM tenure_history
               WHERE revision > ?1 ORDER BY revision LIMIT 1";
    let more = conn
        .prepare_cached(sql)?
        .query_row((revision, bounds.before_ms, crowded), |row| row.get(0))
        .optional()?;
    Ok(Some(Cut { revision, more: more.unwrap_or(false) }))
}

/// Forgets everything up to this revision.
pub(crate) fn forget(conn: &Connection, cut: u64) -> rusqlite::Result<()> {
    conn.execute("DELETE FROM tenure_history WHERE revision <= ?1", [cut])?;
    let sql = "UPDATE tenure_meta SET compacted_revision = max(compacted_revision, ?1)";
    conn.execute(sql, [cut])?;
    Ok(())
}
