//! A group of commits in one exchange, without reading anything first.
//!
//! As long as nobody else writes to the database, this process knows what is in the rows that it wrote
//! itself. Then it can decide a group before it asks the server, and send one statement that locks
//! the counter, has the server confirm everything the decisions were built on, writes, and commits:
//!
//! * the counter row is the very version that this process left, so nobody has drawn a revision,
//!   corrected the clock or raised the writer level since;
//! * every row that the group is about is the very version that this process wrote, and is replaced.
//!
//! If any of it does not hold, nothing happens, and the group goes the ordinary way with fresh rows.
//! So does every group that is not of the simplest kind: each commit puts one object that is known and
//! has no time to live, keeps its name, is not refused and changes something. A refusal must be true
//! as well, and here only what is written is confirmed.
//!
//! Nothing is decided by the time, then. The server's clock still comes back with the answer, so a
//! step of it is noticed, and recorded before the callers are answered.

use std::pin::pin;

use futures::TryStreamExt;
use tenure::store::decide::{Change, Decision, Now, Row, Step, View, decide};
use tenure::store::{Commit, Committed, Put, WRITER_LEVEL, Write};
use tenure::{Key, Result};
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::ToSql;

use crate::apply::{Columns, Head};
use crate::error::{Failure, commit_refused};
use crate::group::{Job, Work};
use crate::known::{Known, Left};
use crate::row::{signed, unsigned};
use crate::tid::Xid;
use crate::time::{Sample, WALL_MS};
use crate::transaction::{Broken, Outcome, Transaction};

/// Where the answer has the server's clock and the transaction that wrote.
const WROTE_AT: usize = 2;
const WRITTEN_BY: usize = 3;

/// The statement. Rows and events share their arrays. What a simple put leaves as it is (name, time to
/// live, creation) is not written to the row, but told. A row that is not the one we know makes the
/// division fail, and with it everything.
pub(crate) fn quick_sql() -> String {
    format!(
        "with locked as materialized ( \
           select from tenure_meta \
           where revision = $1::bigint and xmin = $2::xid and min_writer <= $3::integer \
           for update), \
         replaced as ( \
           update objects o set payload = w.payload, labels = w.labels, \
             updated_at_ms = w.updated_at_ms, resource_version = w.resource_version, \
             revision = w.revision, token = w.token \
           from (select unnest($4::text[]) as object_type, unnest($5::text[]) as id, \
                   unnest($6::bytea[]) as payload, unnest($7::text[]) as labels, \
                   unnest($8::bigint[]) as updated_at_ms, unnest($9::bigint[]) as resource_version, \
                   unnest($10::bigint[]) as revision, unnest($11::bigint[]) as token, \
                   unnest($12::xid[]) as writer) w \
           where exists (select from locked) and o.object_type = w.object_type and o.id = w.id \
             and o.xmin = w.writer \
           returning 1), \
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

/// What a group comes to if all that is known is so.
struct Plan {
    /// In the order of the jobs.
    answers: Vec<Result<Committed>>,
    steps: Vec<Step>,
    /// Who wrote the rows that the steps replace.
    writers: Vec<Xid>,
    head: Head,
}

impl Transaction<'_> {
    /// Runs a group in one exchange; `None` if that cannot be done, and then nothing happened.
    pub(crate) async fn run_quickly(
        &self,
        jobs: &[Job],
        known: &mut Known,
    ) -> Result<Option<Outcome>, Broken> {
        let (Some(left), Some(store_ms)) = (known.left(), self.shared.time.at_least()) else {
            return Ok(None);
        };
        let Some(plan) = plan(jobs, known, left, store_ms) else { return Ok(None) };
        let sent = self.shared.time.sent();
        let Some(answer) = self.send(&plan, left).await? else {
            known.refuted();
            return Ok(None);
        };
        known.confirmed();
        let Plan { answers, steps, head, .. } = plan;
        let sample = Sample {
            wall_ms: answer.get(WROTE_AT),
            offset_ms: head.clock_offset_ms,
            last_ms: head.clock_last_ms,
        };
        let mut left = Some(Left { head, by: answer.get(WRITTEN_BY) });
        if self.shared.time.received(sent, sample).stepped {
            // The group is done, whatever comes of this; the offset must be put right for everybody.
            known.forget();
            left = None;
            let _ = self.run(&[], known).await;
        }
        Ok(Some(Outcome { answers, steps, left }))
    }

    /// The exchange. `None` if what is known is not so.
    async fn send(&self, plan: &Plan, left: Left) -> Result<Option<SqlRow>, Broken> {
        let level = i32::try_from(WRITER_LEVEL).unwrap_or(i32::MAX);
        let mut rows = Columns::default();
        let mut bytes = 0;
        for change in plan.steps.iter().flat_map(|step| &step.changes) {
            let (Change::Put { row, .. } | Change::Remove { row, .. }) = change;
            rows.push(&row.object);
            bytes += i64::try_from(row.object.size()).unwrap_or(i64::MAX);
        }
        let count = i32::try_from(plan.writers.len()).unwrap_or(i32::MAX);
        let parameters: [&(dyn ToSql + Sync); 20] = [
            &left.head.revision,
            &left.by,
            &level,
            &rows.object_type,
            &rows.id,
            &rows.payload,
            &rows.labels,
            &rows.updated_at_ms,
            &rows.version,
            &rows.revision,
            &rows.token,
            &plan.writers,
            &rows.name,
            &rows.created_at_ms,
            &rows.created_revision,
            &count,
            &plan.head.revision,
            &plan.head.clock_last_ms,
            &bytes,
            &self.shared.channel,
        ];
        let exchange = async {
            let sent = self.client.query_raw(&self.statements.quick, parameters);
            let mut rows = pin!(sent.await?);
            let answer = rows.try_next().await?;
            // What follows a row is the answer to the commit; without one there is nothing to commit.
            let end = if answer.is_some() { rows.try_next().await } else { Ok(None) };
            Ok::<_, tokio_postgres::Error>((answer, end))
        };
        let patience = self.shared.connector.options.reply_timeout;
        let in_doubt =
            |why: String| Broken::InDoubt { why, changed: vec![true; plan.answers.len()] };
        match tokio::time::timeout(patience, exchange).await {
            Ok(Ok((answer, Ok(_)))) => Ok(answer),
            Ok(Ok((_, Err(error)))) if commit_refused(&error) => Err(error.into()),
            Ok(Ok((_, Err(error)))) => Err(in_doubt(error.to_string())),
            Ok(Err(error)) if error.as_db_error().is_none() => Err(in_doubt(error.to_string())),
            Ok(Err(error)) => {
                let failure = Failure::from(error);
                // A row was not the one we know.
                if failure.blames_request { Ok(None) } else { Err(failure.into()) }
            }
            Err(_) => Err(in_doubt(format!("no answer within {patience:?}"))),
        }
    }
}

/// Decides a group by what is known; `None` if that does not suffice.
fn plan(jobs: &[Job], known: &Known, left: Left, store_ms: i64) -> Option<Plan> {
    let simple = jobs.iter().enumerate().map(|(at, job)| Some((at, simple(&job.request)?)));
    let mut commits = simple.collect::<Option<Vec<_>>>()?;
    // They all wait at the same time, so any order will do; this is the one in which rows are locked.
    commits.sort_unstable_by_key(|(_, (_, put))| &put.key);
    if commits.windows(2).any(|pair| pair[0].1.1.key == pair[1].1.1.key) {
        return None;
    }
    let store_ms = store_ms.max(left.head.clock_last_ms);
    let now = Now { store_ms, wall_ms: store_ms - left.head.clock_offset_ms };
    let mut revision = unsigned(left.head.revision);
    let (mut steps, mut writers) = (Vec::new(), Vec::new());
    let mut answers: Vec<_> = jobs.iter().map(|_| None).collect();
    for (at, (commit, put)) in commits {
        let (row, by) = known.row(&put.key)?;
        if row.object.name != put.name {
            return None;
        }
        let Decision { committed, steps: mut one, .. } =
            decide(&mut Only(row), commit, now, revision).ok()?;
        revision = committed.revision?;
        steps.append(&mut one);
        writers.push(*by);
        answers[at] = Some(Ok(committed));
    }
    let answers = answers.into_iter().collect::<Option<Vec<_>>>()?;
    let head = Head { revision: signed(revision), clock_last_ms: store_ms, ..left.head };
    Some(Plan { answers, steps, writers, head })
}

/// The put of a commit that consists of one, without a time to live.
fn simple(work: &Work) -> Option<(&Commit, &Put)> {
    let Work::Commit(commit) = work else { return None };
    // Named in full: whatever a commit may hold one day, it is not simple until somebody says so here.
    let Commit { checks, writes, attachments } = commit;
    match (&checks[..], &writes[..], &attachments[..]) {
        ([], [Write::Put(put)], []) if put.ttl.is_none() => Some((commit, put)),
        _ => None,
    }
}

/// All that a simple put needs to see: the row it replaces, which has the name that is asked for.
struct Only<'a>(&'a Row);

impl View for Only<'_> {
    fn row(&mut self, _: &Key) -> Result<Option<Row>> {
        Ok(Some(self.0.clone()))
    }

    fn named(&mut self, _: &str, _: &str) -> Result<Option<Row>> {
        Ok(Some(self.0.clone()))
    }
}
