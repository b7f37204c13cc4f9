//! One try to take what is claimed: planned, committed, and planned again while only the plan was at
//! fault. Nothing but calls of the store, each of which ends in time, and whatever the caller's hooks do.

use std::sync::Arc;

use crate::flaws::{Flaw, planted};
use crate::lease::acquire::claim::{Claim, ConflictKind, Plan, PlanRequest};
use crate::lease::acquire::commit::{Attempt, Taken, adopt, take};
use crate::lease::end::reap::leaves_orphan;
use crate::lease::hold::state::Held;
use crate::lease::hooks::is_worth_asking_again;
use crate::lease::inner::Inner;
use crate::lease::queue::entry::{QueueEntry, marker};
use crate::lease::record::WAITER;
use crate::lease::{Terms, Wait};
use crate::store::Expect;
use crate::{Error, Key, Result};

/// Plans made anew because others were quicker, or hooks asked again because of a conflict.
const REPLANS: u32 = 16;

/// How one try ended.
pub(crate) enum Tried {
    Held(Vec<Arc<Held>>),
    /// This owner has it from before. Whatever place it had in the queue it still has.
    Resumed(Vec<Arc<Held>>),
    Blocked,
    /// The store has forgotten our place in the queue.
    Gone,
    /// Nothing was tried.
    Idle,
}

/// One try, with a look at what this owner has already if the terms ask for it.
pub(crate) async fn try_once(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
    entry: Option<&QueueEntry>,
) -> Result<Tried> {
    // Where the store would not refuse a second one, it has to be found before one is taken.
    if terms.resume
        && claim.may_be_had_twice()
        && let Some(held) = Box::pin(resume(inner, claim, terms)).await?
    {
        return Ok(Tried::Resumed(held));
    }
    let tried = try_taking(inner, claim, terms, entry).await?;
    if terms.resume
        && matches!(tried, Tried::Blocked)
        && let Some(held) = Box::pin(resume(inner, claim, terms)).await?
    {
        return Ok(Tried::Resumed(held));
    }
    if matches!(tried, Tried::Blocked) {
        let (scope, standby) = (claim.queue(), terms.owner_or(&inner.owner));
        tracing::debug!(%scope, %standby, "asked for in vain: others have it, or come first");
    }
    Ok(tried)
}

/// Holds what this owner has already.
pub(crate) async fn resume(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
) -> Result<Option<Vec<Arc<Held>>>> {
    for _ in 0..REPLANS {
        let owned = claim.owned(inner, terms.owner_or(&inner.owner)).await?;
        let Some(first) = owned.first() else { return Ok(None) };
        let reapable = terms.reapable || leaves_orphan(inner, first).await?;
        if let Some(held) = adopt(inner, owned, terms, reapable).await? {
            return Ok(Some(held));
        }
        // Somebody else renewed it at the same moment, or it ended.
    }
    Ok(None)
}

/// One try: plans, commits, and plans again while only the plan was at fault.
async fn try_taking(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
    entry: Option<&QueueEntry>,
) -> Result<Tried> {
    // A new nonce for every try, also of one waiter: the clean-up after an earlier try looks for its
    // own nonce and must not find this one.
    let nonce = inner.nonce();
    let is_marker = |key: &Key| key.kind == WAITER && *key == marker(claim.queue());
    let mut with_marker = true;
    let mut last = None;
    for _ in 0..REPLANS {
        let asked =
            PlanRequest { nonce: &nonce, passing: entry.is_some_and(QueueEntry::passes_others) };
        let Plan::Take { leases, mut commit } = claim.plan(inner, asked).await? else {
            return Ok(Tried::Blocked);
        };
        match entry {
            Some(entry) => commit = commit.and(entry.leaving(with_marker)),
            // A caller that is ready to wait does not get ahead of those who wait already.
            None if terms.wait != Wait::No && inner.multi() && inner.listens() => {
                commit = commit.check(marker(claim.queue()), Expect::Absent);
            }
            None => {}
        }
        let attempt = Attempt { leases, terms, nonce: &nonce, commit };
        let error = match take(inner, attempt).await? {
            Taken::Held(held) => return Ok(Tried::Held(held)),
            Taken::Refused(error) => error,
        };
        match &error {
            Error::AlreadyExists { key, .. } if is_marker(key) => return Ok(Tried::Blocked),
            Error::Conflict { key, .. } | Error::NotFound { key } if is_marker(key) => {
                // Somebody has joined since; the marker stays.
                with_marker = false;
            }
            Error::NotFound { key } if entry.is_some_and(|entry| *key == entry.key()) => {
                return Ok(Tried::Gone);
            }
            error => match claim.conflict_kind(error) {
                ConflictKind::Blocked => {
                    if !robbed(inner, claim).await {
                        return Ok(Tried::Blocked);
                    }
                }
                ConflictKind::Replan => {}
                ConflictKind::Other if terms.hooks.is_some() && is_worth_asking_again(error) => {}
                ConflictKind::Other => return Err(error.clone()),
            },
        }
        last = Some(error);
    }
    Err(last
        .unwrap_or_else(|| Error::unavailable(inner.backend(), "others were quicker each time")))
}

/// The mistake of judging another's lease by one's own wall clock, where it is planted.
async fn robbed(inner: &Inner, claim: &dyn Claim) -> bool {
    if !planted(Flaw::TrustsWallClocks) {
        return false;
    }
    let Ok(Some(info)) = claim.blocker(inner).await else { return false };
    let ttl_ms = i64::try_from(info.ttl.as_millis()).unwrap_or(i64::MAX);
    if inner.clock.wall_ms() < info.acquired_at_ms.saturating_add(ttl_ms) {
        return false;
    }
    let key = crate::Key::new(crate::lease::record::LEASE, info.id);
    inner.store.commit(crate::store::Commit::new().delete(key, Expect::Any)).await.is_ok()
}
