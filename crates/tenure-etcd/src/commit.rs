//! The way of a commit: guess or read, decide, and let one transaction confirm it.
//!
//! The decision is the one of all backends. The transaction applies it only if everything it rests on
//! is still so; if not, it brings back what is there instead, and the decision is taken again. A
//! refusal that rests on a guess is told only after a read.
//!
//! What seldom happens is boxed. A commit is a future on the heap, and a small one costs less to make.

use std::sync::atomic::Ordering;

use tenure::backend::decide::{Decision, Now, decide};
use tenure::store::{Commit, Committed};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::confirmed::believed;
use crate::endpoints::{CallGuard, Deadline};
use crate::error::CallError;
use crate::inner::Inner;
use crate::keep_alive::Renewed;
use crate::messages::{ResponseHeader, TxnRequest, TxnResponse, path};
use crate::snapshot::Snapshot;
use crate::txn::{HEAD, Plan, SpareChoice, settled};

/// Others may be faster this often before a commit gives up, if its time is not up first.
const ATTEMPTS: u32 = 1000;

/// Every so often, everything is read anew instead of what a failed transaction brought back.
const LOOK: u32 = 3;

/// How a transaction went.
enum Attempt {
    /// Applied, at this revision.
    Applied(i64),
    /// Not applied: something it rests on is different, and this is how it is.
    Outdated(Snapshot),
    /// Not applied: the connection failed first, or the server would not have it now.
    Failed(Error),
    /// Not applied: a lease it needed is gone.
    LeaseNotFound,
}

impl Inner {
    pub(crate) async fn commit(&self, commit: &Commit) -> Result<Committed> {
        let deadline = self.endpoints.deadline();
        let mut guessed = Snapshot::guess(commit, &self.cache);
        let mut fresh = false;
        let mut failed = None;
        for attempt in 0..ATTEMPTS {
            let mut snapshot = match guessed.take() {
                Some(snapshot) => snapshot,
                None => Box::pin(self.read_snapshot(commit, deadline)).await?,
            };
            let now = Now { store_ms: 0, wall_ms: self.endpoints.options.clock.wall_ms() };
            let decision = match decide(&mut snapshot, commit, now, HEAD) {
                Ok(decision) => decision,
                // What is remembered may be old: look before saying no.
                Err(_) if !snapshot.read => continue,
                Err(error) => return Err(error),
            };
            if snapshot.read && decision.steps.is_empty() && decision.refreshed.is_empty() {
                return Ok(decision.committed);
            }
            let now = self.endpoints.options.clock.uptime();
            let spares = SpareChoice { fresh, deadline, now };
            // Two small boxes are allocated faster than a large one.
            let making = Plan::make(self, commit, &snapshot, &decision, spares);
            let mut plan = Box::pin(making).await?;
            match Box::pin(self.attempt(commit, &mut plan, deadline)).await? {
                Attempt::Applied(revision) => {
                    return Ok(self.applied(plan, decision, revision));
                }
                Attempt::Outdated(present) => {
                    self.put_back(plan);
                    failed = None;
                    // A change of the writer level shows only when everything is read.
                    guessed = (attempt % LOOK != LOOK - 1).then_some(present);
                }
                Attempt::LeaseNotFound => fresh = true,
                Attempt::Failed(error) => {
                    self.put_back(plan);
                    if !Box::pin(self.endpoints.pause(deadline)).await {
                        return Err(error);
                    }
                    failed = Some(error);
                }
            }
            if self.endpoints.time_left(deadline).is_zero() {
                break;
            }
        }
        let reason = "others changed what a commit concerns, again and again; nothing was applied";
        Err(failed.unwrap_or_else(|| Error::unavailable(BACKEND, reason)))
    }

    fn applied(&self, plan: Plan, decision: Decision, revision: i64) -> Committed {
        let Decision { committed, steps, .. } = decision;
        // What was decided is the plan's alone from here on, which completes it in place.
        drop(steps);
        plan.applied(self, revision);
        settled(committed, revision)
    }

    /// Spare leases that certainly were not used.
    fn put_back(&self, plan: Plan) {
        for spare in plan.spares {
            self.leases.put_back(spare);
        }
    }

    async fn read_snapshot(&self, commit: &Commit, deadline: Deadline) -> Result<Snapshot> {
        let success = Snapshot::questions(commit, &self.keys, true);
        let question = TxnRequest { success, ..TxnRequest::default() };
        let answer: TxnResponse = self.nearest().read(path::TXN, question, deadline).await?;
        let snapshot = Snapshot::read(commit, answer.responses, true)?;
        if let Some(writer) = snapshot.writer {
            self.writer.store(writer, Ordering::Release);
        }
        Ok(snapshot)
    }

    /// Sends the transaction and, beside it, the keep-alives of the leases it uses. It counts only
    /// when both are confirmed.
    async fn attempt(
        &self,
        commit: &Commit,
        plan: &mut Plan,
        deadline: Deadline,
    ) -> Result<Attempt> {
        let endpoints = self.nearest();
        let connection = endpoints.connection(deadline).await?;
        let left = endpoints.time_left(deadline);
        let guard = CallGuard::new(endpoints, &connection);
        let writes = plan.writes();
        let sending = connection.call::<_, TxnResponse>(path::TXN, std::mem::take(&mut plan.txn));
        let keeping = async {
            match plan.renewed.as_slice() {
                [] => Vec::new(),
                leases => Box::pin(self.keep_alive(&connection, leases)).await,
            }
        };
        let both = futures::future::join(sending, keeping);
        let answer = tokio::time::timeout(left, both).await;
        guard.answered();
        let late = || CallError::Unknown(format!("no answer within {left:?}"));
        let (answer, renewed) = answer.unwrap_or_else(|_| (Err(late()), Vec::new()));
        let answer = match answer {
            Ok(answer) => answer,
            Err(CallError::LeaseNotFound) => return Ok(Attempt::LeaseNotFound),
            Err(CallError::Final(error)) => return Err(error),
            Err(error) => {
                endpoints.fail_by(&connection, &error);
                let nothing_lost =
                    !writes || matches!(error, CallError::TryElsewhere(_) | CallError::TryLater(_));
                let error = if writes { error.into_write_error() } else { error.into_read_error() };
                return if nothing_lost { Ok(Attempt::Failed(error)) } else { Err(error) };
            }
        };
        if !answer.succeeded {
            return Ok(Attempt::Outdated(Snapshot::read(commit, answer.responses, false)?));
        }
        let header = answer.header.unwrap_or_default();
        if renewed.is_empty() {
            return Ok(Attempt::Applied(header.revision));
        }
        Box::pin(self.confirm(&plan.renewed, renewed, &header, writes, deadline)).await
    }

    /// The transaction was applied; makes sure that the lives it granted are whole.
    async fn confirm(
        &self,
        leases: &[i64],
        renewed: Vec<Result<Renewed, CallError>>,
        header: &ResponseHeader,
        writes: bool,
        deadline: Deadline,
    ) -> Result<Attempt> {
        let renewed = match believed(renewed, header.raft_term) {
            Ok(renewed) => renewed,
            Err(_) => self.keep_alive_for_certain(leases, deadline).await.map_err(|error| {
                Error::unknown(BACKEND, format!("it was written, but with which life? {error}"))
            })?,
        };
        if renewed.iter().all(Result::is_ok) {
            return Ok(Attempt::Applied(header.revision));
        }
        if writes {
            return Err(Error::unknown(BACKEND, "what it wrote expired at that very moment"));
        }
        // Nothing was written, and what was to live on has ended.
        Ok(Attempt::LeaseNotFound)
    }
}
