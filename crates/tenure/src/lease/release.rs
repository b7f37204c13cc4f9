//! Letting go: released with a value or an error, revoked by somebody else, or handed over.

use std::sync::Arc;
use std::time::Duration;

use super::agent::Agent;
use super::held::Held;
use super::hooks::{Draft, Subject, is_worth_asking_again};
use super::record::{
    LEASE, LeaseRecord, REMAINS, REVOKED, RemainsRecord, RevokedRecord, WAITER, WaiterRecord,
    decode, encode, tagged, untagged,
};
use super::renewal::{Found, found};
use super::{Loss, Owner, Scope};
use crate::store::{Capability, Commit, Expect, Put, Query, Written};
use crate::{Error, Key, Result};

/// Attempts to let go while the store cannot be reached.
const ATTEMPTS: u32 = 5;
/// Between them, longer each time.
const PAUSE: Duration = Duration::from_millis(100);
/// A revocation is remembered this long, for its holder to read.
const REMEMBER: Duration = Duration::from_secs(600);

/// With what a lease is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Nothing in particular; hooks are not asked.
    Plain,
    /// A value, for the hook.
    Ok(&'a [u8]),
    /// An error, for the hook.
    Fail(&'a str),
}

/// Releases leases, all of them in one commit. The work they guarded must have stopped.
pub(crate) async fn release(
    agent: &Agent,
    leases: &[Arc<Held>],
    outcome: Outcome<'_>,
) -> Result<()> {
    for held in leases {
        if let Some(loss) = held.ended(agent.clock.uptime()) {
            agent.end(held, loss.clone());
            // Its local end has come, the store's has not; make room for the next one early.
            if loss == Loss::Expired && held.leave() {
                let _ = agent.store.commit(deletion(agent, leases)).await;
            }
            return Err(held.lost(&loss));
        }
    }
    for held in leases {
        held.leave();
        agent.stop_renewing(held);
    }
    let answer = try_release(agent, leases, outcome).await;
    for held in leases {
        // Whatever the store said, this holder is done with it.
        let loss = match &answer {
            Err(Error::Lost { token, current: None, .. }) if *token == held.token => Loss::Expired,
            _ => Loss::Released,
        };
        agent.end(held, loss);
    }
    answer
}

fn deletion(agent: &Agent, leases: &[Arc<Held>]) -> Commit {
    let mut commit = Commit::new();
    for held in leases {
        commit = commit.delete(held.key.clone(), Expect::Token(held.token));
        if held.reapable && agent.multi() {
            let remains = Key::new(REMAINS, tagged(&held.key.id, &held.nonce));
            commit = commit.delete(remains, Expect::Any);
        }
    }
    commit
}

async fn compose(agent: &Agent, leases: &[Arc<Held>], outcome: Outcome<'_>) -> Result<Commit> {
    let mut draft = Draft { store: &agent.store, commit: Commit::new() };
    for held in leases {
        let Some(hooks) = &held.hooks else { continue };
        let (id, nonce) = (&*held.key.id, &*held.nonce);
        let lease = Subject { id, nonce, holder: &held.owner, token: Some(held.token) };
        match outcome {
            Outcome::Plain => {}
            Outcome::Ok(value) => hooks.will_release_ok(lease, value, &mut draft).await?,
            Outcome::Fail(error) => hooks.will_release_fail(lease, error, &mut draft).await?,
        }
    }
    Ok(deletion(agent, leases).and(draft.commit))
}

/// Lets go of leases in the store, whoever keeps account of them.
pub(crate) async fn try_release(
    agent: &Agent,
    leases: &[Arc<Held>],
    outcome: Outcome<'_>,
) -> Result<()> {
    let hooked =
        !matches!(outcome, Outcome::Plain) && leases.iter().any(|held| held.hooks.is_some());
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        let commit = compose(agent, leases, outcome).await?;
        let error = match agent.store.commit(commit).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match &error {
            Error::Unknown { .. } => match Box::pin(settle(agent, leases, hooked)).await {
                Settled::Gone => return Ok(()),
                Settled::Uncertain => return Err(error),
                Settled::StillOurs => {}
            },
            Error::Unavailable { .. } | Error::Full { .. } => {
                agent.clock.sleep(PAUSE * (attempt + 1)).await;
            }
            _ if hooked && is_worth_asking_again(&error) => {}
            // An earlier attempt of ours may have done it.
            Error::Lost { current: None, .. } if last.is_some() && !hooked => return Ok(()),
            _ => return Err(error),
        }
        last = Some(error);
    }
    Err(last.unwrap_or_else(|| Error::unavailable(agent.backend(), "it could not be released")))
}

enum Settled {
    Gone,
    StillOurs,
    Uncertain,
}

/// Whether a release of unknown outcome happened. What is gone is gone, which is all a plain release
/// wants; if something else was to happen in the same commit, what is gone may also have expired.
async fn settle(agent: &Agent, leases: &[Arc<Held>], hooked: bool) -> Settled {
    let Some(first) = leases.first() else { return Settled::Gone };
    match found(agent, first).await {
        Ok(Found::Ours(_)) => Settled::StillOurs,
        Ok(Found::Ended(_)) if !hooked => Settled::Gone,
        Ok(Found::Ended(_)) if first.reapable => {
            let remains = Key::new(REMAINS, tagged(&first.key.id, &first.nonce));
            match agent.store.get(&remains).await {
                // The release takes the remains along; an expiry leaves them.
                Ok(None) => Settled::Gone,
                _ => Settled::Uncertain,
            }
        }
        _ => Settled::Uncertain,
    }
}

/// Ends somebody's tenure. `Ok(false)` if nobody held it.
pub(crate) async fn revoke(agent: &Agent, scope: &Scope, reason: &str) -> Result<bool> {
    let key = Key::new(LEASE, scope.as_str());
    let Some(object) = agent.store.get(&key).await? else { return Ok(false) };
    let record: LeaseRecord = decode(&object, agent.backend())?;
    let mut commit = Commit::new().delete(key, Expect::Token(object.token));
    if agent.multi() {
        let note = RevokedRecord { by: agent.owner.to_string(), reason: reason.into() };
        let id = tagged(scope.as_str(), &record.nonce);
        commit = commit.put(Put::new(Key::new(REVOKED, id), encode(&note)).ttl(REMEMBER));
    }
    match agent.store.commit(commit).await {
        Ok(_) => {
            tracing::info!(%scope, by = %agent.owner, token = object.token, "revoked: {reason}");
            Ok(true)
        }
        Err(Error::Lost { current: None, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Passes a lease on to a waiter: one commit rewrites the holder and draws a new token, so that
/// there is neither a gap nor an overlap. The work it guarded must have stopped.
pub(crate) async fn hand_over(
    agent: &Agent,
    held: &Arc<Held>,
    line: &str,
    successor: &str,
) -> Result<()> {
    if let Some(loss) = held.ended(agent.clock.uptime()) {
        return Err(held.lost(&loss));
    }
    let (commit, to) = compose_hand_over(agent, held, line, successor).await?;
    agent.stop_renewing(held);
    match pass_on(agent, held, commit, &to).await {
        Ok(()) => {
            held.leave();
            agent.end(held, Loss::HandedOver { to });
            Ok(())
        }
        Err(error) if error.is_unknown() => {
            // It may still arrive, at any time: nobody can hold what may be passed on behind its back.
            let _ = release(agent, &[Arc::clone(held)], Outcome::Plain).await;
            Err(error)
        }
        Err(error) => {
            agent.renew_at(held, agent.clock.uptime());
            Err(error)
        }
    }
}

/// Sends a hand-over, and finds out how it went if nobody says so.
pub(crate) async fn pass_on(agent: &Agent, held: &Held, commit: Commit, to: &str) -> Result<()> {
    match agent.store.commit(commit).await {
        Ok(committed) => {
            debug_assert!(matches!(committed.writes.first(), Some(Written::Put(_))));
            Ok(())
        }
        Err(error) if error.is_unknown() => match found(agent, held).await {
            Ok(Found::Ended(Loss::Taken { by, .. })) if by == to => Ok(()),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The commit that passes a lease on to whoever is called so in this line, and who that is.
pub(crate) async fn compose_hand_over(
    agent: &Agent,
    held: &Held,
    line: &str,
    successor: &str,
) -> Result<(Commit, String)> {
    if !agent.multi() {
        let capability = Capability::MultiObjectCommits;
        return Err(Error::Unsupported { capability, backend: agent.backend() });
    }
    let Some((waiter, place, record)) = find_waiter(agent, line, successor).await? else {
        return Err(Error::invalid(
            format!("successor {successor:?}"),
            format!("it does not wait for {line}; it has to ask for it with a wait first"),
        ));
    };
    let nonce = untagged(&waiter.id).map_or("", |(_, nonce)| nonce).to_owned();
    let lease = LeaseRecord {
        holder: record.holder.clone(),
        start: record.start.clone(),
        nonce: nonce.clone(),
        acquired_at_ms: agent.clock.wall_ms(),
        metadata: record.metadata.clone(),
    };
    let put = Put::new(held.key.clone(), encode(&lease))
        .expect(Expect::Token(held.token))
        .ttl(Duration::from_millis(record.ttl_ms.max(1)))
        .new_token();
    let mut commit = Commit::new().put(put).delete(waiter, Expect::Revision(place));
    if held.reapable {
        let remains = Key::new(REMAINS, tagged(&held.key.id, &held.nonce));
        commit = commit.delete(remains, Expect::Any);
    }
    if record.reapable {
        let remains = RemainsRecord { lease: held.key.id.clone(), record: lease };
        let id = tagged(&held.key.id, &nonce);
        commit = commit.put(Put::new(Key::new(REMAINS, id), encode(&remains)));
    }
    Ok((commit, format!("{}#{}", record.holder, record.start)))
}

async fn find_waiter(
    agent: &Agent,
    line: &str,
    successor: &str,
) -> Result<Option<(Key, u64, WaiterRecord)>> {
    let mut best: Option<(Key, u64, u64, WaiterRecord)> = None;
    for object in agent.store.list_all(&Query::new(WAITER).prefix(format!("{line}#"))).await? {
        let Some((name, nonce)) = untagged(&object.key.id) else { continue };
        if name != line || nonce.is_empty() || nonce == super::lines::RESIZED {
            continue;
        }
        let record: WaiterRecord = decode(&object, agent.backend())?;
        let Ok(owner) = Owner::from_parts(&record.holder, &record.start) else { continue };
        let earlier =
            best.as_ref().is_none_or(|(_, _, created, _)| object.created_revision < *created);
        if owner.is_called(successor) && earlier && !record.no_hand_over {
            best = Some((object.key, object.revision, object.created_revision, record));
        }
    }
    Ok(best.map(|(key, revision, _, record)| (key, revision, record)))
}
