//! What happened, read from `tenure_events` in whole batches.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure::store::{Batch, Cause, Event, History};
use tenure::{Error, Key, Object, Result};
use tokio_postgres::Row;

use crate::BACKEND;
use crate::read::empty_meta;
use crate::row::{parse_labels, signed, unsigned};
use crate::shared::Shared;

/// The biggest batch of ours has fewer events than this: a sweep, or a commit with all the expired
/// objects in its way.
const BATCH_EVENTS: usize = 1024;
/// Payloads read at once, roughly; one batch may exceed it.
const BYTES: i64 = 4 * 1024 * 1024;

/// Compacted history is told in the same snapshot in which events are read.
const READ: &str = "select m.compacted_revision, m.revision, e.* from tenure_meta m \
   left join lateral ( \
     select f.* from ( \
       select t.revision, t.final, t.cause, t.object_type, t.id, t.name, t.payload, t.labels, \
         t.created_at_ms, t.updated_at_ms, t.resource_version, t.object_revision, \
         t.created_revision, t.token, t.ttl_ms, t.ordinal, \
         sum(octet_length(t.payload)) over (order by t.revision, t.ordinal \
           rows between unbounded preceding and 1 preceding) as before, \
         first_value(t.revision) over (order by t.revision, t.ordinal) as first \
       from (select * from tenure_events where revision > $1 \
             order by revision, ordinal limit $2) t) f \
     where f.before is null or f.before < $3 or f.revision = f.first \
     order by f.revision, f.ordinal) e on true";

/// What a read of history found.
pub(crate) struct Found {
    /// Whole batches, in order.
    pub(crate) batches: Vec<Arc<Batch>>,
    /// The store's revision in the same snapshot.
    pub(crate) head: u64,
}

impl Shared {
    /// Whole batches with revisions greater than `after`.
    pub(crate) async fn events_after(&self, after: u64, limit: usize) -> Result<Found> {
        let rows = (limit + BATCH_EVENTS) as i64;
        let (_, rows) = self.read(READ, &[&signed(after), &rows, &BYTES]).await?;
        let first = rows.first().ok_or_else(empty_meta)?;
        let (oldest, head) = (unsigned(first.get(0)), unsigned(first.get(1)));
        if after < oldest {
            return Err(Error::Compacted { requested: after, oldest });
        }
        let mut batches = Vec::new();
        let mut events = Vec::new();
        for row in &rows {
            // Nothing joined: there are no events.
            let Some(revision) = row.get::<_, Option<i64>>(2) else { break };
            let damaged = |why: Box<dyn std::error::Error>| {
                let what = format!("the event at revision {revision}: {why}; restore a backup");
                Error::corrupt(BACKEND, what)
            };
            events.push(event(row).map_err(damaged)?);
            // Events behind the last final one belong to a batch that was cut off; it comes next.
            if row.get(3) {
                let events = std::mem::take(&mut events);
                batches.push(Arc::new(Batch { revision: unsigned(revision), events }));
            }
        }
        Ok(Found { batches, head })
    }
}

fn event(row: &Row) -> std::result::Result<Event, Box<dyn std::error::Error>> {
    let object = Arc::new(Object {
        key: Key::new(row.try_get::<_, &str>(5)?, row.try_get::<_, &str>(6)?),
        name: row.try_get(7)?,
        payload: Bytes::copy_from_slice(row.try_get(8)?),
        labels: parse_labels(row.try_get(9)?)?,
        created_at_ms: row.try_get(10)?,
        updated_at_ms: row.try_get(11)?,
        version: unsigned(row.try_get(12)?),
        revision: unsigned(row.try_get(13)?),
        created_revision: unsigned(row.try_get(14)?),
        token: unsigned(row.try_get(15)?),
        ttl: row.try_get::<_, Option<i64>>(16)?.map(|ms| Duration::from_millis(unsigned(ms))),
        expires_in: None,
    });
    let cause = match row.try_get(4)? {
        "put" => return Ok(Event::Put(object)),
        "deleted" => Cause::Deleted,
        "expired" => Cause::Expired,
        _ => Cause::Unspecified,
    };
    Ok(Event::Delete { key: object.key.clone(), cause, last: Some(object) })
}

/// History for the feed. It does not keep the store alive.
pub(crate) struct Log(pub(crate) Weak<Shared>);

#[async_trait]
impl History for Log {
    async fn read_after(&self, after: u64, limit: usize) -> Result<Vec<Arc<Batch>>> {
        let shared = self.0.upgrade();
        let shared = shared.ok_or_else(|| Error::unavailable(BACKEND, "the store is closed"))?;
        Ok(shared.events_after(after, limit).await?.batches)
    }
}
