//! Objects as rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::backend::{decide, labels_of_json};
use tenure::{Error, Key, Labels, Object, Result};
use tokio_postgres::Row;

use crate::BACKEND;

/// The columns of an object, in the order that [`decode`] and [`crate::commit::apply`] know. `o` is the table.
pub(crate) const COLUMNS: &str = "o.object_type, o.id, o.name, o.payload, o.labels, \
     o.created_at_ms, o.updated_at_ms, o.resource_version, o.revision, o.created_revision, \
     o.token, o.ttl_ms, o.expires_at_ms";

/// How many they are.
pub(crate) const COLUMN_COUNT: usize = 13;

/// The object whose columns begin at `at`.
pub(crate) fn decode(row: &Row, at: usize) -> Result<decide::Row> {
    read(row, at).map_err(|why| Error::corrupt(BACKEND, format!("a row of table objects: {why}")))
}

/// The same where an outer join may have found none.
pub(crate) fn decode_joined(row: &Row, at: usize) -> Result<Option<decide::Row>> {
    match row.try_get::<_, Option<&str>>(at) {
        Ok(None) => Ok(None),
        _ => decode(row, at).map(Some),
    }
}

fn read(row: &Row, at: usize) -> std::result::Result<decide::Row, Box<dyn std::error::Error>> {
    let key = Key::new(row.try_get::<_, &str>(at)?, row.try_get::<_, &str>(at + 1)?);
    let labels = parse_labels(row.try_get(at + 4)?).map_err(|why| format!("{key}: {why}"))?;
    let object = Object {
        name: row.try_get(at + 2)?,
        // A check that needs no payload does not ask for it.
        payload: row
            .try_get::<_, Option<&[u8]>>(at + 3)?
            .map_or_else(Bytes::new, Bytes::copy_from_slice),
        labels,
        created_at_ms: row.try_get(at + 5)?,
        updated_at_ms: row.try_get(at + 6)?,
        version: unsigned(row.try_get(at + 7)?),
        revision: unsigned(row.try_get(at + 8)?),
        created_revision: unsigned(row.try_get(at + 9)?),
        token: unsigned(row.try_get(at + 10)?),
        ttl: row.try_get::<_, Option<i64>>(at + 11)?.map(|ms| Duration::from_millis(unsigned(ms))),
        expires_in: None,
        key,
    };
    Ok(decide::Row { object: Arc::new(object), expires_at_ms: row.try_get(at + 12)? })
}

/// Labels are a JSON object, or nothing.
pub(crate) fn parse_labels(text: Option<&str>) -> std::result::Result<Labels, serde_json::Error> {
    text.map_or_else(|| Ok(Labels::new()), labels_of_json)
}

pub(crate) fn labels_text(labels: &Labels) -> Option<String> {
    if labels.is_empty() {
        return None;
    }
    let pairs = labels.iter().map(|(key, value)| (key.clone(), value.clone().into()));
    Some(serde_json::Value::Object(pairs.collect()).to_string())
}

pub(crate) fn ttl_ms(ttl: Option<Duration>) -> Option<i64> {
    ttl.map(|ttl| i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
}

/// Numbers that we wrote are never negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Numbers that we drew fit; one that a caller made up and does not fit matches nothing.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive() {
        let labels: Labels = [("a\"b", "ü\\"), ("empty", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let text = labels_text(&labels).unwrap();
        assert_eq!(parse_labels(Some(&text)).unwrap(), labels);
        assert_eq!(labels_text(&Labels::new()), None);
    }

    #[test]
    fn a_life_is_rounded_up_to_whole_milliseconds() {
        assert_eq!(ttl_ms(Some(Duration::from_micros(1_001))), Some(2));
        assert_eq!(ttl_ms(None), None);
        assert_eq!(signed(u64::MAX), -1);
    }
}
