//! What happened, read from `tenure_events` in whole batches.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tenure::backend::History;
use tenure::store::{Batch, Cause, Event};
use tenure::{Error, Key, Object, Result};
use tokio_postgres::Row;

use crate::BACKEND;
use crate::read::empty_meta;
use crate::row::{parse_labels, signed, unsigned};
use crate::shared::{Shared, closed};

/// Groups of commits read at once at most.
const GROUPS: i64 = 64;
/// Bytes read at once, roughly; one group may exceed it.
const BYTES: i64 = 4 * 1024 * 1024;

/// What is gone is told in the same snapshot in which the rest is read, and when the group that ended at
/// `$1` was committed.
const READ: &str = "select m.compacted_revision, m.revision, e.*, \
     (select g.at_ms from tenure_events g where g.last_revision = $1) as given_at_ms \
   from tenure_meta m \
   left join lateral ( \
     select f.* from ( \
       select t.*, sum(t.bytes) over (order by t.last_revision \
         rows between unbounded preceding and 1 preceding) as before \
       from (select revisions, causes, object_types, ids, names, payloads, labels, \
               created_at_ms, updated_at_ms, resource_versions, object_revisions, \
               created_revisions, tokens, ttl_ms, last_revision, bytes, at_ms \
             from tenure_events where last_revision > $1 order by last_revision limit $2) t) f \
     where f.before is null or f.before < $3::bigint \
     order by f.last_revision) e on true";

/// What a read of history found.
pub(crate) struct Found {
    /// Whole batches, in order.
    pub(crate) batches: Vec<Arc<Batch>>,
    /// The store's revision in the same snapshot.
    pub(crate) head: u64,
    /// What is kept begins after this revision.
    pub(crate) oldest: u64,
    /// When the group was committed that ended at the revision given, if it is kept.
    pub(crate) given_at_ms: Option<i64>,
    /// When the last one of these was.
    pub(crate) last_at_ms: Option<i64>,
}

impl Shared {
    /// Whole batches with revisions greater than `after`, a bounded number.
    pub(crate) async fn events_after(&self, after: u64) -> Result<Found> {
        let (_, rows) = self.read(READ, &[&signed(after), &GROUPS, &BYTES]).await?;
        let first = rows.first().ok_or_else(empty_meta)?;
        let (oldest, head) = (unsigned(first.get(0)), unsigned(first.get(1)));
        if after < oldest {
            return Err(Error::Compacted { requested: after, oldest });
        }
        let mut batches = Vec::new();
        for row in &rows {
            let damaged = |why: Box<dyn std::error::Error>| {
                let what = format!("history after revision {after}: {why}; restore a backup");
                Error::corrupt(BACKEND, what)
            };
            decode(row, after, &mut batches).map_err(damaged)?;
        }
        let batches = batches.into_iter().map(Arc::new).collect();
        let given_at_ms = first.get("given_at_ms");
        let last_at_ms = rows.last().and_then(|row| row.get("at_ms"));
        Ok(Found { batches, head, oldest, given_at_ms, last_at_ms })
    }
}

/// Adds the changes of one group that come after `after`. Changes of one revision are neighbours, and
/// never in two groups.
fn decode(
    row: &Row,
    after: u64,
    batches: &mut Vec<Batch>,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Nothing joined: there are no events.
    let Some(revisions) = row.try_get::<_, Option<Vec<i64>>>(2)? else { return Ok(()) };
    let causes: Vec<&str> = row.try_get(3)?;
    let kinds: Vec<&str> = row.try_get(4)?;
    let ids: Vec<&str> = row.try_get(5)?;
    let names: Vec<Option<&str>> = row.try_get(6)?;
    let payloads: Vec<&[u8]> = row.try_get(7)?;
    let labels: Vec<Option<&str>> = row.try_get(8)?;
    let created_at_ms: Vec<i64> = row.try_get(9)?;
    let updated_at_ms: Vec<i64> = row.try_get(10)?;
    let versions: Vec<i64> = row.try_get(11)?;
    let object_revisions: Vec<i64> = row.try_get(12)?;
    let created_revisions: Vec<i64> = row.try_get(13)?;
    let tokens: Vec<i64> = row.try_get(14)?;
    let ttls: Vec<Option<i64>> = row.try_get(15)?;
    for (n, revision) in revisions.iter().map(|revision| unsigned(*revision)).enumerate() {
        if revision <= after {
            continue;
        }
        let short = || format!("an array of revision {revision} is too short");
        let object = Arc::new(Object {
            key: Key::new(*kinds.get(n).ok_or_else(short)?, *ids.get(n).ok_or_else(short)?),
            name: names.get(n).ok_or_else(short)?.map(str::to_owned),
            payload: Bytes::copy_from_slice(payloads.get(n).ok_or_else(short)?),
            labels: parse_labels(*labels.get(n).ok_or_else(short)?)?,
            created_at_ms: *created_at_ms.get(n).ok_or_else(short)?,
            updated_at_ms: *updated_at_ms.get(n).ok_or_else(short)?,
            version: unsigned(*versions.get(n).ok_or_else(short)?),
            revision: unsigned(*object_revisions.get(n).ok_or_else(short)?),
            created_revision: unsigned(*created_revisions.get(n).ok_or_else(short)?),
            token: unsigned(*tokens.get(n).ok_or_else(short)?),
            ttl: ttls.get(n).ok_or_else(short)?.map(|ms| Duration::from_millis(unsigned(ms))),
            expires_in: None,
        });
        let deleted = |cause| Event::Delete {
            key: object.key.clone(),
            cause,
            last: Some(Arc::clone(&object)),
        };
        let event = match *causes.get(n).ok_or_else(short)? {
            "put" => Event::Put(object),
            "deleted" => deleted(Cause::Deleted),
            "expired" => deleted(Cause::Expired),
            _ => deleted(Cause::Unspecified),
        };
        match batches.last_mut() {
            Some(batch) if batch.revision == revision => batch.events.push(event),
            _ => batches.push(Batch { revision, events: vec![event] }),
        }
    }
    Ok(())
}

/// History for the feed. It does not keep the store alive.
pub(crate) struct Log(pub(crate) Weak<Shared>);

#[async_trait]
impl History for Log {
    async fn read_after(&self, after: u64, _limit: usize) -> Result<Vec<Arc<Batch>>> {
        let shared = self.0.upgrade();
        let shared = shared.ok_or_else(closed)?;
        Ok(shared.events_after(after).await?.batches)
    }
}
