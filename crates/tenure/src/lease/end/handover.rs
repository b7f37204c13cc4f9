//! Handing over: a lease is passed on to somebody who waits for it, in one commit.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::Loss;
use crate::lease::acquire::rwlock::can_be_handed_over;
use crate::lease::acquire::slots::passing_on;
use crate::lease::end::guard::Leaving;
use crate::lease::end::release::{Outcome, withdraw};
use crate::lease::hold::renew::present;
use crate::lease::hold::state::Held;
use crate::lease::inner::Inner;
use crate::lease::queue::list::find_waiter;
use crate::lease::record::{
    LeaseInfo, LeaseRecord, ORPHAN, OrphanRecord, SLOTS, WAITER, encode, tagged, untagged,
};
use crate::store::{Capability, Commit, Expect, Put};
use crate::{Error, Key, Result};

/// A hand-over that met a change of the queue or of the group is built anew, so often.
const ATTEMPTS: u32 = 5;

/// A hand-over that is about to be sent, and who is to have the lease.
pub(crate) struct HandOver {
    commit: Commit,
    /// What is granted.
    record: LeaseRecord,
    to: String,
}

/// Passes a lease on to a waiter: one commit rewrites the holder and draws a new token, so that
/// there is neither a gap nor an overlap. The work it guarded must have stopped.
pub(crate) async fn hand_over(
    inner: &Arc<Inner>,
    held: &Arc<Held>,
    queue: &str,
    successor: &str,
) -> Result<()> {
    if let Some(loss) = held.ended(inner.clock.uptime()) {
        return Err(held.lost(&loss));
    }
    let built = build(inner, held, queue, successor).await?;
    // From here on, a renewal under way that meets the successor has nothing to tell.
    let leaving = Leaving::begin(inner, std::slice::from_ref(held), Outcome::Plain);
    let passed_on = pass_on(inner, held, queue, successor, built).await;
    match &passed_on {
        Ok(to) => inner.end(held, Loss::HandedOver { to: to.clone() }),
        Err(error) if error.is_unknown() => {
            // It may still arrive, at any time: nobody can hold what may be passed on behind its back.
            let doubt = Some(error.clone());
            let _ = withdraw(inner, std::slice::from_ref(held), Outcome::Plain, doubt).await;
        }
        Err(_) => {
            held.stay();
            inner.renew_at(held, inner.clock.uptime());
        }
    }
    leaving.done();
    passed_on.map(drop)
}

/// Sends a hand-over, and tells who has the lease then. If the waiter has left meanwhile, or its group
/// has changed, it is built anew: that says what is the matter, or that nothing is.
pub(crate) async fn pass_on(
    inner: &Inner,
    held: &Held,
    queue: &str,
    successor: &str,
    built: HandOver,
) -> Result<String> {
    let mut built = built;
    for _ in 0..ATTEMPTS {
        match send(inner, held, &built).await {
            Ok(()) => return Ok(built.to),
            Err(Error::NotFound { key } | Error::Conflict { key, .. })
                if key.kind == WAITER || key.kind == SLOTS =>
            {
                built = build(inner, held, queue, successor).await?;
            }
            Err(error) => return Err(error),
        }
    }
    let reason = format!("the queue of {queue} changed each time; hand over again");
    Err(Error::unavailable(inner.backend(), reason))
}

/// Sends it, and finds out how it went if nobody says so. The nonce tells: whoever was to be the
/// successor may also have acquired it by itself. So does the label of when it was granted: somebody
/// else may have held the lease in between, and passed it on to the same waiter.
async fn send(
    inner: &Inner,
    held: &Held,
    HandOver { commit, record, .. }: &HandOver,
) -> Result<()> {
    match inner.store.commit(commit.clone()).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_unknown() => match present(inner, held).await {
            Ok(Some(info)) if is_it(&info, record) => Ok(()),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn is_it(info: &LeaseInfo, granted: &LeaseRecord) -> bool {
    info.nonce == granted.nonce && info.acquired_at_ms == granted.acquired_at_ms
}

/// The commit that passes a lease on to the waiter of this name in this queue.
pub(crate) async fn build(
    inner: &Inner,
    held: &Held,
    queue: &str,
    successor: &str,
) -> Result<HandOver> {
    if !inner.multi() {
        let capability = Capability::MultiObjectCommits;
        return Err(Error::Unsupported { capability, backend: inner.backend() });
    }
    can_be_handed_over(&held.key.id)?;
    let Some(waiter) = find_waiter(inner, queue, successor).await? else {
        return Err(waits_not(successor, queue));
    };
    if waiter.record.no_hand_over {
        return Err(no_hand_over(successor));
    }
    let demands = passing_on(inner, queue, &held.key.id).await?;
    let nonce = untagged(&waiter.key.id).map_or("", |(_, nonce)| nonce);
    let record = LeaseRecord {
        holder: waiter.record.holder,
        start: waiter.record.start,
        nonce: nonce.to_owned(),
        acquired_at_ms: inner.clock.wall_ms(),
        metadata: waiter.record.metadata,
    };
    let put = Put::new(held.key.clone(), encode(&record))
        .expect(Expect::Token(held.token))
        .ttl(Duration::from_millis(waiter.record.ttl_ms.max(1)))
        .new_token();
    let mut commit = demands.put(put).delete(waiter.key.clone(), Expect::Revision(waiter.revision));
    if held.reapable {
        let orphan = Key::new(ORPHAN, tagged(&held.key.id, &held.nonce));
        commit = commit.delete(orphan, Expect::Any);
    }
    if waiter.record.reapable {
        let orphan = OrphanRecord { lease: held.key.id.clone(), record: record.clone() };
        let id = tagged(&held.key.id, nonce);
        commit = commit.put(Put::new(Key::new(ORPHAN, id), encode(&orphan)));
    }
    Ok(HandOver { commit, record, to: waiter.owner.to_string() })
}

/// Said where nobody of this name is in the queue.
pub(crate) fn waits_not(successor: &str, queue: &str) -> Error {
    Error::invalid(
        format!("successor {successor:?}"),
        format!("it does not wait for {queue}; it has to ask for it with a wait first"),
    )
}

/// Said where one that waits can have what it waits for only by itself.
pub(crate) fn no_hand_over(successor: &str) -> Error {
    let reason = "it waits for several scopes at once, or to read, or with hooks that only it can \
                  run; release the lease instead, for the first in the queue";
    Error::invalid(format!("successor {successor:?}"), reason)
}
