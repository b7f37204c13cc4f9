//! Acquiring: one commit if it is free, a place in the queue if it is not.

pub(crate) mod attempt;
pub(crate) mod claim;
pub(crate) mod commit;
#[cfg(test)]
mod commit_tests;
pub(crate) mod deadline;
pub(crate) mod multi;
pub(crate) mod rwlock;
pub(crate) mod slots;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::lease::acquire::attempt::{Tried, resume, try_once};
use crate::lease::acquire::claim::{Claim, WaitLocation};
use crate::lease::acquire::commit::{adopt, withdraw};
use crate::lease::acquire::deadline::Deadline;
use crate::lease::acquire::multi::MultiClaim;
use crate::lease::hold::state::Held;
use crate::lease::inner::Inner;
use crate::lease::queue::entry::QueueEntry;
use crate::lease::queue::wakeup::Wake;
use crate::lease::record::LEASE;
use crate::lease::{Terms, Wait};
use crate::{Error, Key, Result};

/// Between attempts while the store cannot be reached.
const PAUSE: Duration = Duration::from_millis(200);

/// Acquires what is claimed, on these terms.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
) -> Result<Vec<Arc<Held>>> {
    terms.check(&inner.options)?;
    if terms.wait == Wait::No {
        return match try_once(inner, claim, terms, None).await? {
            Tried::Held(held) | Tried::Resumed(held) => Ok(held),
            Tried::Blocked | Tried::Gone | Tried::Idle => Err(held_error(inner, claim).await),
        };
    }
    let start = inner.clock.uptime();
    let deadline = Deadline::of(terms, start);
    let first = {
        // Pinned where it is: it is large, and moving it costs more than much of what it does.
        let trying = std::pin::pin!(try_once(inner, claim, terms, None));
        deadline.for_a_try(inner, terms, start).wait(inner, trying).await
    };
    let answer = match first {
        Some(Ok(Tried::Held(held) | Tried::Resumed(held))) => Ok(held),
        // Boxed, so that a call that need not wait does not carry the room that waiting takes.
        Some(tried) => {
            let waiting = Box::pin(wait(inner, claim, terms, tried));
            bounded(inner, claim, terms, deadline, waiting).await
        }
        None => Box::pin(over(inner, claim, terms)).await,
    };
    observe(inner, start, &answer);
    answer
}

/// Acquires several leases at once, in the queue for whichever of them is in the way.
pub(crate) async fn acquire_several(
    inner: &Arc<Inner>,
    keys: &[Key],
    terms: &Terms,
) -> Result<Vec<Arc<Held>>> {
    let queue = keys.first().map_or("", |key| &*key.id).into();
    let claim = MultiClaim { keys, queue };
    if terms.wait == Wait::No {
        return acquire(inner, &claim, terms).await;
    }
    terms.check(&inner.options)?;
    let start = inner.clock.uptime();
    let waiting = Box::pin(wait_moving(inner, keys, terms));
    let answer = bounded(inner, &claim, terms, Deadline::of(terms, start), waiting).await;
    observe(inner, start, &answer);
    answer
}

/// Waits for as long as the terms say, and says who was in the way if that comes first.
async fn bounded(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
    deadline: Deadline,
    mut waiting: BoxFuture<'_, Result<Vec<Arc<Held>>>>,
) -> Result<Vec<Arc<Held>>> {
    let answered = {
        // A store that cannot be reached is waited for; one that was closed stays so.
        let waiting = std::pin::pin!(async {
            tokio::select! {
                biased;
                answer = waiting.as_mut() => answer,
                closed = inner.store.closed() => Err(closed),
            }
        });
        deadline.wait(inner, waiting).await
    };
    if let Some(answer) = answered {
        return answer;
    }
    // Out of the queue first: what was handed to it meanwhile is let go, so that others can have it.
    drop(waiting);
    over(inner, claim, terms).await
}

fn observe(inner: &Inner, start: Duration, answer: &Result<Vec<Arc<Held>>>) {
    if answer.is_ok() {
        let waited = inner.clock.uptime().saturating_sub(start);
        inner.metrics.waited.observe(waited.as_secs_f64());
    }
}

/// The wait is over. What was given up may have been granted at the last moment.
async fn over(inner: &Arc<Inner>, claim: &dyn Claim, terms: &Terms) -> Result<Vec<Arc<Held>>> {
    if terms.resume
        && let Some(held) = resume(inner, claim, terms).await?
    {
        return Ok(held);
    }
    Err(held_error(inner, claim).await)
}

/// Tries again while the store cannot be reached, and queues up until it succeeds.
async fn wait(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
    mut tried: Result<Tried>,
) -> Result<Vec<Arc<Held>>> {
    loop {
        match tried {
            Ok(Tried::Held(held) | Tried::Resumed(held)) => return Ok(held),
            Ok(Tried::Blocked | Tried::Gone | Tried::Idle) => {
                if let Some(held) = queue_up(inner, claim, terms).await? {
                    return Ok(held);
                }
            }
            Err(error) => pause(inner, error).await?,
        }
        tried = try_once(inner, claim, terms, None).await;
    }
}

/// Takes places in the queue until one of them leads to the lease. `None` if nobody would be called there,
/// because the store cannot be watched.
async fn queue_up(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
) -> Result<Option<Vec<Arc<Held>>>> {
    loop {
        match QueueEntry::join(inner, claim, terms).await {
            Ok(entry) => {
                if let Some(held) = queued(inner, claim, terms, entry).await? {
                    return Ok(Some(held));
                }
            }
            Err(error) => {
                pause(inner, error).await?;
                if !inner.are_queues_open() {
                    return Ok(None);
                }
            }
        }
    }
}

/// Tries for all, and queues up for whichever is in the way until it succeeds.
async fn wait_moving(inner: &Arc<Inner>, keys: &[Key], terms: &Terms) -> Result<Vec<Arc<Held>>> {
    let mut queue: Arc<str> = keys.first().map_or("", |key| &*key.id).into();
    loop {
        let claim = MultiClaim { keys, queue: Arc::clone(&queue) };
        match move_on(inner, &claim, terms).await {
            Ok(Moved::Held(held)) => return Ok(held),
            Ok(Moved::To(next)) => queue = next,
            Err(error) => pause(inner, error).await?,
        }
    }
}

enum Moved {
    Held(Vec<Arc<Held>>),
    To(Arc<str>),
}

async fn move_on(inner: &Arc<Inner>, claim: &MultiClaim<'_>, terms: &Terms) -> Result<Moved> {
    let tried = try_once(inner, claim, terms, None).await?;
    if let Tried::Held(held) | Tried::Resumed(held) = tried {
        return Ok(Moved::Held(held));
    }
    // Without a holder in the way, it is those who wait in this queue.
    let blocker = claim.blocker(inner).await?;
    let queue = blocker.map_or_else(|| Arc::clone(&claim.queue), |info| info.id.into());
    let claim = MultiClaim { keys: claim.keys, queue: Arc::clone(&queue) };
    let entry = QueueEntry::join(inner, &claim, terms).await?;
    Ok(match queued(inner, &claim, terms, entry).await? {
        Some(held) => Moved::Held(held),
        None => Moved::To(queue),
    })
}

/// Waits in the queue. `None` if the place was lost and another has to be taken.
async fn queued(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
    entry: QueueEntry,
) -> Result<Option<Vec<Arc<Held>>>> {
    loop {
        let woken = tokio::select! {
            biased;
            woken = entry.woken() => Some(woken),
            () = entry.served() => None,
        };
        let tried = match woken {
            Some(Wake::Try) => try_once(inner, claim, terms, Some(&entry)).await,
            Some(Wake::Gone) => Ok(Tried::Gone),
            // It is not our turn, so this is a look and no attempt.
            None => match resume(inner, claim, terms).await {
                Ok(held) => held.map_or(Ok(Tried::Idle), |held| Ok(Tried::Resumed(held))),
                Err(error) => pause(inner, error).await.map(|()| Tried::Idle),
            },
        };
        match tried {
            Ok(Tried::Held(held)) => {
                entry.done(claim.has_more());
                return Ok(Some(held));
            }
            // Dropping the entry leaves the queue, and lets the next in it see for itself.
            Ok(Tried::Resumed(held)) => return Ok(Some(held)),
            Ok(Tried::Idle) => {}
            Ok(Tried::Blocked) => match claim.wait_location(inner).await {
                Ok(WaitLocation::Here) => entry.stay(look_again(inner, claim).await),
                Ok(WaitLocation::Elsewhere) => return Ok(None),
                Ok(WaitLocation::Nowhere) | Err(_) => entry.stay(inner.clock.uptime() + PAUSE),
            },
            Ok(Tried::Gone) => match granted(inner, claim, terms, &entry).await {
                Ok(held) => {
                    entry.gone();
                    return Ok(held);
                }
                Err(error) => pause(inner, error).await?,
            },
            Err(error) => {
                entry.stay(inner.clock.uptime() + PAUSE);
                pause(inner, error).await?;
            }
        }
    }
}

/// The place is gone: because what we wait for was handed to us, or because we were passed by.
async fn granted(
    inner: &Arc<Inner>,
    claim: &dyn Claim,
    terms: &Terms,
    entry: &QueueEntry,
) -> Result<Option<Vec<Arc<Held>>>> {
    let Some(among) = claim.handed() else { return Ok(None) };
    let Some(info) = claim::granted(inner, &among, &entry.nonce).await? else { return Ok(None) };
    let key = Key::new(LEASE, info.id.clone());
    let held = adopt(inner, vec![info], terms, terms.reapable).await?;
    if held.is_none() && !terms.resume {
        // Made sure of too late to be of use. Nobody else would let go of it.
        if let Err(error) = withdraw(inner, &[key], &entry.nonce).await {
            tracing::debug!(%error, "what was handed over may stay until it expires");
        }
    }
    Ok(held)
}

/// Waits a moment if the error says that it may help; else passes it on.
async fn pause(inner: &Inner, error: Error) -> Result<()> {
    match error {
        Error::Unavailable { .. } | Error::Unknown { .. } | Error::Full { .. } => {
            tracing::debug!(%error, "waiting for the store");
            inner.clock.sleep(PAUSE).await;
            Ok(())
        }
        error => Err(error),
    }
}

/// When to try again even if nothing is heard. Where nothing will be heard, that is the instant at
/// which the present holder's life ends, if that comes soon.
async fn look_again(inner: &Inner, claim: &dyn Claim) -> Duration {
    let now = inner.clock.uptime();
    if inner.listens() {
        return now + inner.options.recheck_every;
    }
    let left = match claim.blocker(inner).await {
        Ok(Some(info)) => info
            .expires_in
            .map_or(inner.options.poll_every, |left| left.saturating_add(Duration::from_millis(2))),
        _ => inner.options.poll_every,
    };
    inner.clock.uptime() + left.min(inner.options.poll_every)
}

async fn held_error(inner: &Inner, claim: &dyn Claim) -> Error {
    let scope = claim.queue().to_string();
    match claim.blocker(inner).await {
        Ok(Some(info)) => Error::Held {
            scope,
            holder: Some(info.holder.to_string()),
            token: info.token,
            expires_in: info.expires_in.unwrap_or_default(),
        },
        Ok(None) => Error::Held { scope, holder: None, token: 0, expires_in: Duration::ZERO },
        Err(error) => error,
    }
}
