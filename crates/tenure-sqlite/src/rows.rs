//! Rows of the tables to the contract's types and back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::types::Type;
use tenure::store::decide::Row;
use tenure::store::{Cause, Event};
use tenure::{Key, Labels, Object};

/// A statement around the columns that `object` reads, in its order; both tables have them.
macro_rules! with_columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            "object_type, id, name, payload, labels, created_at_ms, updated_at_ms, ",
            "resource_version, revision, created_revision, token, ttl_ms",
            $after
        )
    };
}
pub(crate) use with_columns;

fn object(row: &rusqlite::Row<'_>) -> rusqlite::Result<Object> {
    let labels: Option<String> = row.get(4)?;
    Ok(Object {
        key: Key::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?),
        name: row.get(2)?,
        payload: Bytes::from(row.get::<_, Vec<u8>>(3)?),
        labels: parse_labels(labels.as_deref().unwrap_or("{}"))?,
        created_at_ms: row.get(5)?,
        updated_at_ms: row.get(6)?,
        version: row.get(7)?,
        revision: row.get(8)?,
        created_revision: row.get(9)?,
        token: row.get(10)?,
        ttl: row.get::<_, Option<i64>>(11)?.map(millis),
        expires_in: None,
    })
}

/// A row of `objects`, selected as `COLUMNS, expires_at_ms`.
pub(crate) fn stored(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row { object: Arc::new(object(row)?), expires_at_ms: row.get(12)? })
}

/// A row of `tenure_events`, selected as `COLUMNS, seq, cause`: its revision and what happened.
pub(crate) fn event(row: &rusqlite::Row<'_>) -> rusqlite::Result<(u64, Event)> {
    let object = Arc::new(object(row)?);
    let revision = row.get::<_, u64>(12)? / PLACES;
    let cause: Option<String> = row.get(13)?;
    let gone = |cause| Event::Delete { key: object.key.clone(), cause, last: Some(object.clone()) };
    let event = match cause.as_deref() {
        None => Event::Put(object),
        Some("deleted") => gone(Cause::Deleted),
        Some("expired") => gone(Cause::Expired),
        Some(_) => gone(Cause::Unspecified),
    };
    Ok((revision, event))
}

/// How many events one revision can have; `seq` leaves room for them.
pub(crate) const PLACES: u64 = 1024;

/// The first `seq` of a revision.
pub(crate) fn first_seq(revision: u64) -> u64 {
    revision * PLACES
}

pub(crate) fn cause_text(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "deleted",
        Cause::Expired => "expired",
        Cause::Unspecified => "unspecified",
    }
}

fn parse_labels(text: &str) -> rusqlite::Result<Labels> {
    if text == "{}" || text.is_empty() {
        return Ok(Labels::new());
    }
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(4, Type::Text, Box::new(error)))
}

pub(crate) fn labels_text(labels: &Labels) -> String {
    // A map of strings always has a JSON form.
    serde_json::to_string(labels).unwrap_or_else(|_| "{}".into())
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Lives are kept in whole milliseconds, rounded up, so that none is cut short.
pub(crate) fn ttl_ms(ttl: Option<Duration>) -> Option<i64> {
    ttl.map(|ttl| i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
}
