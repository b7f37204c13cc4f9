//! The one task that writes objects, one group of commits after the other.
//!
//! It takes all that waits and runs it as one transaction in which each commit has an outcome of its own: in
//! one exchange if it can ([`crate::commit::in_flight`]), else in two ([`crate::commit::transaction`]). Callers are
//! answered when the server has flushed it. If it fails before the `COMMIT` was sent, nothing was applied: the
//! group is tried again a few times, and if one request is to blame, each is tried alone.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::group_queue::{Most, Queued};
use tenure::store::{Commit, Committed};
use tenure::{Error, Key, Result};

use crate::BACKEND;
use crate::commit::in_flight::{Flights, Ready};
use crate::commit::known::Known;
use crate::commit::pace::Pace;
use crate::commit::transaction::{Broken, Outcome, Transaction, connect};
use crate::connect::session::Role;
use crate::error::commit_unanswered;
use crate::gather::{Course, gather};
use crate::shared::Shared;

/// One group at most: bigger ones gain nothing and make everybody wait.
const MOST: Most = Most { requests: 512, bytes: 4 * 1024 * 1024 };
/// How often a group is tried when it is certain that nothing was applied.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What can be asked of the workers.
pub(crate) enum Work {
    /// A caller's commit.
    Commit(Commit),
    /// Remove those of these that expired; nothing else expires before `next_expiry_ms`, unless the
    /// record is no longer at `claimed_ms`, because somebody wrote what expires sooner.
    Sweep { keys: Vec<Key>, claimed_ms: i64, next_expiry_ms: i64 },
    /// Write down the store's time, and that something may expire at the instant given.
    Record { next_expiry_ms: i64 },
}

/// A request before the workers.
pub(crate) type Job = Queued<Work, Result<Committed>>;

/// One worker with its own session.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Option<(Arc<Ready>, Known)>,
    pub(crate) flights: Flights,
    pub(crate) pace: Pace,
}

/// A worker that panics answers nobody any more: those who wait are told so, and later callers refused.
impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.commits.abandon();
    }
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, session: None, flights: Flights::default(), pace: Pace::default() }
    }

    /// Works until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut open = true;
        while open || !self.flights.is_empty() {
            let halves = self.pace.halves();
            let course = Course { under_way: self.flights.jobs(), halves };
            let room = open && self.flights.len() < if halves { 2 } else { 1 };
            tokio::select! {
                biased;
                Some(landed) = self.flights.next() => self.land(landed).await,
                jobs = gather(&shared.commits, MOST, course), if room => match jobs {
                    Some(jobs) => self.set_off(jobs).await,
                    None => open = false,
                },
            }
        }
    }

    /// Runs a group by reading first.
    pub(crate) async fn work_off(&mut self, mut jobs: Vec<Job>) {
        match self.attempt(&mut jobs).await {
            Ok(outcome) => {
                outcome.tell(&self.shared.pump);
                let Outcome { answers, steps, left } = outcome;
                for (job, answer) in jobs.into_iter().zip(answers) {
                    job.answer(answer);
                }
                // Done when nobody waits for it any more.
                if let (Some((_, known)), Some((head, by))) = (&mut self.session, left) {
                    known.learn(&steps, head, by);
                }
            }
            Err(Broken::Before(failure)) if jobs.len() > 1 && failure.blames_request => {
                // One request may have spoilt it for all; alone, each gets its own answer.
                tracing::debug!(error = %failure.error, "group failed; trying one by one");
                let mut jobs = jobs.into_iter();
                for job in jobs.by_ref() {
                    if Box::pin(self.alone(job)).await {
                        break;
                    }
                }
                jobs.for_each(|job| job.answer(Err(failure.error.clone())));
            }
            Err(Broken::Before(failure)) => {
                tracing::warn!(error = %failure.error, "commit failed; nothing was applied");
                jobs.into_iter().for_each(|job| job.answer(Err(failure.error.clone())));
            }
            Err(Broken::InDoubt { why, changed }) => leave_in_doubt(jobs, &why, changed),
        }
    }

    /// Runs one job; true if the store itself is at fault, so that trying the others is pointless.
    async fn alone(&mut self, job: Job) -> bool {
        let mut jobs = vec![job];
        let (answer, at_fault) = match self.attempt(&mut jobs).await {
            Ok(mut outcome) => {
                outcome.tell(&self.shared.pump);
                if let (Some((_, known)), Some((head, by))) = (&mut self.session, outcome.left) {
                    known.learn(&outcome.steps, head, by);
                }
                let answer = outcome.answers.pop();
                (answer.unwrap_or_else(|| Err(commit_unanswered("no answer"))), false)
            }
            Err(Broken::Before(failure)) => {
                let at_fault = !failure.blames_request;
                (Err(failure.error), at_fault)
            }
            Err(Broken::InDoubt { why, .. }) => (Err(commit_unanswered(&why)), true),
        };
        jobs.into_iter().for_each(|job| job.answer(answer.clone()));
        at_fault
    }

    /// Runs a group, again if it is certain that nothing was applied and another attempt may help. What
    /// nobody waits for any more is left out: it would come as a surprise.
    async fn attempt(&mut self, jobs: &mut Vec<Job>) -> Result<Outcome, Broken> {
        let mut locks = false;
        for attempt in 1.. {
            jobs.retain(|job| !job.is_abandoned());
            if jobs.is_empty() {
                return Ok(Outcome { answers: Vec::new(), steps: Vec::new(), left: None });
            }
            let error = match self.once(jobs, locks).await {
                Err(Broken::Before(failure)) => failure,
                other => return other,
            };
            // A refused statement leaves the transaction open; a fresh session is the simple cure.
            self.session = None;
            if !locks && error.moved {
                tracing::debug!(
                    "a row was changed by another program; again, with all of them locked"
                );
                locks = true;
                continue;
            }
            if !error.transient || attempt >= ATTEMPTS {
                return Err(error.into());
            }
            tracing::debug!(error = %error.error, attempt, "group of commits starts over");
            self.shared.time.sleep(PAUSE * attempt).await;
        }
        unreachable!("the loop ends by returning")
    }

    async fn once(&mut self, jobs: &[Job], locks: bool) -> Result<Outcome, Broken> {
        let (ready, mut known) = match self.session.take() {
            Some(open) if !open.0.session.client.is_closed() => open,
            _ => {
                let (session, statements) = connect(&self.shared, Role::Commit).await?;
                (Arc::new(Ready { session, statements }), Known::default())
            }
        };
        let (client, statements) = (&ready.session.client, &ready.statements);
        let shared = &self.shared;
        let transaction = Transaction { shared, client, statements, joins: false, locks };
        let works: Vec<_> = jobs.iter().map(|job| &job.request).collect();
        let outcome = transaction.run(&works, &mut known).await?;
        self.session = Some((ready, known));
        Ok(outcome)
    }
}

/// Tells the callers of a group that nobody knows what became of it.
pub(crate) fn leave_in_doubt(jobs: Vec<Job>, why: &str, changed: Vec<bool>) {
    tracing::warn!(why, "the outcome of a group of commits is unknown");
    for (job, changed) in jobs.into_iter().zip(changed) {
        job.answer(Err(match changed {
            true => commit_unanswered(why),
            false => Error::unavailable(BACKEND, why),
        }));
    }
}
