//! Groups that were sent and are not answered yet: up to two at a time.
//!
//! While the server works on one group, this process wakes the callers of the other and collects their next
//! requests. The server takes the groups in order, and each confirms what it is built on, so the second never
//! applies without the first; see [`crate::commit::quick`].

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use tenure::clock::{Clock as _, SystemClock};
use tenure::{Error, Key};

use crate::commit::committer::{Committer, Job, leave_in_doubt};
use crate::commit::quick::{End, Lack, Landed, Plan, Seen, fly, look, plan};
use crate::commit::transaction::{Broken, Statements, Transaction};
use crate::connect::session::Session;
use crate::error::Failure;
use crate::tid::Xid;

/// A session that commits.
pub(crate) struct Ready {
    pub(crate) session: Session,
    pub(crate) statements: Statements,
}

/// What was sent and is not answered yet, in order.
#[derive(Default)]
pub(crate) struct Flights {
    answers: FuturesOrdered<BoxFuture<'static, Landed>>,
    plans: VecDeque<Arc<Plan>>,
}

impl Flights {
    pub(crate) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.plans.len()
    }

    /// Commits under way.
    pub(crate) fn jobs(&self) -> usize {
        self.plans.iter().map(|plan| plan.answers.len()).sum()
    }

    /// The next answer; `None` if none is expected. Nothing is lost if this is dropped before it is
    /// ready.
    pub(crate) async fn next(&mut self) -> Option<Landed> {
        let landed = self.answers.next().await?;
        self.plans.pop_front();
        Some(landed)
    }
}

/// A group that cannot go the short way, and the rows that it would have to know for that.
struct Grounded {
    jobs: Vec<Job>,
    unknown: Vec<Key>,
}

impl Grounded {
    fn for_good(jobs: Vec<Job>) -> Self {
        Self { jobs, unknown: Vec::new() }
    }
}

impl Committer {
    /// Sends a group the short way, if it can be; else everything under way is awaited first.
    pub(crate) async fn set_off(&mut self, jobs: Vec<Job>) {
        let Err(mut grounded) = self.try_setting_off(jobs, &Seen::new()) else { return };
        if !self.flights.is_empty() {
            while let Some(landed) = self.flights.next().await {
                self.land(landed).await;
            }
            // By now more may be known.
            match self.try_setting_off(grounded.jobs, &Seen::new()) {
                Ok(()) => return,
                Err(still) => grounded = still,
            }
        }
        let Grounded { mut jobs, unknown } = grounded;
        let seen = match self.look(unknown).await {
            Ok(seen) => seen,
            Err(unanswered) => {
                return jobs.into_iter().for_each(|job| job.answer(Err(unanswered.clone())));
            }
        };
        // That took a while.
        jobs.retain(|job| !job.is_abandoned());
        if seen.is_empty() || jobs.is_empty() {
            return self.work_off(jobs).await;
        }
        if let Err(grounded) = self.try_setting_off(jobs, &seen) {
            if let Some((_, known)) = &mut self.session {
                known.saw(seen);
            }
            self.work_off(grounded.jobs).await;
        }
    }

    /// Gives the group back if it cannot go the short way.
    fn try_setting_off(&mut self, jobs: Vec<Job>, seen: &Seen) -> Result<(), Grounded> {
        let Some((ready, known)) = &mut self.session else { return Err(Grounded::for_good(jobs)) };
        if ready.session.client.is_closed() {
            return Err(Grounded::for_good(jobs));
        }
        let (plan, left) = match plan(&self.shared, &jobs, known, seen) {
            Ok(planned) => planned,
            Err(Lack::Rows(unknown)) => return Err(Grounded { jobs, unknown }),
            Err(Lack::All) => return Err(Grounded::for_good(jobs)),
        };
        if self.flights.plans.iter().any(|other| plan.meets(&jobs, other)) {
            return Err(Grounded::for_good(jobs));
        }
        known.ahead(plan.head);
        let plan = Arc::new(plan);
        self.flights.plans.push_back(Arc::clone(&plan));
        let flight = fly(Arc::clone(&self.shared), Arc::clone(ready), jobs, plan, left);
        self.flights.answers.push_back(Box::pin(flight));
        Ok(())
    }

    /// Rows that nothing is known of, as they are now; nothing if there are none, or if others are at
    /// work. A server that does not answer is not asked again.
    async fn look(&mut self, unknown: Vec<Key>) -> Result<Seen, Error> {
        let Some((ready, known)) = &mut self.session else { return Ok(Seen::new()) };
        if unknown.is_empty() {
            return Ok(Seen::new());
        }
        let Some(left) = known.left() else { return Ok(Seen::new()) };
        let patience = self.shared.connector.options.reply_timeout;
        match tokio::time::timeout(patience, look(ready, left, unknown)).await {
            Ok(Ok(Some(seen))) => Ok(seen),
            Ok(Ok(None)) => {
                known.refuted();
                Ok(Seen::new())
            }
            Ok(Err(failure)) => {
                tracing::debug!(error = %failure.error, "cannot look before a commit");
                self.session = None;
                Ok(Seen::new())
            }
            Err(_) => {
                self.session = None;
                Err(Failure::timeout("a commit", patience).error)
            }
        }
    }

    /// Sees to a group that was answered.
    pub(crate) async fn land(&mut self, landed: Landed) {
        if let Landed { jobs, plan, end: End::Done { by, stepped: false } } = landed {
            return self.done(jobs, plan, Some(by));
        }
        // Something is odd, and what is under way behind it is built on it.
        let mut all = vec![landed];
        while let Some(next) = self.flights.next().await {
            all.push(next);
        }
        if all.iter().any(|landed| matches!(landed.end, End::Done { stepped: true, .. })) {
            self.record_step().await;
        }
        if all.iter().any(|landed| matches!(landed.end, End::Refuted))
            && let Some((_, known)) = &mut self.session
        {
            known.refuted();
        }
        let mut again = Vec::new();
        for Landed { jobs, plan, end } in all {
            match end {
                End::Done { .. } => self.done(jobs, plan, None),
                End::Refuted => again.push(jobs),
                // Nothing was applied; a fresh session may fare better.
                End::Broken(Broken::Before(failure)) => {
                    tracing::debug!(error = %failure.error, "a group of commits starts over");
                    self.session = None;
                    again.push(jobs);
                }
                End::Broken(Broken::InDoubt { why, changed }) => {
                    self.session = None;
                    leave_in_doubt(jobs, &why, changed);
                }
            }
        }
        for jobs in again {
            self.work_off(jobs).await;
        }
    }

    /// Answers the callers; what was written is kept in mind if `by` says who did.
    fn done(&mut self, jobs: Vec<Job>, plan: Arc<Plan>, by: Option<Xid>) {
        self.shared.pump.committed(&plan.steps, &plan.head);
        let commits = jobs.len();
        let Plan { answers, steps, head, .. } = Arc::unwrap_or_clone(plan);
        for (job, answer) in jobs.into_iter().zip(answers) {
            job.answer(answer);
        }
        // Done when nobody waits for it any more.
        if let (Some((_, known)), Some(by)) = (&mut self.session, by) {
            known.arrived(&steps, head, by);
        }
        self.pace.done(SystemClock.uptime(), commits, self.flights.jobs());
    }

    /// The server's clock was stepped: the offset must be put right for everybody. What is done is
    /// done, whatever comes of this.
    async fn record_step(&mut self) {
        let Some((ready, known)) = &mut self.session else { return };
        known.forget();
        let (client, statements) = (&ready.session.client, &ready.statements);
        let shared = &self.shared;
        let transaction = Transaction { shared, client, statements, joins: false, locks: false };
        let done = transaction.run(&[], known).await;
        known.forget();
        if done.is_err() {
            // Whatever state it is in, a transaction may be open there.
            self.session = None;
        }
    }
}
