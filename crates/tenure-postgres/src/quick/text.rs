//! The statements of the short way, and what they are given.
//!
//! Each locks the counter row as this process left it, changes the rows of the group, tells of it and
//! moves the counter on. A row that is not as we know it makes the division in the last line fail,
//! and with it everything.

use tenure::store::WRITER_LEVEL;
use tenure::store::decide::{Change, Step};
use tokio_postgres::types::ToSql;

use super::plan::{Fate, Plan};
use crate::apply::{COLUMNS, Columns, Keys, unnested};
use crate::known::Left;
use crate::row::signed;
use crate::tid::Xid;
use crate::time::WALL_MS;

/// Where the answer has the server's clock and the transaction that wrote.
pub(super) const WROTE_AT: usize = 2;
pub(super) const WRITTEN_BY: usize = 3;

const LOCKED: &str = "with locked as materialized ( \
     select from tenure_meta \
     where revision = $1::bigint and xmin = $2::xid and min_writer <= $3::integer \
     for update), ";

/// What a simple put leaves as it is (name, time to live, creation) is not written to the row.
fn replaced(first: usize) -> String {
    let columns = "object_type, id, payload, labels, updated_at_ms, resource_version, revision, \
                   token, writer";
    let rows = unnested(columns, first);
    format!(
        "replaced as ( \
           update objects o set payload = w.payload, labels = w.labels, \
             updated_at_ms = w.updated_at_ms, resource_version = w.resource_version, \
             revision = w.revision, token = w.token \
           from ({rows}) w \
           where exists (select from locked) and o.object_type = w.object_type and o.id = w.id \
             and o.xmin = w.writer \
           returning 1)"
    )
}

/// Replaces rows and nothing else. Rows and events share their arrays.
pub(crate) fn replace_sql() -> String {
    let replaced = replaced(4);
    format!(
        "{LOCKED} {replaced}, \
         told as ( \
           insert into tenure_events (object_types, ids, payloads, labels, updated_at_ms, \
             resource_versions, object_revisions, revisions, tokens, names, created_at_ms, \
             created_revisions, causes, ttl_ms, last_revision, at_ms, bytes) \
           select $4, $5, $6, $7, $8, $9, $10, $10, $11, $13, $14, $15, \
             array_fill('put'::text, array[$16::integer]), \
             array_fill(null::bigint, array[$16::integer]), $17, $18, $19 \
           where exists (select from locked)) \
         update tenure_meta set revision = $17::bigint, clock_last_ms = $18::bigint \
         where exists (select from locked) \
         returning pg_notify($20::text, $17::bigint::text) is null, \
           1 / ((select count(*) from replaced) = $16::integer)::integer, \
           {WALL_MS}, pg_current_xact_id()::xid"
    )
}

/// Inserts, replaces and removes, if what is said to be absent is.
pub(crate) fn change_sql() -> String {
    let new = unnested(COLUMNS, 4);
    let replaced = replaced(17);
    let gone = unnested("object_type, id, revision, token", 26);
    let absent = unnested("object_type, id", 30);
    let events = (32..=45).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
    format!(
        "{LOCKED} \
         inserted as (insert into objects ({COLUMNS}) \
           select * from ({new}) w where exists (select from locked)), \
         {replaced}, \
         removed as ( \
           delete from objects o using ({gone}) w \
           where exists (select from locked) and o.object_type = w.object_type and o.id = w.id \
             and o.revision = w.revision and o.token = w.token \
             and (o.expires_at_ms is null \
               or o.expires_at_ms > greatest({WALL_MS} + $46::bigint, $47::bigint)) \
           returning 1), \
         told as ( \
           insert into tenure_events (object_types, ids, names, payloads, labels, created_at_ms, \
             updated_at_ms, resource_versions, object_revisions, created_revisions, tokens, \
             ttl_ms, revisions, causes, last_revision, at_ms, bytes) \
           select {events}, $48, $49, $50 where exists (select from locked)) \
         update tenure_meta set revision = $48::bigint, clock_last_ms = $49::bigint, \
           next_expiry_ms = $51::bigint \
         where exists (select from locked) \
         returning pg_notify($52::text, $48::bigint::text) is null, \
           1 / ((select count(*) from replaced) + (select count(*) from removed) = $53::bigint \
             and not exists (select from objects o join ({absent}) w \
               on o.object_type = w.object_type and o.id = w.id))::integer, \
           {WALL_MS}, pg_current_xact_id()::xid"
    )
}

/// A plan, as columns.
pub(super) struct Parameters<'a> {
    left: Left,
    level: i32,
    new: Columns<'a>,
    new_expires_at_ms: Vec<Option<i64>>,
    replaced: Columns<'a>,
    writers: Vec<Xid>,
    gone: Columns<'a>,
    absent: Keys<'a>,
    told: Columns<'a>,
    told_revision: Vec<i64>,
    told_cause: Vec<&'static str>,
    bytes: i64,
    confirmed: i64,
    count: i32,
    plan: &'a Plan<'a>,
    channel: &'a String,
}

impl<'a> Parameters<'a> {
    pub(super) fn new(plan: &'a Plan<'a>, left: Left, channel: &'a String) -> Self {
        let mut all = Self {
            left,
            level: i32::try_from(WRITER_LEVEL).unwrap_or(i32::MAX),
            new: Columns::default(),
            new_expires_at_ms: Vec::new(),
            replaced: Columns::default(),
            writers: Vec::new(),
            gone: Columns::default(),
            absent: Keys::default(),
            told: Columns::default(),
            told_revision: Vec::new(),
            told_cause: Vec::new(),
            bytes: 0,
            confirmed: 0,
            count: i32::try_from(plan.steps.len()).unwrap_or(i32::MAX),
            plan,
            channel,
        };
        for (step, fate) in plan.steps.iter().zip(&plan.fates) {
            all.add(step, *fate);
        }
        plan.absent.iter().for_each(|key| all.absent.push(&key.kind, &key.id));
        all
    }

    fn add(&mut self, step: &'a Step, fate: Fate) {
        for change in &step.changes {
            let (Change::Put { row, .. } | Change::Remove { row, .. }) = change;
            let object = &row.object;
            match fate {
                Fate::Insert => {
                    self.new.push(object);
                    self.new_expires_at_ms.push(row.expires_at_ms);
                }
                Fate::Replace(writer) => {
                    self.replaced.push(object);
                    self.writers.push(writer);
                    self.confirmed += 1;
                }
                Fate::Remove => {
                    self.gone.push(object);
                    self.confirmed += 1;
                }
            }
            self.bytes += i64::try_from(object.size()).unwrap_or(i64::MAX);
            if !self.plan.replaces_only() {
                self.told.push(object);
                self.told_revision.push(signed(step.revision));
                self.told_cause.push(if fate == Fate::Remove { "deleted" } else { "put" });
            }
        }
    }

    /// Those of [`replace_sql`].
    pub(super) fn of_replace(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (rows, head) = (&self.replaced, &self.plan.head);
        let mut all = self.confirming();
        all.extend(self.replacing());
        all.extend::<[&(dyn ToSql + Sync); 8]>([
            &rows.name,
            &rows.created_at_ms,
            &rows.created_revision,
            &self.count,
            &head.revision,
            &head.clock_last_ms,
            &self.bytes,
            self.channel,
        ]);
        all
    }

    /// Those of [`change_sql`].
    pub(super) fn of_change(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (gone, plan) = (&self.gone, self.plan);
        let mut all = self.confirming();
        all.extend(self.new.parameters());
        all.push(&self.new_expires_at_ms);
        all.extend(self.replacing());
        all.extend::<[&(dyn ToSql + Sync); 4]>([
            &gone.object_type,
            &gone.id,
            &gone.revision,
            &gone.token,
        ]);
        all.extend(self.absent.parameters());
        all.extend(self.told.parameters());
        all.extend::<[&(dyn ToSql + Sync); 10]>([
            &self.told_revision,
            &self.told_cause,
            &plan.head.clock_offset_ms,
            &plan.not_before_ms,
            &plan.head.revision,
            &plan.head.clock_last_ms,
            &self.bytes,
            &plan.head.next_expiry_ms,
            self.channel,
            &self.confirmed,
        ]);
        all
    }

    fn confirming(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.left.head.revision, &self.left.by, &self.level]
    }

    fn replacing(&self) -> [&(dyn ToSql + Sync); 9] {
        let rows = &self.replaced;
        [
            &rows.object_type,
            &rows.id,
            &rows.payload,
            &rows.labels,
            &rows.updated_at_ms,
            &rows.version,
            &rows.revision,
            &rows.token,
            &self.writers,
        ]
    }
}
