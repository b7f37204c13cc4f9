//! Acquiring: one commit if it is free, a place in line if it is not.

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
use crate::lease::acquire::claim::{Claim, Whereabouts};
use crate::lease::acquire::commit::{adopt, let_go};
use crate::lease::acquire::deadline::Patience;
use crate::lease::acquire::multi::SeveralClaim;
use crate::lease::hold::state::Held;
use crate::lease::inner::Agent;
use crate::lease::queue::entry::Ticket;
use crate::lease::queue::wakeup::Cue;
use crate::lease::record::LEASE;
use crate::lease::{Terms, Wait};
use crate::{Error, Key, Result};

/// Between attempts while the store cannot be reached.
const PAUSE: Duration = Duration::from_millis(200);

/// Acquires what is claimed, on these terms.
pub(crate) async fn acquire(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
) -> Result<Vec<Arc<Held>>> {
    terms.check(&agent.options)?;
    if terms.wait == Wait::No {
        return match try_once(agent, claim, terms, None).await? {
            Tried::Held(held) | Tried::Resumed(held) => Ok(held),
            Tried::Blocked | Tried::Gone | Tried::Idle => Err(held_error(agent, claim).await),
        };
    }
    let start = agent.clock.uptime();
    let patience = Patience::of(terms, start);
    let first = {
        // Pinned where it is: it is large, and moving it costs more than much of what it does.
        let trying = std::pin::pin!(try_once(agent, claim, terms, None));
        patience.for_a_try(agent, terms, start).wait(agent, trying).await
    };
    let answer = match first {
        Some(Ok(Tried::Held(held) | Tried::Resumed(held))) => Ok(held),
        // Apart, so that whoever need not wait does not carry the room that waiting takes.
        Some(tried) => {
            let waiting = Box::pin(wait(agent, claim, terms, tried));
            bounded(agent, claim, terms, patience, waiting).await
        }
        None => Box::pin(over(agent, claim, terms)).await,
    };
    observe(agent, start, &answer);
    answer
}

/// Acquires several leases at once, in line for whichever of them is in the way.
pub(crate) async fn acquire_several(
    agent: &Arc<Agent>,
    keys: &[Key],
    terms: &Terms,
) -> Result<Vec<Arc<Held>>> {
    let line = keys.first().map_or("", |key| &*key.id).into();
    let claim = SeveralClaim { keys, line };
    if terms.wait == Wait::No {
        return acquire(agent, &claim, terms).await;
    }
    terms.check(&agent.options)?;
    let start = agent.clock.uptime();
    let waiting = Box::pin(wait_moving(agent, keys, terms));
    let answer = bounded(agent, &claim, terms, Patience::of(terms, start), waiting).await;
    observe(agent, start, &answer);
    answer
}

/// Waits for as long as the terms say, and says who was in the way if that comes first.
async fn bounded(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    patience: Patience,
    mut waiting: BoxFuture<'_, Result<Vec<Arc<Held>>>>,
) -> Result<Vec<Arc<Held>>> {
    let answered = {
        // A store that cannot be reached is waited for; one that was closed stays so.
        let waiting = std::pin::pin!(async {
            tokio::select! {
                biased;
                answer = waiting.as_mut() => answer,
                closed = agent.store.closed() => Err(closed),
            }
        });
        patience.wait(agent, waiting).await
    };
    if let Some(answer) = answered {
        return answer;
    }
    // Out of the line first: what was handed to it meanwhile is let go, so that others can have it.
    drop(waiting);
    over(agent, claim, terms).await
}

fn observe(agent: &Agent, start: Duration, answer: &Result<Vec<Arc<Held>>>) {
    if answer.is_ok() {
        let waited = agent.clock.uptime().saturating_sub(start);
        agent.metrics.waited.observe(waited.as_secs_f64());
    }
}

/// The wait is over. What was given up may have been granted at the last moment.
async fn over(agent: &Arc<Agent>, claim: &dyn Claim, terms: &Terms) -> Result<Vec<Arc<Held>>> {
    if terms.resume
        && let Some(held) = resume(agent, claim, terms).await?
    {
        return Ok(held);
    }
    Err(held_error(agent, claim).await)
}

/// Tries again while the store cannot be reached, and queues up until it succeeds.
async fn wait(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    mut tried: Result<Tried>,
) -> Result<Vec<Arc<Held>>> {
    loop {
        match tried {
            Ok(Tried::Held(held) | Tried::Resumed(held)) => return Ok(held),
            Ok(Tried::Blocked | Tried::Gone | Tried::Idle) => {
                if let Some(held) = queue_up(agent, claim, terms).await? {
                    return Ok(held);
                }
            }
            Err(error) => pause(agent, error).await?,
        }
        tried = try_once(agent, claim, terms, None).await;
    }
}

/// Takes places in line until one of them leads to the lease. `None` if nobody would be called there,
/// because the store cannot be watched.
async fn queue_up(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
) -> Result<Option<Vec<Arc<Held>>>> {
    loop {
        match Ticket::join(agent, claim, terms).await {
            Ok(ticket) => {
                if let Some(held) = in_line(agent, claim, terms, ticket).await? {
                    return Ok(Some(held));
                }
            }
            Err(error) => {
                pause(agent, error).await?;
                if !agent.are_lines_open() {
                    return Ok(None);
                }
            }
        }
    }
}

/// Tries for all, and queues up for whichever is in the way until it succeeds.
async fn wait_moving(agent: &Arc<Agent>, keys: &[Key], terms: &Terms) -> Result<Vec<Arc<Held>>> {
    let mut line: Arc<str> = keys.first().map_or("", |key| &*key.id).into();
    loop {
        let claim = SeveralClaim { keys, line: Arc::clone(&line) };
        match move_on(agent, &claim, terms).await {
            Ok(Moved::Held(held)) => return Ok(held),
            Ok(Moved::To(next)) => line = next,
            Err(error) => pause(agent, error).await?,
        }
    }
}

enum Moved {
    Held(Vec<Arc<Held>>),
    To(Arc<str>),
}

async fn move_on(agent: &Arc<Agent>, claim: &SeveralClaim<'_>, terms: &Terms) -> Result<Moved> {
    let tried = try_once(agent, claim, terms, None).await?;
    if let Tried::Held(held) | Tried::Resumed(held) = tried {
        return Ok(Moved::Held(held));
    }
    // Without a holder in the way, it is those who wait in this line.
    let blocker = claim.blocker(agent).await?;
    let line = blocker.map_or_else(|| Arc::clone(&claim.line), |info| info.id.into());
    let claim = SeveralClaim { keys: claim.keys, line: Arc::clone(&line) };
    let ticket = Ticket::join(agent, &claim, terms).await?;
    Ok(match in_line(agent, &claim, terms, ticket).await? {
        Some(held) => Moved::Held(held),
        None => Moved::To(line),
    })
}

/// Waits in line. `None` if the place was lost and another has to be taken.
async fn in_line(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    ticket: Ticket,
) -> Result<Option<Vec<Arc<Held>>>> {
    loop {
        let cue = tokio::select! {
            biased;
            cue = ticket.cue() => Some(cue),
            () = ticket.served() => None,
        };
        let tried = match cue {
            Some(Cue::Try) => try_once(agent, claim, terms, Some(&ticket)).await,
            Some(Cue::Gone) => Ok(Tried::Gone),
            // It is not our turn, so this is a look and no attempt.
            None => match resume(agent, claim, terms).await {
                Ok(held) => held.map_or(Ok(Tried::Idle), |held| Ok(Tried::Resumed(held))),
                Err(error) => pause(agent, error).await.map(|()| Tried::Idle),
            },
        };
        match tried {
            Ok(Tried::Held(held)) => {
                ticket.done(claim.has_more());
                return Ok(Some(held));
            }
            // Dropping the ticket leaves the line, and lets the next in it see for itself.
            Ok(Tried::Resumed(held)) => return Ok(Some(held)),
            Ok(Tried::Idle) => {}
            Ok(Tried::Blocked) => match claim.whereabouts(agent).await {
                Ok(Whereabouts::Here) => ticket.stay(look_again(agent, claim).await),
                Ok(Whereabouts::Elsewhere) => return Ok(None),
                Ok(Whereabouts::Nowhere) | Err(_) => ticket.stay(agent.clock.uptime() + PAUSE),
            },
            Ok(Tried::Gone) => match granted(agent, claim, terms, &ticket).await {
                Ok(held) => {
                    ticket.gone();
                    return Ok(held);
                }
                Err(error) => pause(agent, error).await?,
            },
            Err(error) => {
                ticket.stay(agent.clock.uptime() + PAUSE);
                pause(agent, error).await?;
            }
        }
    }
}

/// The place is gone: because what we wait for was handed to us, or because we were passed by.
async fn granted(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    ticket: &Ticket,
) -> Result<Option<Vec<Arc<Held>>>> {
    let Some(among) = claim.handed() else { return Ok(None) };
    let Some(info) = claim::granted(agent, &among, &ticket.nonce).await? else { return Ok(None) };
    let key = Key::new(LEASE, info.id.clone());
    let held = adopt(agent, vec![info], terms, terms.reapable).await?;
    if held.is_none() && !terms.resume {
        // Made sure of too late to be of use. Nobody else would let go of it.
        if let Err(error) = let_go(agent, &[key], &ticket.nonce).await {
            tracing::debug!(%error, "what was handed over may stay until it expires");
        }
    }
    Ok(held)
}

/// Waits a moment if the error says that it may help; else passes it on.
async fn pause(agent: &Agent, error: Error) -> Result<()> {
    match error {
        Error::Unavailable { .. } | Error::Unknown { .. } | Error::Full { .. } => {
            tracing::debug!(%error, "waiting for the store");
            agent.clock.sleep(PAUSE).await;
            Ok(())
        }
        error => Err(error),
    }
}

/// When to try again even if nothing is heard. Where nothing will be heard, that is the instant at
/// which the present holder's life ends, if that comes soon.
async fn look_again(agent: &Agent, claim: &dyn Claim) -> Duration {
    let now = agent.clock.uptime();
    if agent.listens() {
        return now + agent.options.recheck_every;
    }
    let left = match claim.blocker(agent).await {
        Ok(Some(info)) => info
            .expires_in
            .map_or(agent.options.poll_every, |left| left.saturating_add(Duration::from_millis(2))),
        _ => agent.options.poll_every,
    };
    agent.clock.uptime() + left.min(agent.options.poll_every)
}

async fn held_error(agent: &Agent, claim: &dyn Claim) -> Error {
    let scope = claim.line().to_string();
    match claim.blocker(agent).await {
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
