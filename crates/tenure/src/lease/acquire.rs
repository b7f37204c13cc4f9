//! Acquiring: one commit if it is free, a place in line if it is not.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use super::agent::Agent;
use super::claim::{Asked, Claim, Plan, Verdict, Whereabouts};
use super::held::Held;
use super::hooks::is_worth_asking_again;
use super::reap::leaves_remains;
use super::several::SeveralClaim;
use super::take::{Attempt, Taken, adopt, take};
use super::ticket::{Ticket, mark};
use super::turn::Cue;
use super::{Terms, Wait};
use crate::store::Expect;
use crate::{Error, Key, Result};

/// Plans made anew because others were quicker, or hooks asked again because of a conflict.
const REPLANS: u32 = 16;
/// Between attempts while the store cannot be reached.
const PAUSE: Duration = Duration::from_millis(200);

/// How one try ended.
enum Tried {
    Held(Vec<Arc<Held>>),
    /// This owner has it from before. Whatever place it had in line it still has.
    Resumed(Vec<Arc<Held>>),
    Blocked,
    /// The store has forgotten our place in line.
    Gone,
    /// Nothing was tried.
    Idle,
}

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
    // Pinned here: handed on by value, it would be kept once for each hand.
    let waiting = pin!(wait(agent, claim, terms));
    bounded(agent, claim, terms, waiting).await
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
    let waiting = pin!(wait_moving(agent, keys, terms));
    bounded(agent, &claim, terms, waiting).await
}

/// Waits for as long as the terms say, and says who was in the way if that comes first.
async fn bounded(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    waiting: Pin<&mut impl Future<Output = Result<Vec<Arc<Held>>>>>,
) -> Result<Vec<Arc<Held>>> {
    let start = agent.clock.uptime();
    let answer = match terms.wait.deadline(start) {
        None => waiting.await,
        Some(deadline) => tokio::select! {
            biased;
            answer = waiting => answer,
            () = agent.clock.sleep_until(deadline) => over(agent, claim, terms).await,
        },
    };
    let waited = agent.clock.uptime().saturating_sub(start);
    if answer.is_ok() {
        agent.metrics.waited.observe(waited.as_secs_f64());
    }
    answer
}

/// The wait is over. What was given up may have been granted at the last moment.
async fn over(agent: &Arc<Agent>, claim: &dyn Claim, terms: &Terms) -> Result<Vec<Arc<Held>>> {
    if terms.resume
        && let Some(held) = Box::pin(resume(agent, claim, terms)).await?
    {
        return Ok(held);
    }
    Err(held_error(agent, claim).await)
}

/// Tries, and queues up until it succeeds.
async fn wait(agent: &Arc<Agent>, claim: &dyn Claim, terms: &Terms) -> Result<Vec<Arc<Held>>> {
    loop {
        match try_once(agent, claim, terms, None).await {
            Ok(Tried::Held(held) | Tried::Resumed(held)) => return Ok(held),
            Ok(Tried::Blocked | Tried::Gone | Tried::Idle) => break,
            Err(error) => pause(agent, error).await?,
        }
    }
    // Apart, so that whoever need not wait does not carry along what it takes to wait.
    Box::pin(queue_up(agent, claim, terms)).await
}

/// Takes a place in line until one of them leads to the lease.
async fn queue_up(agent: &Arc<Agent>, claim: &dyn Claim, terms: &Terms) -> Result<Vec<Arc<Held>>> {
    loop {
        agent.lines_open().await;
        let ticket = match Ticket::join(agent, claim, terms).await {
            Ok(ticket) => ticket,
            Err(error) => {
                pause(agent, error).await?;
                continue;
            }
        };
        if let Some(held) = in_line(agent, claim, terms, ticket).await? {
            return Ok(held);
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
    agent.lines_open().await;
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
    let Some(info) = claim.granted(agent, &ticket.nonce).await? else { return Ok(None) };
    adopt(agent, vec![info], terms, terms.reapable).await
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

/// One try, with a look at what this owner has already if the terms ask for it.
async fn try_once(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    ticket: Option<&Ticket>,
) -> Result<Tried> {
    // Where the store would not refuse a second one, it has to be found before one is taken.
    if terms.resume
        && claim.may_be_had_twice()
        && let Some(held) = Box::pin(resume(agent, claim, terms)).await?
    {
        return Ok(Tried::Resumed(held));
    }
    let tried = try_taking(agent, claim, terms, ticket).await?;
    if terms.resume
        && matches!(tried, Tried::Blocked)
        && let Some(held) = Box::pin(resume(agent, claim, terms)).await?
    {
        return Ok(Tried::Resumed(held));
    }
    Ok(tried)
}

/// Holds what this owner has already.
async fn resume(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
) -> Result<Option<Vec<Arc<Held>>>> {
    for _ in 0..REPLANS {
        let owned = claim.owned(agent, terms.owner_or(&agent.owner)).await?;
        let Some(first) = owned.first() else { return Ok(None) };
        let reapable = terms.reapable || leaves_remains(agent, first).await?;
        if let Some(held) = adopt(agent, owned, terms, reapable).await? {
            return Ok(Some(held));
        }
        // Somebody else renewed it at the same moment, or it ended.
    }
    Ok(None)
}

/// One try: plans, commits, and plans again while only the plan was at fault.
async fn try_taking(
    agent: &Arc<Agent>,
    claim: &dyn Claim,
    terms: &Terms,
    ticket: Option<&Ticket>,
) -> Result<Tried> {
    // A new one for every try, also of one waiter: whoever looks for what an earlier try may have
    // left behind must not mistake this one for it.
    let nonce = agent.nonce();
    let line_mark = mark(claim.line());
    let mut with_mark = true;
    let mut last = None;
    for _ in 0..REPLANS {
        let asked = Asked { nonce: &nonce, passing: ticket.is_some_and(Ticket::passes_others) };
        let Plan::Take { leases, mut commit } = claim.plan(agent, asked).await? else {
            return Ok(Tried::Blocked);
        };
        match ticket {
            Some(ticket) => commit = commit.and(ticket.leaving(with_mark)),
            // Whoever is ready to wait does not get ahead of those who wait already.
            None if terms.wait != Wait::No && agent.multi() && agent.listens() => {
                commit = commit.check(line_mark.clone(), Expect::Absent);
            }
            None => {}
        }
        let attempt = Attempt { leases: &leases, terms, nonce: &nonce, commit };
        let error = match take(agent, attempt).await? {
            Taken::Held(held) => return Ok(Tried::Held(held)),
            Taken::Refused(error) => error,
        };
        match &error {
            Error::AlreadyExists { key, .. } if *key == line_mark => return Ok(Tried::Blocked),
            Error::Conflict { key, .. } | Error::NotFound { key } if *key == line_mark => {
                // Somebody has joined since; the mark stays.
                with_mark = false;
            }
            Error::NotFound { key } if ticket.is_some_and(|ticket| *key == ticket.key()) => {
                return Ok(Tried::Gone);
            }
            error => match claim.verdict(error) {
                Verdict::Blocked => {
                    if !robbed(agent, claim).await {
                        return Ok(Tried::Blocked);
                    }
                }
                Verdict::Replan => {}
                Verdict::Other if terms.hooks.is_some() && is_worth_asking_again(error) => {}
                Verdict::Other => return Err(error.clone()),
            },
        }
        last = Some(error);
    }
    Err(last
        .unwrap_or_else(|| Error::unavailable(agent.backend(), "others were quicker each time")))
}

#[cfg(not(feature = "flaws"))]
async fn robbed(_agent: &Agent, _claim: &dyn Claim) -> bool {
    false
}

/// The mistake of judging another's lease by one's own wall clock.
#[cfg(feature = "flaws")]
async fn robbed(agent: &Agent, claim: &dyn Claim) -> bool {
    if !agent.has(super::Flaw::TrustsWallClocks) {
        return false;
    }
    let Ok(Some(info)) = claim.blocker(agent).await else { return false };
    let ttl_ms = i64::try_from(info.ttl.as_millis()).unwrap_or(i64::MAX);
    if agent.clock.wall_ms() < info.acquired_at_ms.saturating_add(ttl_ms) {
        return false;
    }
    let key = crate::Key::new(super::record::LEASE, info.id);
    agent.store.commit(crate::store::Commit::new().delete(key, Expect::Any)).await.is_ok()
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
