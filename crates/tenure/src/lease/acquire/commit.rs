//! One attempt to take leases: a single commit, and certainty about how it went.

use std::sync::Arc;
use std::time::Duration;

use crate::flaws::{Flaw, planted};
use crate::lease::acquire::claim::read;
use crate::lease::hold::renew;
use crate::lease::hold::state::{Held, NewTenure};
use crate::lease::hooks::{HookContext, LeaseRef};
use crate::lease::inner::Inner;
use crate::lease::record::{self, LEASE, ORPHAN, OrphanRecord, encode, tagged};
use crate::lease::{LeaseInfo, Terms, Timing};
use crate::store::{Commit, Committed, Expect, Put, Touch, Written};
use crate::{Error, Key, Result};

/// Between looks at what has become of a commit whose outcome is unknown.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A request that was lost on its way may still arrive; it is looked for this often afterwards.
pub(crate) const LATE_LOOKS: u32 = 5;

/// How an attempt ended.
pub(crate) enum Taken {
    /// All of it is held.
    Held(Vec<Arc<Held>>),
    /// The store understood and said no; nothing was taken.
    Refused(Error),
}

/// What an attempt takes.
pub(crate) struct Attempt<'a> {
    pub(crate) leases: Vec<Key>,
    pub(crate) terms: &'a Terms,
    pub(crate) nonce: &'a Arc<str>,
    /// Goes into the same commit.
    pub(crate) commit: Commit,
}

/// Takes leases, or nothing.
pub(crate) async fn take(inner: &Arc<Inner>, attempt: Attempt<'_>) -> Result<Taken> {
    let timing = attempt.terms.timing(&inner.options, inner.store.capabilities());
    let acquired_at_ms = inner.clock.wall_ms();
    let owner = attempt.terms.owner_or(&inner.owner);
    let (terms, nonce) = (attempt.terms, attempt.nonce);
    let (leases, commit) = build(inner, attempt, timing, acquired_at_ms).await?;
    let abandoned = AbandonedAcquire::new(inner, leases, terms, nonce);
    let sent = inner.clock.uptime();
    let (grants, sent) = match inner.store.commit(commit).await {
        Ok(committed) => (numbers(inner, &committed, abandoned.leases.len())?, sent),
        Err(error) if error.is_unknown() => {
            match Box::pin(recover(&abandoned, timing.ttl, sent + timing.ttl, &error)).await? {
                Some(recovered) => recovered,
                // Not there, though it may still arrive. A caller that resumes finds it then.
                None if terms.resume => return Err(error),
                // `abandoned` stays to look for it.
                None => return Err(Error::unavailable(inner.backend(), error)),
            }
        }
        Err(error) => {
            abandoned.settle();
            return if error.is_refusal() { Ok(Taken::Refused(error)) } else { Err(error) };
        }
    };
    let sent = renew::counted_from(inner, sent);
    let held: Vec<Arc<Held>> = abandoned
        .leases
        .iter()
        .zip(grants)
        .map(|(key, (token, revision))| {
            Held::new(NewTenure {
                key: key.clone(),
                owner: owner.clone(),
                nonce: Arc::clone(nonce),
                token,
                revision,
                timing,
                sent,
                reapable: terms.reapable,
                hooks: terms.hooks.clone(),
                metadata: terms.metadata.clone(),
                acquired_at_ms,
            })
        })
        .collect();
    let sent = in_time(inner, &held, sent).await?;
    abandoned.settle();
    for held in &held {
        inner.began(held, sent);
    }
    Ok(Taken::Held(held))
}

async fn build(
    inner: &Inner,
    attempt: Attempt<'_>,
    timing: Timing,
    acquired_at_ms: i64,
) -> Result<(Vec<Key>, Commit)> {
    let owner = attempt.terms.owner_or(&inner.owner);
    let record = record::Written {
        holder: owner.name(),
        start: owner.start(),
        nonce: attempt.nonce,
        acquired_at_ms,
        metadata: &attempt.terms.metadata,
    };
    let payload = encode(&record);
    let mut commit = Commit::new();
    for key in &attempt.leases {
        let put = Put::new(key.clone(), payload.clone()).ttl(timing.ttl);
        commit = commit.put(expecting(put));
    }
    if attempt.terms.reapable {
        for key in &attempt.leases {
            let orphan = OrphanRecord { lease: key.id.clone(), record: record.to_record() };
            let id = tagged(&key.id, attempt.nonce);
            commit = commit.put(Put::new(Key::new(ORPHAN, id), encode(&orphan)));
        }
    }
    // The hook gets a draft of its own: what the lease needs is not its to lose.
    let mut draft = HookContext { store: &inner.store, commit: Commit::new() };
    if let Some(hooks) = &attempt.terms.hooks {
        for key in &attempt.leases {
            let (id, nonce, holder) = (&key.id, attempt.nonce, owner);
            hooks.will_insert(LeaseRef { id, nonce, holder, token: None }, &mut draft).await?;
        }
    }
    Ok((attempt.leases, commit.and(draft.commit).and(attempt.commit)))
}

fn expecting(put: Put) -> Put {
    if planted(Flaw::TakesWhatIsHeld) {
        return put.new_token();
    }
    put.expect(Expect::Absent)
}

/// Token and revision of each lease of a commit; they are its first writes.
fn numbers(inner: &Inner, committed: &Committed, leases: usize) -> Result<Vec<(u64, u64)>> {
    let number = |written: &Written| match written {
        Written::Put(result) => {
            if planted(Flaw::TokenRestarts) {
                return Some((result.version, result.revision));
            }
            Some((result.token, result.revision))
        }
        _ => None,
    };
    let numbers: Option<Vec<_>> = committed.writes.iter().take(leases).map(number).collect();
    numbers.ok_or_else(|| Error::unknown(inner.backend(), "the store did not say what it wrote"))
}

/// What a commit whose outcome is unknown took, if it was applied, and the instant that counts from.
///
/// Who finds its nonce knows that it holds, not for how long: a store may say `Unknown` because it
/// could not make sure of the life. So what is found is renewed, and counts from there.
async fn recover(
    sought: &AbandonedAcquire,
    ttl: Duration,
    give_up: Duration,
    error: &Error,
) -> Result<Option<(Vec<(u64, u64)>, Duration)>> {
    let inner = &*sought.inner;
    loop {
        let Some(found) = resolve(sought, give_up, error).await? else { return Ok(None) };
        let sent = inner.clock.uptime();
        match renewed(sought, found, ttl).await {
            Ok(numbers) => return Ok(numbers.map(|numbers| (numbers, sent))),
            Err(renewing) if inner.clock.uptime() >= give_up => {
                tracing::debug!(%renewing, "giving up on what was found");
                return Err(error.clone());
            }
            Err(_) => inner.clock.sleep(LOOK_AGAIN).await,
        }
    }
}

/// Starts the lives of what was found anew; `None` if one of them is over.
async fn renewed(
    sought: &AbandonedAcquire,
    found: Vec<(u64, u64)>,
    ttl: Duration,
) -> Result<Option<Vec<(u64, u64)>>> {
    let touches = sought.leases.iter().zip(&found);
    let touches =
        touches.map(|(key, (_, revision))| Touch { key: key.clone(), revision: *revision, ttl });
    let touched = sought.inner.store.touch(touches.collect()).await?;
    let mut numbers = Vec::with_capacity(found.len());
    for ((token, _), touched) in found.into_iter().zip(touched) {
        match touched {
            Ok(touched) => numbers.push((token, touched.revision)),
            Err(error) if error.is_refusal() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(numbers))
}

/// Finds out whether a commit whose outcome is unknown was applied: our nonce is there, or it is not.
async fn resolve(
    sought: &AbandonedAcquire,
    give_up: Duration,
    error: &Error,
) -> Result<Option<Vec<(u64, u64)>>> {
    let inner = &*sought.inner;
    tracing::debug!(%error, "looking whether the lease was taken");
    let mut numbers = Vec::new();
    for key in &sought.leases {
        let info = loop {
            match read(inner, key).await {
                Ok(info) => break info,
                Err(reading) if inner.clock.uptime() >= give_up => {
                    tracing::debug!(%reading, "giving up on finding out");
                    return Err(error.clone());
                }
                Err(_) => inner.clock.sleep(LOOK_AGAIN).await,
            }
        };
        match info {
            Some(info) if *info.nonce == *sought.nonce => {
                numbers.push((info.token, info.revision));
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(numbers))
}

/// A grant that arrives so late that a renewal is due already is renewed first: nobody is handed a
/// lease that is over, or about to be. Returns the instant the grant counts from.
async fn in_time(inner: &Inner, held: &[Arc<Held>], sent: Duration) -> Result<Duration> {
    let now = inner.clock.uptime();
    if held.iter().all(|held| now < held.timing.due(sent)) {
        return Ok(sent);
    }
    Box::pin(renewed_first(inner, held, now)).await
}

async fn renewed_first(inner: &Inner, held: &[Arc<Held>], now: Duration) -> Result<Duration> {
    let touch = |held: &Arc<Held>| Touch {
        key: held.key.clone(),
        revision: held.state().revision,
        ttl: held.timing.ttl,
    };
    let late = || {
        let reason = "it answers later than the lease would live; ask for a longer life";
        Error::unavailable(inner.backend(), reason)
    };
    let results = inner.store.touch(held.iter().map(touch).collect()).await?;
    for (held, result) in held.iter().zip(results) {
        match result {
            Ok(touched) => _ = held.renewed(now, touched.revision),
            // It is over, and perhaps somebody else's by now.
            Err(error) if error.is_refusal() => return Err(late()),
            Err(error) => return Err(error),
        }
    }
    let arrived = inner.clock.uptime();
    if held.iter().any(|held| arrived >= held.state().valid_until) {
        return Err(late());
    }
    Ok(now)
}

/// The store says that these are ours: a hand-over has granted what we waited for, or an earlier
/// acquisition of which nobody heard. Makes sure of them and holds them, all or none.
pub(crate) async fn adopt(
    inner: &Arc<Inner>,
    infos: Vec<LeaseInfo>,
    terms: &Terms,
    reapable: bool,
) -> Result<Option<Vec<Arc<Held>>>> {
    let timing = terms.timing(&inner.options, inner.store.capabilities());
    let sent = inner.clock.uptime();
    // Their lives began by no clock of ours: renew them, and count from there.
    let touch = |info: &LeaseInfo| Touch {
        key: Key::new(LEASE, info.id.clone()),
        revision: info.revision,
        ttl: timing.ttl,
    };
    let touched = inner.store.touch(infos.iter().map(touch).collect()).await?;
    let mut adopted = Vec::new();
    for (info, touched) in infos.into_iter().zip(touched) {
        let Ok(touched) = touched else { return Ok(None) };
        adopted.push(Held::new(NewTenure {
            key: Key::new(LEASE, info.id),
            owner: info.holder,
            nonce: info.nonce.into(),
            token: info.token,
            revision: touched.revision,
            timing,
            sent,
            reapable,
            hooks: terms.hooks.clone(),
            metadata: info.metadata,
            acquired_at_ms: info.acquired_at_ms,
        }));
    }
    let Ok(sent) = in_time(inner, &adopted, sent).await else { return Ok(None) };
    for held in &adopted {
        inner.began(held, sent);
    }
    Ok(Some(adopted))
}

/// Looks after a commit of which nobody will hear the outcome: the caller went away, or gave up. If
/// the lease turns up after all, it is let go again instead of blocking others for its whole life.
struct AbandonedAcquire {
    inner: Arc<Inner>,
    leases: Vec<Key>,
    nonce: Arc<str>,
    settled: bool,
}

impl AbandonedAcquire {
    fn new(inner: &Arc<Inner>, leases: Vec<Key>, terms: &Terms, nonce: &Arc<str>) -> Self {
        let (inner, nonce) = (Arc::clone(inner), Arc::clone(nonce));
        // A caller that resumes gets this very lease; releasing it here would take it away.
        Self { inner, leases, nonce, settled: terms.resume }
    }

    fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for AbandonedAcquire {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let (leases, nonce) = (std::mem::take(&mut self.leases), Arc::clone(&self.nonce));
        self.inner.clean_up(async move {
            for look in 0..LATE_LOOKS {
                inner.clock.sleep(LOOK_AGAIN * look * look).await;
                if let Err(error) = withdraw(&inner, &leases, &nonce).await {
                    tracing::debug!(%error, "an abandoned lease may stay until it expires");
                }
            }
        });
    }
}

/// Lets go of those of these leases that this nonce has: nobody is there who holds them.
pub(crate) async fn withdraw(inner: &Inner, leases: &[Key], nonce: &str) -> Result<()> {
    let mut result = Ok(());
    for key in leases {
        match withdraw_one(inner, key, nonce).await {
            // Somebody else has ended it, or it has expired.
            Err(error) if error.is_not_found() => {}
            Err(error) => result = Err(error),
            Ok(()) => {}
        }
    }
    result
}

async fn withdraw_one(inner: &Inner, key: &Key, nonce: &str) -> Result<()> {
    let Some(info) = read(inner, key).await?.filter(|info| *info.nonce == *nonce) else {
        return Ok(());
    };
    let gone = Commit::new().delete(key.clone(), Expect::Revision(info.revision));
    let orphan = Key::new(ORPHAN, tagged(&key.id, nonce));
    let gone = if inner.multi() { gone.delete(orphan, Expect::Any) } else { gone };
    inner.store.commit(gone).await.map(drop)
}
