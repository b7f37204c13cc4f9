//! Writing what a group decided: a handful of statements whatever the size of the group, sent
//! together with the `COMMIT`.

use std::sync::Arc;

use tenure::Object;
use tenure::backend::decide::{Change, Row, Step};
use tenure::store::Cause;
use tokio_postgres::types::ToSql;

use crate::commit::overlay::{Fate, Overlay};
use crate::row::{labels_text, signed, ttl_ms};
use crate::tid::Tid;

/// What the server's log says if a program that takes no part in the counter changed a row while a
/// commit was under way. It is the text of a cast that fails, which is how a statement undoes itself.
pub(crate) const CHANGED: &str = "tenure: another program changed a row while it was written; \
     nothing was committed, and it is tried again with the row as it is now";

/// Zero if a count is as wanted; else nothing is committed.
pub(crate) fn ensured(count: &str, wanted: &str) -> String {
    // The count at the end keeps the planner from making the cast before anything is counted.
    format!(
        "case when {count} = {wanted} then 0 else ('{CHANGED}; found ' || {count})::integer end"
    )
}

/// Removes rows by their place.
pub(crate) fn remove_sql() -> String {
    let ensured = ensured("(select count(*) from removed)", "$2::bigint");
    format!(
        "with removed as ( \
           delete from objects o using unnest($1::tid[]) as w (place) \
           where o.ctid = w.place returning 1) \
         select {ensured}"
    )
}

pub(crate) const FREE_NAMES: &str = "update objects o set name = null \
     from (select unnest($1::text[]) as object_type, unnest($2::text[]) as id) w \
     where o.object_type = w.object_type and o.id = w.id";

/// Changed rows are found by their place, which is theirs as long as the counter is locked.
pub(crate) const BY_PLACE: &str = "o.ctid = w.place";

/// Giving up a name moves a row, so it must be found by its key.
pub(crate) const BY_KEY: &str = "o.object_type = w.object_type and o.id = w.id";

/// Where the answer of [`write_sql`] has the transaction that wrote.
pub(crate) const WRITTEN_BY: usize = 2;

/// What a row has, in the order of [`Columns::parameters`].
pub(crate) const COLUMNS: &str = "object_type, id, name, payload, labels, created_at_ms, \
     updated_at_ms, resource_version, revision, created_revision, token, ttl_ms, expires_at_ms";

/// New rows, changed rows, events and the counter in one statement: it is planned and answered once.
/// Arrays are unnested side by side in the select list, which streams; as a table function each would
/// be stored first.
pub(crate) fn write_sql(found: &str) -> String {
    let ensured = ensured("(select count(*) from replaced)", "$49::bigint");
    let new = unnested(COLUMNS, 1);
    let changed = unnested(&format!("{COLUMNS}, place"), 14);
    let events = (28..=41).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
    format!(
        "with inserted as (insert into objects ({COLUMNS}) {new}), \
         replaced as ( \
           update objects o set name = w.name, payload = w.payload, labels = w.labels, \
             created_at_ms = w.created_at_ms, updated_at_ms = w.updated_at_ms, \
             resource_version = w.resource_version, revision = w.revision, \
             created_revision = w.created_revision, token = w.token, ttl_ms = w.ttl_ms, \
             expires_at_ms = w.expires_at_ms \
           from ({changed}) w where {found} returning 1), \
         told as ( \
           insert into tenure_events (object_types, ids, names, payloads, labels, created_at_ms, \
             updated_at_ms, resource_versions, object_revisions, created_revisions, tokens, \
             ttl_ms, revisions, causes, last_revision, at_ms, bytes) \
           select {events}, $42, $43, $48 where $46::boolean) \
         update tenure_meta set revision = $42::bigint, clock_last_ms = $43::bigint, \
           clock_offset_ms = $44::bigint, next_expiry_ms = $45::bigint \
         returning case when $46::boolean then pg_notify($47::text, $42::bigint::text) end is null, \
           {ensured}, pg_current_xact_id()::xid"
    )
}

/// Arrays as rows, from this parameter on.
pub(crate) fn unnested(columns: &str, first: usize) -> String {
    let columns = columns.split(", ").enumerate().map(|(n, column)| {
        let kind = match column {
            "object_type" | "id" | "name" | "labels" => "text",
            "payload" => "bytea",
            "place" => "tid",
            "writer" => "xid",
            _ => "bigint",
        };
        format!("unnest(${}::{kind}[]) as {column}", first + n)
    });
    format!("select {}", columns.collect::<Vec<_>>().join(", "))
}

/// Columns of objects, ready to be sent.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) object_type: Vec<&'a str>,
    pub(crate) id: Vec<&'a str>,
    pub(crate) name: Vec<Option<&'a str>>,
    pub(crate) payload: Vec<&'a [u8]>,
    pub(crate) labels: Vec<Option<String>>,
    pub(crate) created_at_ms: Vec<i64>,
    pub(crate) updated_at_ms: Vec<i64>,
    pub(crate) version: Vec<i64>,
    pub(crate) revision: Vec<i64>,
    pub(crate) created_revision: Vec<i64>,
    pub(crate) token: Vec<i64>,
    pub(crate) ttl_ms: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn push(&mut self, object: &'a Arc<Object>) {
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

    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 12] {
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
    new: Columns<'a>,
    new_expires_at_ms: Vec<Option<i64>>,
    changed: Columns<'a>,
    changed_expires_at_ms: Vec<Option<i64>>,
    places: Vec<Tid>,
    changed_count: i64,
    told: Columns<'a>,
    told_revision: Vec<i64>,
    told_cause: Vec<&'static str>,
    told_bytes: i64,
}

impl<'a> Writes<'a> {
    pub(crate) fn new(overlay: &'a Overlay, steps: &'a [Step]) -> Self {
        let mut writes = Self::default();
        for fate in overlay.fates() {
            match fate {
                Fate::Remove(place) => writes.removed.push(place),
                Fate::Insert(row) => {
                    writes.new.push(&row.object);
                    writes.new_expires_at_ms.push(row.expires_at_ms);
                }
                Fate::Replace { row, place, rename } => {
                    if rename {
                        writes.renamed.push(&row.object.key.kind, &row.object.key.id);
                    }
                    writes.changed.push(&row.object);
                    writes.changed_expires_at_ms.push(row.expires_at_ms);
                    writes.places.push(place);
                    writes.changed_count += 1;
                }
            }
        }
        steps.iter().for_each(|step| writes.tell(step));
        writes
    }

    fn tell(&mut self, step: &'a Step) {
        for change in &step.changes {
            let (row, cause): (&Row, _) = match change {
                Change::Put { row, .. } => (row, "put"),
                Change::Remove { row, cause: Cause::Expired } => (row, "expired"),
                Change::Remove { row, .. } => (row, "deleted"),
            };
            self.told.push(&row.object);
            self.told_revision.push(signed(step.revision));
            self.told_cause.push(cause);
            self.told_bytes += i64::try_from(row.object.size()).unwrap_or(i64::MAX);
        }
    }

    /// The earliest expiry among what is written.
    pub(crate) fn earliest_expiry(&self) -> Option<i64> {
        self.new_expires_at_ms.iter().chain(&self.changed_expires_at_ms).flatten().min().copied()
    }

    /// Whether nothing about objects or history changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.new.id.is_empty()
            && self.changed.id.is_empty()
            && self.told.id.is_empty()
    }

    /// The parameters of [`write_sql`].
    pub(crate) fn parameters<'p>(
        &'p self,
        head: &'p Head,
        notify: &'p bool,
        channel: &'p String,
    ) -> Vec<&'p (dyn ToSql + Sync)> {
        let mut all: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(49);
        all.extend(self.new.parameters());
        all.push(&self.new_expires_at_ms);
        all.extend(self.changed.parameters());
        all.extend::<[&(dyn ToSql + Sync); 2]>([&self.changed_expires_at_ms, &self.places]);
        all.extend(self.told.parameters());
        all.extend::<[&(dyn ToSql + Sync); 2]>([&self.told_revision, &self.told_cause]);
        all.extend::<[&(dyn ToSql + Sync); 8]>([
            &head.revision,
            &head.clock_last_ms,
            &head.clock_offset_ms,
            &head.next_expiry_ms,
            notify,
            channel,
            &self.told_bytes,
            &self.changed_count,
        ]);
        all
    }
}
