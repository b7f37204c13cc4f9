//! A group of commits in one exchange with the server.
//!
//! As long as nobody else writes, this process knows the rows that it wrote itself; others it reads first,
//! without a lock. So it can decide a group before it asks the server. It sends one statement that locks the
//! counter, has the server confirm what the decisions were built on, writes, and commits:
//!
//! * the counter row is the very version that this process left, so nobody has drawn a revision, corrected
//!   the clock or raised the writer level since;
//! * a row that is replaced is the very version that this process wrote or read;
//! * a row that is removed has the revision that is known, and its life is not over. The server judges that,
//!   since a touch may have changed it;
//! * a row that is inserted, or said to be absent, is not there, and a new name is not taken.
//!
//! If any of it does not hold, the statement changes nothing and the group goes the ordinary way. So does
//! every group that is not of the simplest kind: each commit puts or deletes one object, and may demand that
//! others are absent. It creates the object, or replaces a known one without a time to live, or deletes a known
//! one; it is not refused and changes something.
//!
//! The server's clock decides only that a life is not over. It comes back with the answer, so a step of it is
//! noticed, and recorded before the callers are answered.
//!
//! A second group can be sent before the first is answered, if it is about other objects. It is built on the
//! counter as the first will leave it, so if the first fails, so does the second.

mod look;
mod plan;
mod statement;

use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use tenure::Key;
use tokio_postgres::Row as SqlRow;

pub(crate) use self::look::{Seen, look, look_sql};
pub(crate) use self::plan::Plan;
use self::statement::{Parameters, WRITTEN_BY, WROTE_AT};
pub(crate) use self::statement::{change_sql, replace_sql};
use crate::commit::committer::Job;
use crate::commit::in_flight::Ready;
use crate::commit::known::{Known, Left};
use crate::commit::transaction::Broken;
use crate::error::{Failure, commit_refused, refused};
use crate::shared::Shared;
use crate::tid::Xid;
use crate::time::Sample;

/// A group that was sent the short way, and what became of it.
pub(crate) struct Landed {
    pub(crate) jobs: Vec<Job>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) end: End,
}

/// What became of a group.
pub(crate) enum End {
    /// It is as planned. `stepped` if the server's clock has to be put right.
    Done {
        by: Xid,
        stepped: bool,
    },
    /// What is known is not so; nothing happened.
    Refuted,
    Broken(Broken),
}

/// Why a group cannot be decided.
pub(crate) enum Lack {
    /// Nothing is known of these rows, and a look would help.
    Rows(Vec<Key>),
    /// It is not of the simplest kind, or others are at work.
    All,
}

/// Decides a group by what is known and was seen, and how the counter has to be for it.
pub(crate) fn plan(
    shared: &Shared,
    jobs: &[Job],
    known: &mut Known,
    seen: &Seen,
) -> Result<(Plan, Left), Lack> {
    let left = known.left().ok_or(Lack::All)?;
    let between = shared.time.between().ok_or(Lack::All)?;
    plan::plan(jobs, known, seen, left, between).map(|plan| (plan, left))
}

/// The exchange.
pub(crate) async fn fly(
    shared: Arc<Shared>,
    ready: Arc<Ready>,
    jobs: Vec<Job>,
    plan: Arc<Plan>,
    left: Left,
) -> Landed {
    let sent = shared.time.sent();
    let end = match send(&shared, &ready, &jobs, &plan, left).await {
        Ok(Some(answer)) => {
            let sample = Sample {
                wall_ms: answer.get(WROTE_AT),
                offset_ms: plan.head.clock_offset_ms,
                last_ms: plan.head.clock_last_ms,
            };
            let stepped = shared.time.received(sent, sample).stepped;
            End::Done { by: answer.get(WRITTEN_BY), stepped }
        }
        Ok(None) => End::Refuted,
        Err(broken) => End::Broken(broken),
    };
    Landed { jobs, plan, end }
}

/// `None` if what is known is not so.
async fn send(
    shared: &Shared,
    ready: &Ready,
    jobs: &[Job],
    plan: &Plan,
    left: Left,
) -> Result<Option<SqlRow>, Broken> {
    let Ready { session, statements } = ready;
    let parameters = Parameters::new(plan, jobs, left, &shared.names.commits);
    let replaces = !plan.writers.is_empty();
    let (statement, parameters) = match plan.replaces_only() {
        true => (&statements.replace, parameters.of_replace()),
        false if replaces => (&statements.change, parameters.of_change(true)),
        false => (&statements.come_and_go, parameters.of_change(false)),
    };
    let exchange = async {
        let mut rows = pin!(session.client.query_raw(statement, parameters).await?);
        let answer = rows.try_next().await?;
        // What follows a row is the answer to the commit; without one there is nothing to commit.
        let end = if answer.is_some() { rows.try_next().await } else { Ok(None) };
        Ok::<_, tokio_postgres::Error>((answer, end))
    };
    let patience = shared.connector.options.reply_timeout;
    let in_doubt = |why: String| Broken::InDoubt { why, changed: vec![true; plan.answers.len()] };
    match tokio::time::timeout(patience, exchange).await {
        Ok(Ok((answer, Ok(_)))) => Ok(answer),
        Ok(Ok((_, Err(error)))) if commit_refused(&error) => Err(error.into()),
        Ok(Ok((_, Err(error)))) => Err(in_doubt(error.to_string())),
        Ok(Err(error)) if !refused(&error) => Err(in_doubt(error.to_string())),
        Ok(Err(error)) => {
            let failure = Failure::from(error);
            // Another program changed a row at that very moment.
            if failure.blames_request { Ok(None) } else { Err(failure.into()) }
        }
        Err(_) => Err(in_doubt(format!("no answer within {patience:?}"))),
    }
}
