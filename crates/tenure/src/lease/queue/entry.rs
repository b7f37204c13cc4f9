//! A place in line.
//!
//! Where commits may concern several objects, a waiter is a small object of its own whose creation
//! revision is its place, and a mark says that there is a line at all; whoever comes later and finds
//! the mark queues up. Elsewhere the line is known to this process alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::acquire::claim::{Claim, granted};
use crate::lease::acquire::commit::{LATE_LOOKS, LOOK_AGAIN, let_go};
use crate::lease::inner::Agent;
use crate::lease::queue::wakeup::{Cue, Turn};
use crate::lease::record::{LEASE, WAITER, WaiterRecord, encode, tagged};
use crate::lease::{Terms, Wait};
use crate::store::{Commit, Expect, Put, Query};
use crate::{Error, Key, Result};

/// A waiter's object outlives its wait by this much, so that it does not lose its place by a hair.
const SPARE: Duration = Duration::from_secs(60);
/// The life of a waiter's object if it waits for as long as it takes. It then queues up again.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// Silent waiters removed by whoever passes them by, at most.
const PASSED_BY: usize = 32;

/// A waiter of ours, in line until dropped.
pub(crate) struct Ticket {
    agent: Arc<Agent>,
    line: Arc<str>,
    pub(crate) nonce: Arc<str>,
    turn: Arc<Turn>,
    /// Tells that the owner got what it waits for, by another request of its own.
    served: Option<Arc<Notify>>,
    /// The store knows of it, or will.
    stored: bool,
    /// The store has said so.
    entered: bool,
    /// Among which leases a hand-over may grant one that nobody would know of if we gave up.
    handed: Option<Query>,
}

/// A place that a waiter leaves behind is in the way of others, and may be handed a lease. So a store that
/// cannot be reached is asked again, so often,
const FAILURES: u32 = 12;
/// with pauses of this much at the most: about half a minute in all.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The mark that says there is a line.
pub(crate) fn mark(line: &str) -> Key {
    Key::new(WAITER, tagged(line, ""))
}

impl Ticket {
    /// Joins the line, once news of it arrives.
    pub(crate) async fn join(agent: &Arc<Agent>, claim: &dyn Claim, terms: &Terms) -> Result<Self> {
        let line = claim.line();
        let nonce = agent.nonce();
        let now = agent.clock.uptime();
        let (turn, served) = agent.with_line(line, |lines| {
            let owner = terms.resume.then(|| terms.owner_or(&agent.owner));
            let served = owner.map(|owner| lines.resumes(line, &nonce, owner));
            (lines.announce(line, &nonce, now), served)
        });
        agent.metrics.waiting.inc();
        let (agent, line) = (Arc::clone(agent), Arc::clone(line));
        // Whoever may ask again gets then what it was granted, for as long as that lives.
        let handed = claim.handed().filter(|_| !terms.resume);
        let (stored, entered) = (false, false);
        // From here on, dropping the ticket leaves the line.
        let mut ticket = Self { agent, line, nonce, turn, served, stored, entered, handed };
        // Only now: whoever works for the lines may leave as long as nobody is in one.
        ticket.agent.lines_open().await?;
        let place = if ticket.agent.multi() && ticket.agent.listens() {
            ticket.stored = true;
            // Nobody else can run its hooks.
            let no_hand_over = claim.handed().is_none() || terms.hooks.is_some();
            Some(ticket.store(terms, no_hand_over).await?)
        } else {
            None
        };
        ticket.entered = true;
        let Ticket { agent, line, nonce, .. } = &ticket;
        agent.with_line(line, |lines| lines.enter(line, nonce, place));
        Ok(ticket)
    }

    /// The waiter's object.
    pub(crate) fn key(&self) -> Key {
        Key::new(WAITER, tagged(&self.line, &self.nonce))
    }

    async fn store(&self, terms: &Terms, no_hand_over: bool) -> Result<u64> {
        let agent = &self.agent;
        let limit = agent.store.capabilities().limits.ttl_max;
        let ttl = match terms.wait {
            Wait::No => SPARE,
            Wait::For(wait) => wait.saturating_add(SPARE).min(limit),
            Wait::Forever => LONG.min(limit),
        };
        let timing = terms.timing(&agent.options, agent.store.capabilities());
        let owner = terms.owner_or(&agent.owner);
        let record = WaiterRecord {
            holder: owner.name().into(),
            start: owner.start().into(),
            since_ms: agent.clock.wall_ms(),
            ttl_ms: u64::try_from(timing.ttl.as_millis()).unwrap_or(u64::MAX),
            via: agent.owner.start().into(),
            no_hand_over,
            reapable: terms.reapable,
            metadata: terms.metadata.clone(),
        };
        let waiter = Put::new(self.key(), encode(&record)).expect(Expect::Absent).ttl(ttl);
        // The nonce makes every mark differ from the one before, so that its revision tells whether
        // anybody has joined since.
        let mark = Put::new(mark(&self.line), self.nonce.to_string()).ttl(LONG.max(ttl).min(limit));
        match agent.store.commit(Commit::new().put(waiter).put(mark)).await {
            Ok(committed) => committed.revision.ok_or_else(|| {
                Error::unknown(agent.backend(), "the store did not say what it wrote")
            }),
            Err(error) if error.is_unknown() => match agent.store.get(&self.key()).await? {
                Some(object) => Ok(object.created_revision),
                None => Err(Error::unavailable(agent.backend(), error)),
            },
            Err(error) => Err(error),
        }
    }

    /// Resolves when there is something to do.
    pub(crate) async fn cue(&self) -> Cue {
        self.turn.cue().await
    }

    /// Resolves when its owner got what it waits for by another request; never if nobody asked.
    pub(crate) async fn served(&self) {
        match &self.served {
            Some(served) => served.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Whether others are still ahead of us.
    pub(crate) fn passes_others(&self) -> bool {
        self.agent.with_line(&self.line, |lines| {
            lines.get(&self.line).is_some_and(|line| !line.passed_by(&self.nonce, 1).is_empty())
        })
    }

    /// What goes into the commit that takes what was waited for: out of the line, with those who
    /// were passed by, and with the mark if nobody is left.
    pub(crate) fn leaving(&self, with_mark: bool) -> Commit {
        let mut commit = Commit::new();
        if !self.stored {
            return commit;
        }
        commit = commit.delete(self.key(), Expect::Exists);
        let (mark_at, passed_by) = self.agent.with_line(&self.line, |lines| {
            lines.get(&self.line).map_or((None, Vec::new()), |line| {
                (line.mark_if_alone(&self.nonce), line.passed_by(&self.nonce, PASSED_BY))
            })
        });
        for nonce in passed_by {
            commit = commit.delete(Key::new(WAITER, tagged(&self.line, &nonce)), Expect::Any);
        }
        if let Some(revision) = mark_at.filter(|_| with_mark) {
            commit = commit.delete(mark(&self.line), Expect::Revision(revision));
        }
        commit
    }

    /// It was our turn, and it was not to be had. Look again at that instant.
    pub(crate) fn stay(&self, look_again: Duration) {
        self.agent.with_line(&self.line, |lines| {
            if let Some(line) = lines.get(&self.line) {
                line.tried(&self.nonce);
                line.busy_after_try(look_again);
            }
        });
    }

    /// We have it, and with it the store has forgotten our place. `more` calls the next in line.
    pub(crate) fn done(mut self, more: bool) {
        self.stored = false;
        let recheck = self.agent.clock.uptime() + self.agent.options.recheck_every;
        self.agent.with_line(&self.line, |lines| {
            if let Some(line) = lines.get(&self.line)
                && !more
            {
                line.busy_after_try(recheck);
            }
        });
    }

    /// The store has forgotten our place; there is nothing to remove.
    pub(crate) fn gone(mut self) {
        self.stored = false;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let leaving = self.stored.then(|| (self.leaving(true), self.leaving(false)));
        self.agent.metrics.waiting.dec();
        self.agent.with_line(&self.line, |lines| lines.leave(&self.line, &self.nonce));
        let Some((with_mark, without)) = leaving else { return };
        let (agent, entered) = (Arc::clone(&self.agent), self.entered);
        let (nonce, handed) = (Arc::clone(&self.nonce), self.handed.take());
        let (with_mark, without) = (only_deletes_of_ours(with_mark), only_deletes_of_ours(without));
        self.agent.tie_up(async move {
            let (mut looks, mut failures) = (0, 0);
            while looks < LATE_LOOKS && failures < FAILURES {
                let tries: u32 = looks + failures;
                agent.clock.sleep((LOOK_AGAIN * tries * tries).min(PAUSE_MAX)).await;
                match leave(&agent, [&with_mark, &without], &handed, &nonce).await {
                    Ok(true) => return,
                    // If we left while joining, our place may still be on its way to the store.
                    Ok(false) if !entered => looks += 1,
                    Ok(false) => return,
                    Err(error) => {
                        tracing::debug!(%error, "a waiter's place may stay for a while");
                        failures += 1;
                    }
                }
            }
        });
    }
}

/// Removes a place, with the mark or without it. Whether it was there.
async fn leave(
    agent: &Agent,
    commits: [&Commit; 2],
    handed: &Option<Query>,
    nonce: &str,
) -> Result<bool> {
    let [with_mark, without] = commits;
    // If the mark was renewed meanwhile, somebody else will remove it.
    if agent.store.commit(with_mark.clone()).await.is_ok() {
        return Ok(true);
    }
    match agent.store.commit(without.clone()).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => decline(agent, handed, nonce).await.map(|()| false),
        Err(error) => Err(error),
    }
}

/// The place is gone: perhaps because of a hand-over, to a waiter that is no more.
async fn decline(agent: &Agent, handed: &Option<Query>, nonce: &str) -> Result<()> {
    let Some(among) = handed else { return Ok(()) };
    let Some(info) = granted(agent, among, nonce).await? else { return Ok(()) };
    tracing::info!(lease = %info.id, holder = %info.holder, "handed over too late; letting go");
    let_go(agent, &[Key::new(LEASE, info.id)], nonce).await
}

/// Leaving empty-handed passes nobody by.
fn only_deletes_of_ours(mut commit: Commit) -> Commit {
    commit.writes.retain(|write| write.expect() != Expect::Any);
    commit
}
