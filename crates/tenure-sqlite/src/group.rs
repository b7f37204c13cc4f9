//! One transaction for all that waits, in which each request has an outcome of its own.
//!
//! Deciding changes nothing, so a refused commit leaves nothing behind. A commit with the caller's SQL runs in a
//! savepoint and is rolled back alone if that SQL fails. If SQLite gives up the whole transaction over it, or
//! somebody else's index or trigger on `objects` refuses a write, that commit is answered and the others start
//! over. What does not fit into one transaction, such as the deletion of many large objects, goes into the next.

use std::collections::VecDeque;
use std::time::Duration;

use tenure::Result;
use tenure::backend::decide::{Decision, decide};
use tenure::store::{Commit, Committed};

use crate::error::definite;
use crate::guard::SAVEPOINT;
use crate::queue::{Job, Outcome, Request, Requests};
use crate::sql;
use crate::transaction::Transaction;
use crate::writer::Writer;

/// Once callers' SQL has taken so long, the group is flushed and the rest of it waits for the next.
const SQL_TURN: Duration = Duration::from_millis(50);

impl Writer {
    /// Answers everything in the group, in one transaction if it can be.
    pub(crate) fn group(&mut self, group: Vec<Job>, requests: &Requests) {
        let mut waiting = VecDeque::from(group);
        let mut one_by_one = false;
        while !waiting.is_empty() {
            let mut reached = 0usize;
            let result = self.transact(|transaction| {
                let begun = transaction.guard.uptime();
                for job in &mut waiting {
                    reached += 1;
                    let has_sql = job.request().has_sql();
                    transaction.one(job)?;
                    let long = has_sql && transaction.guard.uptime() >= begun + SQL_TURN;
                    if one_by_one || long || transaction.is_full() {
                        break;
                    }
                }
                Ok(())
            });
            let last = reached.saturating_sub(1);
            match result {
                Ok(()) => {
                    let others = waiting.len() - reached + requests.len();
                    self.group_wait.answers(reached, others);
                    waiting.drain(..reached).for_each(|job| job.answer(None));
                }
                // A request broke the transaction and has its answer; nothing was applied, so the
                // others start over without it. Each turn takes one away.
                Err(_) if waiting.get(last).is_some_and(|job| job.broke) => {
                    waiting.remove(last).into_iter().for_each(|job| job.answer(None));
                }
                // A constraint that is looked at only when all is committed: whose is it?
                Err(error) if error.is_refusal() && reached > 1 => one_by_one = true,
                Err(error) => {
                    let concerned = if error.is_refusal() { reached.max(1) } else { waiting.len() };
                    let concerned = waiting.drain(..concerned);
                    concerned.for_each(|job| job.answer(Some(&error)));
                }
            }
        }
    }
}

impl Transaction<'_> {
    /// Decides and applies one request. An error is the transaction's: if the request is to blame
    /// and has its answer, it says so.
    fn one(&mut self, job: &mut Job) -> Result<()> {
        match job.request() {
            Request::Commit(commit) => {
                let has_sql = !commit.attachments.is_empty();
                let outcome = match self.commit(commit) {
                    // Half of it may be there, so the transaction goes, and the others start over.
                    Err(error) if error.is_refusal() => {
                        job.broke = true;
                        job.outcome = Some(Err(error.clone()));
                        return Err(error);
                    }
                    outcome => outcome?,
                };
                // Deciding changes nothing and SQL is rolled back, so what fails there fails alone,
                // unless SQLite gave up the transaction over it.
                job.broke = self.conn.is_autocommit() && has_sql;
                let lost = outcome.as_ref().err().filter(|_| self.conn.is_autocommit()).cloned();
                job.outcome = Some(outcome.map(Outcome::Committed));
                lost.map_or(Ok(()), Err)
            }
            Request::Touch(touches) => {
                let touched = touches.iter().map(|touch| self.touch(touch));
                job.outcome = Some(Ok(Outcome::Touched(touched.collect::<Result<Vec<_>>>()?)));
                Ok(())
            }
        }
    }

    /// The outer error is the transaction's, the inner one is the caller's answer.
    fn commit(&mut self, commit: &Commit) -> Result<Result<Committed>> {
        let (now, head) = (self.now, self.head());
        let decision = match decide(self, commit, now, head) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error)),
        };
        if commit.attachments.is_empty() {
            self.apply(&decision)?;
        } else if let Err(error) = self.apply_with_sql(&decision, commit)? {
            return Ok(Err(error));
        }
        self.keep(decision.steps);
        Ok(Ok(decision.committed))
    }

    fn apply_with_sql(&mut self, decision: &Decision, commit: &Commit) -> Result<Result<()>> {
        self.batch(&format!("SAVEPOINT {SAVEPOINT}"))?;
        self.apply(decision)?;
        if let Err(error) = sql::run(self.conn, self.guard, &commit.attachments) {
            // The rows are as before; what is known of them is not.
            self.known.clear();
            if !self.conn.is_autocommit() {
                self.batch(&format!("ROLLBACK TO {SAVEPOINT}; RELEASE {SAVEPOINT}"))?;
            }
            return Ok(Err(error));
        }
        self.batch(&format!("RELEASE {SAVEPOINT}"))?;
        Ok(Ok(()))
    }

    fn batch(&self, sql: &str) -> Result<()> {
        self.conn.execute_batch(sql).map_err(definite)
    }
}
