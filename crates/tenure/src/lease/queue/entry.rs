//! A place in the queue.
//!
//! Where commits may concern several objects, a waiter is a small object of its own whose creation
//! revision is its place, and a marker says that there is a queue at all. A caller that comes later and
//! finds the marker joins the queue. Elsewhere the queue is known to this process alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::acquire::claim::{Claim, granted};
use crate::lease::acquire::commit::{LATE_LOOKS, LOOK_AGAIN, withdraw};
use crate::lease::inner::Inner;
use crate::lease::queue::wakeup::{Wake, Wakeup};
use crate::lease::record::{LEASE, WAITER, WaiterRecord, encode, tagged};
use crate::lease::{Terms, Wait};
use crate::store::{Commit, Expect, Put, Query};
use crate::{Error, Key, Result};

/// A waiter's object outlives its wait by this much, so that it does not lose its place by a hair.
const SPARE: Duration = Duration::from_secs(60);
/// The life of a waiter's object if it waits for as long as it takes. It then queues up again.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// Silent waiters that one commit removes as it passes them by, at most.
const PASSED_BY: usize = 32;

/// A waiter of ours, in the queue until dropped.
pub(crate) struct QueueEntry {
    inner: Arc<Inner>,
    queue: Arc<str>,
    pub(crate) nonce: Arc<str>,
    turn: Arc<Wakeup>,
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

/// The marker that says there is a queue.
pub(crate) fn marker(queue: &str) -> Key {
    Key::new(WAITER, tagged(queue, ""))
}

impl QueueEntry {
    /// Joins the queue, once news of it arrives.
    pub(crate) async fn join(inner: &Arc<Inner>, claim: &dyn Claim, terms: &Terms) -> Result<Self> {
        let queue = claim.queue();
        let nonce = inner.nonce();
        let now = inner.clock.uptime();
        let (turn, served) = inner.with_queue(queue, |queues| {
            let owner = terms.resume.then(|| terms.owner_or(&inner.owner));
            let served = owner.map(|owner| queues.resumes(queue, &nonce, owner));
            (queues.announce(queue, &nonce, now), served)
        });
        inner.metrics.waiting.inc();
        let (inner, queue) = (Arc::clone(inner), Arc::clone(queue));
        // A caller that resumes gets what it was granted when it asks again, while that lives.
        let handed = claim.handed().filter(|_| !terms.resume);
        let (stored, entered) = (false, false);
        // From here on, dropping the entry leaves the queue.
        let mut entry = Self { inner, queue, nonce, turn, served, stored, entered, handed };
        // Only now: the task that works for the queues may end while nobody is in one.
        entry.inner.queues_open().await?;
        let place = if entry.inner.multi() && entry.inner.listens() {
            entry.stored = true;
            // Nobody else can run its hooks.
            let no_hand_over = claim.handed().is_none() || terms.hooks.is_some();
            Some(entry.store(terms, no_hand_over).await?)
        } else {
            None
        };
        entry.entered = true;
        let QueueEntry { inner, queue, nonce, .. } = &entry;
        inner.with_queue(queue, |queues| queues.enter(queue, nonce, place));
        Ok(entry)
    }

    /// The waiter's object.
    pub(crate) fn key(&self) -> Key {
        Key::new(WAITER, tagged(&self.queue, &self.nonce))
    }

    async fn store(&self, terms: &Terms, no_hand_over: bool) -> Result<u64> {
        let inner = &self.inner;
        let limit = inner.store.capabilities().limits.ttl_max;
        let ttl = match terms.wait {
            Wait::No => SPARE,
            Wait::For(wait) => wait.saturating_add(SPARE).min(limit),
            Wait::Forever => LONG.min(limit),
        };
        let timing = terms.timing(&inner.options, inner.store.capabilities());
        let owner = terms.owner_or(&inner.owner);
        let record = WaiterRecord {
            holder: owner.name().into(),
            start: owner.start().into(),
            since_ms: inner.clock.wall_ms(),
            ttl_ms: u64::try_from(timing.ttl.as_millis()).unwrap_or(u64::MAX),
            via: inner.owner.start().into(),
            no_hand_over,
            reapable: terms.reapable,
            metadata: terms.metadata.clone(),
        };
        let waiter = Put::new(self.key(), encode(&record)).expect(Expect::Absent).ttl(ttl);
        // The nonce makes every marker differ from the one before, so that its revision tells whether
        // anybody has joined since.
        let marker =
            Put::new(marker(&self.queue), self.nonce.to_string()).ttl(LONG.max(ttl).min(limit));
        match inner.store.commit(Commit::new().put(waiter).put(marker)).await {
            Ok(committed) => committed.revision.ok_or_else(|| {
                Error::unknown(inner.backend(), "the store did not say what it wrote")
            }),
            Err(error) if error.is_unknown() => match inner.store.get(&self.key()).await? {
                Some(object) => Ok(object.created_revision),
                None => Err(Error::unavailable(inner.backend(), error)),
            },
            Err(error) => Err(error),
        }
    }

    /// Resolves when there is something to do.
    pub(crate) async fn woken(&self) -> Wake {
        self.turn.woken().await
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
        self.inner.with_queue(&self.queue, |queues| {
            queues.get(&self.queue).is_some_and(|queue| !queue.passed_by(&self.nonce, 1).is_empty())
        })
    }

    /// What goes into the commit that takes what was waited for: out of the queue, with those who
    /// were passed by, and with the marker if nobody is left.
    pub(crate) fn leaving(&self, with_marker: bool) -> Commit {
        let mut commit = Commit::new();
        if !self.stored {
            return commit;
        }
        commit = commit.delete(self.key(), Expect::Exists);
        let (marker_at, passed_by) = self.inner.with_queue(&self.queue, |queues| {
            queues.get(&self.queue).map_or((None, Vec::new()), |queue| {
                (queue.marker_if_alone(&self.nonce), queue.passed_by(&self.nonce, PASSED_BY))
            })
        });
        for nonce in passed_by {
            commit = commit.delete(Key::new(WAITER, tagged(&self.queue, &nonce)), Expect::Any);
        }
        if let Some(revision) = marker_at.filter(|_| with_marker) {
            commit = commit.delete(marker(&self.queue), Expect::Revision(revision));
        }
        commit
    }

    /// It was our turn, and it was not to be had. Look again at that instant.
    pub(crate) fn stay(&self, look_again: Duration) {
        self.inner.with_queue(&self.queue, |queues| {
            if let Some(queue) = queues.get(&self.queue) {
                queue.tried(&self.nonce);
                queue.busy_after_try(look_again);
            }
        });
    }

    /// We have it, and with it the store has forgotten our place. `more` calls the next in the queue.
    pub(crate) fn done(mut self, more: bool) {
        self.stored = false;
        let recheck = self.inner.clock.uptime() + self.inner.options.recheck_every;
        self.inner.with_queue(&self.queue, |queues| {
            if let Some(queue) = queues.get(&self.queue)
                && !more
            {
                queue.busy_after_try(recheck);
            }
        });
    }

    /// The store has forgotten our place; there is nothing to remove.
    pub(crate) fn gone(mut self) {
        self.stored = false;
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let leaving = self.stored.then(|| (self.leaving(true), self.leaving(false)));
        self.inner.metrics.waiting.dec();
        self.inner.with_queue(&self.queue, |queues| queues.leave(&self.queue, &self.nonce));
        let Some((with_marker, without)) = leaving else { return };
        let (inner, entered) = (Arc::clone(&self.inner), self.entered);
        let (nonce, handed) = (Arc::clone(&self.nonce), self.handed.take());
        let (with_marker, without) =
            (only_deletes_of_ours(with_marker), only_deletes_of_ours(without));
        self.inner.clean_up(async move {
            let (mut looks, mut failures) = (0, 0);
            while looks < LATE_LOOKS && failures < FAILURES {
                let tries: u32 = looks + failures;
                inner.clock.sleep((LOOK_AGAIN * tries * tries).min(PAUSE_MAX)).await;
                match leave(&inner, [&with_marker, &without], &handed, &nonce).await {
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

/// Removes a place, with the marker or without it. Whether it was there.
async fn leave(
    inner: &Inner,
    commits: [&Commit; 2],
    handed: &Option<Query>,
    nonce: &str,
) -> Result<bool> {
    let [with_marker, without] = commits;
    // If the marker was renewed meanwhile, somebody else will remove it.
    if inner.store.commit(with_marker.clone()).await.is_ok() {
        return Ok(true);
    }
    match inner.store.commit(without.clone()).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => decline(inner, handed, nonce).await.map(|()| false),
        Err(error) => Err(error),
    }
}

/// The place is gone: perhaps because of a hand-over, to a waiter that is no more.
async fn decline(inner: &Inner, handed: &Option<Query>, nonce: &str) -> Result<()> {
    let Some(among) = handed else { return Ok(()) };
    let Some(info) = granted(inner, among, nonce).await? else { return Ok(()) };
    tracing::info!(lease = %info.id, holder = %info.holder, "handed over too late; letting go");
    withdraw(inner, &[Key::new(LEASE, info.id)], nonce).await
}

/// Leaving empty-handed passes nobody by.
fn only_deletes_of_ours(mut commit: Commit) -> Commit {
    commit.writes.retain(|write| write.expect() != Expect::Any);
    commit
}
