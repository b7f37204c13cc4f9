//! Letting go: released with a value or an error, or revoked by somebody else.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::end::guard::Leaving;
use crate::lease::hold::renew::{Found, found};
use crate::lease::hold::state::Held;
use crate::lease::hooks::{HookContext, LeaseRef, is_worth_asking_again};
use crate::lease::inner::Inner;
use crate::lease::record::{
    LEASE, LeaseRecord, ORPHAN, REVOKED, RevokedRecord, decode, encode, tagged,
};
use crate::lease::{Loss, Scope};
use crate::store::{Commit, Expect, Put};
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

/// Releases leases, all of them in one commit. The work they guarded must have stopped. Those that are
/// lost do not keep the others from being let go of; the answer tells of the first of them.
pub(crate) async fn release(
    inner: &Arc<Inner>,
    leases: &[Arc<Held>],
    outcome: Outcome<'_>,
) -> Result<()> {
    let (mut held, mut late, mut answer) = (Vec::new(), Vec::new(), Ok(()));
    for lease in leases {
        let Some(loss) = lease.ended(inner.clock.uptime()) else {
            held.push(Arc::clone(lease));
            continue;
        };
        inner.end(lease, loss.clone());
        answer = answer.and_then(|()| Err(lease.lost(&loss)));
        if loss == Loss::Expired && lease.leave() {
            late.push(Arc::clone(lease));
        }
    }
    if !held.is_empty() {
        let leaving = Leaving::begin(inner, &held, outcome);
        let released = withdraw(inner, &held, outcome, None).await;
        leaving.done();
        answer = answer.and(released);
    }
    // Their local end has come, the store's has not; make room for the next one early. Where a hook
    // was to hear of it, the reaper's will: that one needs what an expiry leaves behind.
    if !late.is_empty() && !asks_hooks(&late, outcome) {
        let _ = inner.store.commit(deletion(inner, &late)).await;
    }
    answer
}

/// Lets go of leases in the store and tells each one its end. With a `doubt`, an earlier attempt may
/// have been applied.
pub(crate) async fn withdraw(
    inner: &Inner,
    leases: &[Arc<Held>],
    outcome: Outcome<'_>,
    doubt: Option<Error>,
) -> Result<()> {
    let together = try_release(inner, leases, outcome, doubt).await;
    if leases.len() == 1 || !matches!(together, Err(Error::Lost { .. })) {
        for held in leases {
            tell(inner, held, &together).await;
        }
        return together;
    }
    // One that is lost keeps the commit of all of them from applying, now and for ever.
    let mut answer = Ok(());
    for held in leases {
        let alone = try_release(inner, std::slice::from_ref(held), outcome, None).await;
        tell(inner, held, &alone).await;
        answer = answer.and(alone);
    }
    answer
}

/// Whatever the store said, this holder is done with its lease. If it was lost before, the holder is
/// told how.
async fn tell(inner: &Inner, held: &Held, answer: &Result<()>) {
    let loss = match answer {
        Err(Error::Lost { key, .. }) if *key == held.key => match found(inner, held).await {
            Ok(Found::Ended(loss)) => loss,
            _ => Loss::Expired,
        },
        _ => Loss::Released,
    };
    inner.end(held, loss);
}

fn asks_hooks(leases: &[Arc<Held>], outcome: Outcome<'_>) -> bool {
    outcome != Outcome::Plain && leases.iter().any(|held| held.hooks.is_some())
}

fn deletion(inner: &Inner, leases: &[Arc<Held>]) -> Commit {
    let mut commit = Commit::new();
    for held in leases {
        commit = commit.delete(held.key.clone(), Expect::Token(held.token));
        if held.reapable && inner.multi() {
            let orphan = Key::new(ORPHAN, tagged(&held.key.id, &held.nonce));
            commit = commit.delete(orphan, Expect::Any);
        }
    }
    commit
}

async fn build(inner: &Inner, leases: &[Arc<Held>], outcome: Outcome<'_>) -> Result<Commit> {
    let mut draft = HookContext { store: &inner.store, commit: Commit::new() };
    for held in leases {
        let Some(hooks) = &held.hooks else { continue };
        let (id, nonce) = (&*held.key.id, &*held.nonce);
        let lease = LeaseRef { id, nonce, holder: &held.owner, token: Some(held.token) };
        match outcome {
            Outcome::Plain => {}
            Outcome::Ok(value) => hooks.will_release_ok(lease, value, &mut draft).await?,
            Outcome::Fail(error) => hooks.will_release_fail(lease, error, &mut draft).await?,
        }
    }
    Ok(deletion(inner, leases).and(draft.commit))
}

/// Releases leases in the store, whether or not this process keeps account of them. With a `doubt`, which is an error of
/// unknown outcome, an earlier attempt may have been applied; then no other error is certain.
pub(crate) async fn try_release(
    inner: &Inner,
    leases: &[Arc<Held>],
    outcome: Outcome<'_>,
    mut doubt: Option<Error>,
) -> Result<()> {
    let hooked = asks_hooks(leases, outcome);
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        let commit = match build(inner, leases, outcome).await {
            Ok(commit) => commit,
            Err(error) => return Err(doubt.unwrap_or(error)),
        };
        let error = match inner.store.commit(commit).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match &error {
            Error::Unknown { .. } => match Box::pin(settle(inner, leases, hooked)).await {
                Settled::Gone => return Ok(()),
                Settled::Uncertain => return Err(error),
                Settled::StillOurs | Settled::Mixed => doubt = Some(error.clone()),
            },
            Error::Unavailable { .. } | Error::Full { .. } => {
                inner.clock.sleep(PAUSE * (attempt + 1)).await;
            }
            _ if hooked && is_worth_asking_again(&error) => {}
            Error::Lost { .. } if doubt.is_some() => {
                return match Box::pin(settle(inner, leases, hooked)).await {
                    Settled::Gone => Ok(()),
                    // All or nothing: if some are there, no attempt of ours has taken the others.
                    Settled::Mixed => Err(error),
                    Settled::Uncertain | Settled::StillOurs => Err(doubt.unwrap_or(error)),
                };
            }
            _ => return Err(doubt.unwrap_or(error)),
        }
        last = Some(error);
    }
    let nothing = || Error::unavailable(inner.backend(), "it could not be released");
    Err(doubt.or(last).unwrap_or_else(nothing))
}

/// What has become of leases whose release is in doubt.
enum Settled {
    Gone,
    StillOurs,
    /// Some are gone, others ours.
    Mixed,
    Uncertain,
}

/// Whether a release of unknown outcome happened. What is gone is gone, which is all a plain release
/// wants; if something else was to happen in the same commit, what is gone may also have expired.
async fn settle(inner: &Inner, leases: &[Arc<Held>], hooked: bool) -> Settled {
    let mut all = None;
    for held in leases {
        let one = settle_one(inner, held, hooked).await;
        all = Some(match (all, one) {
            (_, Settled::Uncertain) => return Settled::Uncertain,
            (None, one) => one,
            (Some(Settled::Gone), Settled::Gone) => Settled::Gone,
            (Some(Settled::StillOurs), Settled::StillOurs) => Settled::StillOurs,
            _ => Settled::Mixed,
        });
    }
    all.unwrap_or(Settled::Gone)
}

async fn settle_one(inner: &Inner, held: &Held, hooked: bool) -> Settled {
    match found(inner, held).await {
        Ok(Found::Ours(_)) => Settled::StillOurs,
        Ok(Found::Ended(_)) if !hooked => Settled::Gone,
        Ok(Found::Ended(_)) if held.reapable => {
            let orphan = Key::new(ORPHAN, tagged(&held.key.id, &held.nonce));
            match inner.store.get(&orphan).await {
                // The release takes the orphan along; an expiry leaves them.
                Ok(None) => Settled::Gone,
                _ => Settled::Uncertain,
            }
        }
        _ => Settled::Uncertain,
    }
}

/// Ends somebody's tenure, or only that under this token. `Ok(false)` if nobody held it.
pub(crate) async fn revoke(
    inner: &Inner,
    scope: &Scope,
    expect: Option<u64>,
    reason: &str,
) -> Result<bool> {
    let key = Key::new(LEASE, scope.as_str());
    let Some(object) = inner.store.get(&key).await? else { return Ok(false) };
    if let Some(token) = expect.filter(|token| *token != object.token) {
        return Err(Error::Lost { key, token, current: Some(object.token) });
    }
    let record: LeaseRecord = decode(&object, inner.backend())?;
    let mut commit = Commit::new().delete(key, Expect::Token(object.token));
    if inner.multi() {
        let note = RevokedRecord { by: inner.owner.to_string(), reason: reason.into() };
        let id = tagged(scope.as_str(), &record.nonce);
        commit = commit.put(Put::new(Key::new(REVOKED, id), encode(&note)).ttl(REMEMBER));
    }
    match inner.store.commit(commit).await {
        Ok(_) => {
            tracing::info!(%scope, by = %inner.owner, token = object.token, "revoked: {reason}");
            Ok(true)
        }
        Err(Error::Lost { current: None, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
