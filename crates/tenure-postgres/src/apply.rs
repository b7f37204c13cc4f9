//! Writing what a group decided: a handful of statements whatever the size of the group, sent
//! together with the `COMMIT`.

use std::sync::Arc;

use tenure::Object;
use tenure::store::Cause;
use tenure::store::decide::{Change, Row, Step};
use tokio_postgres::types::ToSql;

use crate::overlay::{Fate, Overlay};
use crate::row::{labels_text, signed, ttl_ms};
use crate::tid::Tid;

pub(crate) const REMOVE: &str =
    "delete from objects o using unnest($1::tid[]) as w (place) where o.ctid = w.place";

pub(crate) const FREE_NAMES: &str = "update objects o set name = null \
     from unnest($1::text[], $2::text[]) as w (object_type, id) \
     where o.object_type = w.object_type and o.id = w.id";

/// Changed rows are found by their place, which is theirs as long as the counter is locked.
pub(crate) const BY_PLACE: &str = "o.ctid = w.place";

/// Giving up a name moves a row, so it must be found by its key.
pub(crate) const BY_KEY: &str =
    "o.object_type = w.object_type and o.id = w.id and w.place is not null";

/// New rows, changed rows, events and the counter in one statement: it is planned and answered once.
/// Should a changed row not be where it was, the division by zero makes sure that nothing is
/// committed.
pub(crate) fn write_sql(found: &str) -> String {
    WRITE.replace("{found}", found)
}

const WRITE: &str = "with put as materialized ( \
     select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[], \
       $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], \
       $12::bigint[], $13::bigint[], $14::tid[]) as w (object_type, id, name, payload, labels, \
       created_at_ms, updated_at_ms, resource_version, revision, created_revision, token, ttl_ms, \
       expires_at_ms, place) \
   ), inserted as ( \
     insert into objects (object_type, id, name, payload, labels, created_at_ms, updated_at_ms, \
       resource_version, revision, created_revision, token, ttl_ms, expires_at_ms) \
     select object_type, id, name, payload, labels, created_at_ms, updated_at_ms, \
       resource_version, revision, created_revision, token, ttl_ms, expires_at_ms \
     from put where place is null \
   ), replaced as ( \
     update objects o set name = w.name, payload = w.payload, labels = w.labels, \
       created_at_ms = w.created_at_ms, updated_at_ms = w.updated_at_ms, \
       resource_version = w.resource_version, revision = w.revision, \
       created_revision = w.created_revision, token = w.token, ttl_ms = w.ttl_ms, \
       expires_at_ms = w.expires_at_ms \
     from put w where {found} returning 1 \
   ), told as ( \
     insert into tenure_events (object_type, id, name, payload, labels, created_at_ms, \
       updated_at_ms, resource_version, object_revision, created_revision, token, ttl_ms, \
       revision, ordinal, final, cause, at_ms) \
     select e.*, $32::bigint from unnest($15::text[], $16::text[], $17::text[], $18::bytea[], \
       $19::text[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[], $24::bigint[], \
       $25::bigint[], $26::bigint[], $27::bigint[], $28::integer[], $29::boolean[], \
       $30::text[]) as e \
   ) \
   update tenure_meta set revision = $31::bigint, clock_last_ms = $32::bigint, \
     clock_offset_ms = $33::bigint, next_expiry_ms = $34::bigint \
   returning case when $35::boolean then pg_notify($36::text, $31::bigint::text) end is null, \
     1 / ((select count(*) from replaced) = $37::bigint)::integer";

/// Columns of objects, ready to be sent.
#[derive(Default)]
struct Columns<'a> {
    object_type: Vec<&'a str>,
    id: Vec<&'a str>,
    name: Vec<Option<&'a str>>,
    payload: Vec<&'a [u8]>,
    labels: Vec<Option<String>>,
    created_at_ms: Vec<i64>,
    updated_at_ms: Vec<i64>,
    version: Vec<i64>,
    revision: Vec<i64>,
    created_revision: Vec<i64>,
    token: Vec<i64>,
    ttl_ms: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, object: &'a Arc<Object>) {
        self.object_type.push(&object.key.kind);
        self.id.push(&object.key.id);
        self.name.push(object.name.as_deref());
        self.payload.push(&object.payload);
        self.labels.push(labels_text(&object.labels));
        self.created_at_ms.push(object.created_at_ms);
        self.updated_at_ms.push(object.updated_at_ms);
        self.version.push(signed(object.version));
        self.revision.push(signed(object.revision));
        self.created_revision.push(signed(object.created_revision));
        self.token.push(signed(object.token));
        self.ttl_ms.push(ttl_ms(object.ttl));
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 12] {
        [
            &self.object_type,
            &self.id,
            &self.name,
            &self.payload,
            &self.labels,
            &self.created_at_ms,
            &self.updated_at_ms,
            &self.version,
            &self.revision,
            &self.created_revision,
            &self.token,
            &self.ttl_ms,
        ]
    }
}

/// Keys of rows, ready to be sent.
#[derive(Default)]
pub(crate) struct Keys<'a> {
    object_type: Vec<&'a str>,
    id: Vec<&'a str>,
}

impl<'a> Keys<'a> {
    pub(crate) fn push(&mut self, kind: &'a str, id: &'a str) {
        self.object_type.push(kind);
        self.id.push(id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 2] {
        [&self.object_type, &self.id]
    }
}

/// What the counter row holds after the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) revision: i64,
    pub(crate) clock_last_ms: i64,
    pub(crate) clock_offset_ms: i64,
    pub(crate) next_expiry_ms: i64,
}

/// All writes of one group.
#[derive(Default)]
pub(crate) struct Writes<'a> {
    pub(crate) removed: Vec<Tid>,
    pub(crate) renamed: Keys<'a>,
    put: Columns<'a>,
    expires_at_ms: Vec<Option<i64>>,
    places: Vec<Option<Tid>>,
    replaced: i64,
    told: Columns<'a>,
    told_revision: Vec<i64>,
    told_ordinal: Vec<i32>,
    told_final: Vec<bool>,
    told_cause: Vec<&'static str>,
}

impl<'a> Writes<'a> {
    pub(crate) fn new(overlay: &'a Overlay, steps: &'a [Step]) -> Self {
        let mut writes = Self::default();
        for fate in overlay.fates() {
            let (row, place) = match fate {
                Fate::Remove(place) => {
                    writes.removed.push(place);
                    continue;
                }
                Fate::Insert(row) => (row, None),
                Fate::Replace { row, place, rename } => {
                    if rename {
                        writes.renamed.push(&row.object.key.kind, &row.object.key.id);
                    }
                    (row, Some(place))
                }
            };
            writes.replaced += i64::from(place.is_some());
            writes.put.push(&row.object);
            writes.expires_at_ms.push(row.expires_at_ms);
            writes.places.push(place);
        }
        steps.iter().for_each(|step| writes.tell(step));
        writes
    }

    fn tell(&mut self, step: &'a Step) {
        for (ordinal, change) in step.changes.iter().enumerate() {
            let (row, cause): (&Row, _) = match change {
                Change::Put { row, .. } => (row, "put"),
                Change::Remove { row, cause: Cause::Expired } => (row, "expired"),
                Change::Remove { row, .. } => (row, "deleted"),
            };
            self.told.push(&row.object);
            self.told_revision.push(signed(step.revision));
            self.told_ordinal.push(i32::try_from(ordinal).unwrap_or(i32::MAX));
            self.told_final.push(ordinal + 1 == step.changes.len());
            self.told_cause.push(cause);
        }
    }

    /// The earliest expiry among what is written.
    pub(crate) fn earliest_expiry(&self) -> Option<i64> {
        self.expires_at_ms.iter().flatten().min().copied()
    }

    /// Whether nothing about objects or history changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.put.id.is_empty() && self.told.id.is_empty()
    }

    /// The parameters of [`WRITE`].
    pub(crate) fn parameters<'p>(
        &'p self,
        head: &'p Head,
        notify: &'p bool,
        channel: &'p String,
    ) -> Vec<&'p (dyn ToSql + Sync)> {
        let mut all: Vec<&(dyn ToSql + Sync)> = self.put.parameters().to_vec();
        all.push(&self.expires_at_ms);
        all.push(&self.places);
        all.extend(self.told.parameters());
        all.extend::<[&(dyn ToSql + Sync); 4]>([
            &self.told_revision,
            &self.told_ordinal,
            &self.told_final,
            &self.told_cause,
        ]);
        all.extend::<[&(dyn ToSql + Sync); 7]>([
            &head.revision,
            &head.clock_last_ms,
            &head.clock_offset_ms,
            &head.next_expiry_ms,
            notify,
            channel,
            &self.replaced,
        ]);
        all
    }
}
