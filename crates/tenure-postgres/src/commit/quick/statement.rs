//! The statements of the short way, and what they are given.
//!
//! Each looks whether everything is as this process knows it, locks the counter row, changes the rows
//! of the group, tells of it and moves the counter on. If something is otherwise, it answers with no row
//! and has done nothing. Nothing fails for it, since the server would log that as an error.
//!
//! Looking before the lock is enough: the counter row is the very version that is expected, so no store
//! has written between the two. What does not go by the counter is settled behind the lock: touches, so
//! rows that are removed are locked before their lives are judged; and programs that are no stores, for
//! which the count at the end is the last resort.
//!
//! Rows and events share their arrays: first come the rows that are inserted, then those that are
//! replaced, then those that are removed.

use tenure::backend::WRITER_LEVEL;
use tenure::backend::decide::{Change, Step};
use tokio_postgres::types::ToSql;

use super::plan::Plan;
use crate::commit::apply::{COLUMNS, Columns, Keys, ensured};
use crate::commit::committer::Job;
use crate::commit::known::Left;
use crate::row::signed;
use crate::tid::Xid;
use crate::time::{WALL_MS, start_sql};

/// Where the answer has the server's clock and the transaction that wrote.
pub(super) const WROTE_AT: usize = 2;
pub(super) const WRITTEN_BY: usize = 3;

/// The counter row, if it and the rows are as known. If the transaction that left it is on its way, we
/// cannot name it yet, but the session remembers it by then.
///
/// The conditions are looked at in this order and before the lock, so where others have written
/// nothing is counted, and where something is otherwise nothing is locked or flushed.
fn locked(conditions: &str) -> String {
    format!(
        "with locked as materialized ( \
           select from tenure_meta \
           where revision = $1::bigint and min_writer <= $3::integer \
             and xmin = coalesce($2::xid, current_setting('tenure.left', true)::xid) \
             {conditions} \
           for update), "
    )
}

/// The session remembers who moved the counter, unless that is undone.
const REMEMBERED: &str = "pg_current_xact_id()::xid, \
     set_config('tenure.left', pg_current_xact_id()::xid::text, false)";

/// What is inserted, and what commits say is absent, is not there; names that come are free.
const ABSENT: &str = "and not exists ( \
       select from (select unnest($4::text[]) as object_type, unnest($5::text[]) as id \
         limit $17::bigint) w \
       join objects o on o.object_type = w.object_type and o.id = w.id) \
     and not exists ( \
       select from (select unnest($4::text[]) as object_type, unnest($6::text[]) as name \
         limit $17::bigint) w \
       join objects o on o.object_type = w.object_type and o.name = w.name \
       where w.name is not null and o.name is not null) \
     and not exists ( \
       select from (select unnest($28::text[]) as object_type, unnest($29::text[]) as id) w \
       join objects o on o.object_type = w.object_type and o.id = w.id)";

/// What is replaced is the very version that is known.
fn unchanged(writers: usize) -> String {
    format!(
        "and $18::bigint = ( \
           select count(*) \
           from (select unnest($4::text[]) as object_type, unnest($5::text[]) as id, \
               unnest(${writers}::xid[]) as writer \
             offset $17::bigint limit $18::bigint) w \
           join objects o on o.object_type = w.object_type and o.id = w.id \
           where o.xmin = w.writer)"
    )
}

/// What a simple put leaves as it is (name, time to live, creation) is not written to the row.
fn replaced(writers: usize, condition: &str) -> String {
    format!(
        "replaced as ( \
     update objects o set payload = w.payload, labels = w.labels, \
       updated_at_ms = w.updated_at_ms, resource_version = w.resource_version, \
       revision = w.revision, token = w.token \
     from (select unnest($4::text[]) as object_type, unnest($5::text[]) as id, \
         unnest($7::bytea[]) as payload, unnest($8::text[]) as labels, \
         unnest($10::bigint[]) as updated_at_ms, unnest($11::bigint[]) as resource_version, \
         unnest($12::bigint[]) as revision, unnest($14::bigint[]) as token, \
         unnest(${writers}::xid[]) as writer \
       offset $17::bigint limit $18::bigint) w \
     where {condition} and o.object_type = w.object_type and o.id = w.id \
       and o.xmin = w.writer \
     returning 1), "
    )
}

/// The columns of the events, but what follows from the kind of the group.
const EVENTS: &str = "object_types, ids, names, payloads, labels, created_at_ms, updated_at_ms, \
     resource_versions, object_revisions, created_revisions, tokens, ttl_ms, revisions";

/// Replaces rows and nothing else.
pub(crate) fn replace_sql() -> String {
    let locked = locked(&unchanged(23));
    let replaced = replaced(23, "exists (select from locked)");
    let ensured = ensured("(select count(*) from replaced)", "$18::bigint");
    format!(
        "{locked} {replaced} \
         told as ( \
           insert into tenure_events ({EVENTS}, causes, last_revision, at_ms, bytes) \
           select $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::bigint[], $16::bigint[], \
             array_fill('put'::text, array[$18::bigint::integer]), $19, $20, $21 \
           where exists (select from locked)) \
         update tenure_meta set revision = $19::bigint, clock_last_ms = $20::bigint \
         where exists (select from locked) \
         returning pg_notify($22::text, $19::bigint::text) is null, \
           {ensured}, {WALL_MS}, {REMEMBERED}"
    )
}

/// Inserts and removes; replaces as well, if told to.
pub(crate) fn change_sql(replaces: bool) -> String {
    let fits = "exists (select from fitting)";
    let (locked, replaced, ensured) = match replaces {
        true => (
            locked(&format!("{} {ABSENT}", unchanged(31))),
            replaced(31, fits),
            ensured(
                "((select count(*) from replaced) + (select count(*) from removed))",
                "$18::bigint + $26::bigint",
            ),
        ),
        false => {
            let ensured = ensured("(select count(*) from removed)", "$26::bigint");
            (locked(ABSENT), String::new(), ensured)
        }
    };
    let now = format!("({WALL_MS} + $24::bigint)");
    let start = start_sql(&now, "$25::bigint", "$30::bigint");
    format!(
        "{locked} \
         alive as materialized ( \
           select \
           from (select unnest($4::text[]) as object_type, unnest($5::text[]) as id, \
               unnest($12::bigint[]) as revision, unnest($14::bigint[]) as token \
             offset $17::bigint + $18::bigint) w \
           join objects o on o.object_type = w.object_type and o.id = w.id \
           where exists (select from locked) and o.revision = w.revision and o.token = w.token \
             and (o.expires_at_ms is null \
               or o.expires_at_ms > greatest({now}, $25::bigint)) \
           for update of o), \
         fitting as materialized ( \
           select from locked where (select count(*) from alive) = $26::bigint), \
         inserted as ( \
           insert into objects ({COLUMNS}) \
           select * from (select unnest($4::text[]), unnest($5::text[]), unnest($6::text[]), \
               unnest($7::bytea[]), unnest($8::text[]), unnest($9::bigint[]), \
               unnest($10::bigint[]), unnest($11::bigint[]), unnest($12::bigint[]), \
               unnest($13::bigint[]), unnest($14::bigint[]), unnest($15::bigint[]), \
               unnest($23::bigint[]) - $30::bigint + {start} \
             limit $17::bigint) w \
           where {fits}), \
         {replaced} \
         removed as ( \
           delete from objects o \
           using (select unnest($4::text[]) as object_type, unnest($5::text[]) as id, \
               unnest($12::bigint[]) as revision, unnest($14::bigint[]) as token \
             offset $17::bigint + $18::bigint) w \
           where {fits} and o.object_type = w.object_type and o.id = w.id \
             and o.revision = w.revision and o.token = w.token \
           returning 1), \
         told as ( \
           insert into tenure_events ({EVENTS}, causes, last_revision, at_ms, bytes) \
           select $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16::bigint[], \
             array_fill('put'::text, array[($17::bigint + $18::bigint)::integer]) \
               || array_fill('deleted'::text, array[$26::bigint::integer]), $19, $20, $21 \
           where {fits}) \
         update tenure_meta set revision = $19::bigint, clock_last_ms = $20::bigint, \
           next_expiry_ms = $27::bigint \
         where {fits} \
         returning pg_notify($22::text, $19::bigint::text) is null, \
           {ensured}, {WALL_MS}, {REMEMBERED}"
    )
}

/// A plan, as columns.
pub(super) struct Parameters<'a> {
    left: Left,
    level: i32,
    rows: Columns<'a>,
    revisions: Vec<i64>,
    expires_at_ms: Vec<Option<i64>>,
    /// Behind a gap for each row that is inserted.
    writers: Vec<Option<Xid>>,
    inserted: i64,
    replaced: i64,
    removed: i64,
    absent: Keys<'a>,
    bytes: i64,
    plan: &'a Plan,
    channel: &'a String,
}

impl<'a> Parameters<'a> {
    pub(super) fn new(plan: &'a Plan, jobs: &'a [Job], left: Left, channel: &'a String) -> Self {
        let (inserted, replaced) = (plan.inserted, plan.writers.len());
        let removed = plan.steps.len().saturating_sub(inserted + replaced);
        let gap = std::iter::repeat_n(None, if replaced > 0 { inserted } else { 0 });
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let mut all = Self {
            left,
            level: i32::try_from(WRITER_LEVEL).unwrap_or(i32::MAX),
            rows: Columns::default(),
            revisions: Vec::with_capacity(plan.steps.len()),
            expires_at_ms: Vec::with_capacity(inserted),
            writers: gap.chain(plan.writers.iter().copied().map(Some)).collect(),
            inserted: count(inserted),
            replaced: count(replaced),
            removed: count(removed),
            absent: Keys::default(),
            bytes: 0,
            plan,
            channel,
        };
        for (number, step) in plan.steps.iter().enumerate() {
            all.add(step, number < inserted);
        }
        plan.absent(jobs).for_each(|key| all.absent.push(&key.kind, &key.id));
        all
    }

    fn add(&mut self, step: &'a Step, inserted: bool) {
        for change in &step.changes {
            let (Change::Put { row, .. } | Change::Remove { row, .. }) = change;
            self.rows.push(&row.object);
            self.revisions.push(signed(step.revision));
            self.bytes += i64::try_from(row.object.size()).unwrap_or(i64::MAX);
            if inserted {
                self.expires_at_ms.push(row.expires_at_ms);
            }
        }
    }

    /// Those of [`replace_sql`].
    pub(super) fn of_replace(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut all = self.of_all();
        all.push(&self.writers);
        all
    }

    /// Those of [`change_sql`].
    pub(super) fn of_change(&self, replaces: bool) -> Vec<&(dyn ToSql + Sync)> {
        let mut all = self.of_all();
        let head = &self.plan.head;
        all.extend::<[&(dyn ToSql + Sync); 5]>([
            &self.expires_at_ms,
            &head.clock_offset_ms,
            &self.plan.earliest_ms,
            &self.removed,
            &head.next_expiry_ms,
        ]);
        all.extend(self.absent.parameters());
        all.push(&self.plan.latest_ms);
        if replaces {
            all.push(&self.writers);
        }
        all
    }

    fn of_all(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (left, head) = (&self.left, &self.plan.head);
        let mut all: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(31);
        all.extend::<[&(dyn ToSql + Sync); 3]>([&left.head.revision, &left.by, &self.level]);
        all.extend(self.rows.parameters());
        all.extend::<[&(dyn ToSql + Sync); 7]>([
            &self.revisions,
            &self.inserted,
            &self.replaced,
            &head.revision,
            &head.clock_last_ms,
            &self.bytes,
            self.channel,
        ]);
        all
    }
}
