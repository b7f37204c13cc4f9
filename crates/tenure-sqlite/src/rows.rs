//! Rows of the tables to the contract's types and back.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::types::Type;
use tenure::backend::decide::Row;
use tenure::backend::labels_of_json;
use tenure::{Key, Labels, Object};

/// A statement around the columns that `object` reads, in its order.
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

fn parse_labels(text: &str) -> rusqlite::Result<Labels> {
    if text == "{}" || text.is_empty() {
        return Ok(Labels::new());
    }
    labels_of_json(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(4, Type::Text, Box::new(error)))
}

pub(crate) fn labels_text(labels: &Labels) -> Cow<'static, str> {
    if labels.is_empty() {
        return "{}".into();
    }
    // A map of strings always has a JSON form.
    serde_json::to_string(labels).map_or("{}".into(), Cow::Owned)
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Lives are kept in whole milliseconds, rounded up, so that none is cut short.
pub(crate) fn ttl_ms(ttl: Option<Duration>) -> Option<i64> {
    ttl.map(|ttl| i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
}
