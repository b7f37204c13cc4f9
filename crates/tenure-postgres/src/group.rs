//! The one place that changes objects: commits, grouped.
//!
//! A worker takes all that waits and runs it as one transaction with independent outcomes; see
//! [`crate::transaction`]. Callers are answered when the server has flushed it. If it fails before the
//! `COMMIT` was sent, nothing was applied: the group is tried again a few times, and if one request
//! made the server choke, each alone.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::decide::Step;
use tenure::store::{Commit, Committed};
use tenure::{Error, Key, Result};

use crate::BACKEND;
use crate::connection::{Role, Session};
use crate::error::commit_unanswered;
use crate::known::{Known, Left};
use crate::queue::{Most, Waiting};
use crate::shared::Shared;
use crate::transaction::{Broken, Outcome, Statements, Transaction, connect};

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
pub(crate) type Job = Waiting<Work, Result<Committed>>;

/// One worker with its own session.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    session: Option<(Session, Statements, Known)>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, session: None }
    }

    /// Works until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(jobs) = shared.commits.take(MOST).await {
            self.work_off(jobs).await;
        }
    }

    async fn work_off(&mut self, jobs: Vec<Job>) {
        match self.attempt(&jobs).await {
            Ok(outcome) => {
                self.shared.pump.committed(&outcome.steps);
                for (job, answer) in jobs.into_iter().zip(outcome.answers) {
                    job.answer(answer);
                }
                self.learn(&outcome.steps, outcome.left);
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
            Err(Broken::InDoubt { why, changed }) => {
                tracing::warn!(why, "the outcome of a group of commits is unknown");
                for (job, changed) in jobs.into_iter().zip(changed) {
                    job.answer(Err(if changed {
                        commit_unanswered(&why)
                    } else {
                        Error::unavailable(BACKEND, &why)
                    }));
                }
            }
        }
    }

    /// Runs one job; true if the store itself is at fault, so that trying the others is pointless.
    async fn alone(&mut self, job: Job) -> bool {
        let jobs = vec![job];
        let (answer, at_fault) = match self.attempt(&jobs).await {
            Ok(mut outcome) => {
                self.shared.pump.committed(&outcome.steps);
                self.learn(&outcome.steps, outcome.left);
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

    /// Runs a group, again if it is certain that nothing was applied and another attempt may help.
    async fn attempt(&mut self, jobs: &[Job]) -> Result<Outcome, Broken> {
        for attempt in 1.. {
            let error = match self.once(jobs).await {
                Err(Broken::Before(failure)) => failure,
                other => return other,
            };
            // A refused statement leaves the transaction open; a fresh session is the simple cure.
            self.session = None;
            if !error.transient || attempt >= ATTEMPTS {
                return Err(error.into());
            }
            tracing::debug!(error = %error.error, attempt, "group of commits starts over");
            self.shared.time.sleep(PAUSE * attempt).await;
        }
        unreachable!("the loop ends by returning")
    }

    /// Done when nobody waits for it any more.
    fn learn(&mut self, steps: &[Step], left: Option<Left>) {
        if let (Some((_, _, known)), Some(left)) = (&mut self.session, left) {
            known.learn(steps, left);
        }
    }

    async fn once(&mut self, jobs: &[Job]) -> Result<Outcome, Broken> {
        let (session, statements, mut known) = match self.session.take() {
            Some(ready) if !ready.0.client.is_closed() => ready,
            _ => {
                let (session, statements) = connect(&self.shared, Role::Commit).await?;
                (session, statements, Known::default())
            }
        };
        let (shared, client) = (&self.shared, &session.client);
        let transaction = Transaction { shared, client, statements: &statements, joins: false };
        let outcome = match transaction.run_quickly(jobs, &mut known).await? {
            Some(outcome) => outcome,
            None => {
                let works: Vec<_> = jobs.iter().map(|job| &job.request).collect();
                transaction.run(&works, &mut known).await?
            }
        };
        self.session = Some((session, statements, known));
        Ok(outcome)
    }
}
