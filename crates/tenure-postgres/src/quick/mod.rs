//! A group of commits in one exchange, without reading anything first.
//!
//! As long as nobody else writes to the database, this process knows what is in the rows that it wrote
//! itself. Then it can decide a group before it asks the server, and send one statement that locks
//! the counter, has the server confirm everything the decisions were built on, writes, and commits:
//!
//! * the counter row is the very version that this process left, so nobody has drawn a revision,
//!   corrected the clock or raised the writer level since;
//! * a row that is replaced is the very version that this process wrote;
//! * a row that is removed has the revision that this process gave it, and its life is not over. That
//!   is for the server to say: a touch may have changed it since;
//! * a row that is inserted, or said to be absent, is not there.
//!
//! If any of it does not hold, nothing happens, and the group goes the ordinary way with fresh rows.
//! So does every group that is not of the simplest kind: each commit puts or deletes one object, and
//! may demand that others are absent. It creates the object, or it replaces one that is known and has
//! no time to live, or it deletes one that is known; it is not refused and changes something.
//!
//! Nothing is decided by the server's clock but that a life is not over. It comes back with the answer,
//! so a step of it is noticed, and recorded before the callers are answered.

mod plan;
mod text;

use std::pin::pin;

use futures::TryStreamExt;
use tenure::Result;
use tokio_postgres::Row as SqlRow;

use self::plan::{Plan, plan};
use self::text::{Parameters, WRITTEN_BY, WROTE_AT};
pub(crate) use self::text::{change_sql, replace_sql};
use crate::error::{Failure, commit_refused};
use crate::group::Job;
use crate::known::{Known, Left};
use crate::time::Sample;
use crate::transaction::{Broken, Outcome, Transaction};

impl Transaction<'_> {
    /// Runs a group in one exchange; `None` if that cannot be done, and then nothing happened.
    pub(crate) async fn run_quickly(
        &self,
        jobs: &[Job],
        known: &mut Known,
    ) -> Result<Option<Outcome>, Broken> {
        let (Some(left), Some(between)) = (known.left(), self.shared.time.between()) else {
            return Ok(None);
        };
        let Some(plan) = plan(jobs, known, left, between) else { return Ok(None) };
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
    async fn send(&self, plan: &Plan<'_>, left: Left) -> Result<Option<SqlRow>, Broken> {
        let parameters = Parameters::new(plan, left, &self.shared.channel);
        let (statement, parameters) = match plan.replaces_only() {
            true => (&self.statements.replace, parameters.of_replace()),
            false => (&self.statements.change, parameters.of_change()),
        };
        let exchange = async {
            let mut rows = pin!(self.client.query_raw(statement, parameters).await?);
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
                // A row was not as we know it.
                if failure.blames_request { Ok(None) } else { Err(failure.into()) }
            }
            Err(_) => Err(in_doubt(format!("no answer within {patience:?}"))),
        }
    }
}
