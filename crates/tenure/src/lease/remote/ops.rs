//! What a coordinator does for a client that has a grant. It keeps nothing of it, so any other coordinator
//! on the same store does the same.

use std::time::Duration;

use futures::stream::{self, StreamExt};

use crate::lease::acquire::claim::read;
use crate::lease::end::handover;
use crate::lease::end::release::{self, Outcome};
use crate::lease::hold::heartbeat::same_again;
use crate::lease::hold::state::{Held, NewTenure};
use crate::lease::hold::timing::attempt_timeout;
use crate::lease::inner::Inner;
use crate::lease::metrics::EndLabels;
use crate::lease::remote::grant::{LeaseGrant, Renewed, remaining};
use crate::lease::terms::check_life;
use crate::lease::{Coordinator, LeaseInfo, Loss, Metadata};
use crate::store::{Touch, Touched};
use crate::{Error, Result};

/// Attempts to renew what others renew at the same moment.
const ATTEMPTS: u32 = 8;
/// Calls at the same time: of a store that takes few in one, and for those it said no to.
const AT_ONCE: usize = 16;

impl Coordinator {
    /// Renews these leases, in as few round trips as the store allows, whichever coordinator granted them. One
    /// answer for each, in their order; renewing again is always safe. The life asked for is
    /// [`LeaseGrant::ttl`], which may be another one than before.
    ///
    /// # Errors
    /// [`Error::Lost`], with the token of the present holder, for one that has ended.
    pub async fn renew_grants(&self, grants: &[LeaseGrant]) -> Vec<Result<Renewed>> {
        let inner = self.inner();
        let limit = inner.store.capabilities().limits.touches.max(1);
        let calls: Vec<_> = grants.chunks(limit).map(|chunk| renew(inner, chunk)).collect();
        let answers: Vec<_> = stream::iter(calls).buffered(AT_ONCE).collect().await;
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        for answer in &answers {
            match answer {
                Ok(_) => inner.metrics.renewed.inc(),
                Err(_) => inner.metrics.renewals_failed.inc(),
            };
        }
        answers
    }

    /// Lets go of a lease, after the work has stopped. There are no hooks on a grant: an
    /// error it is released with goes to the log, a value nowhere.
    ///
    /// # Errors
    /// [`Error::Lost`] if it had ended already.
    pub async fn release_grant(&self, grant: &LeaseGrant, outcome: Outcome<'_>) -> Result<()> {
        let inner = self.inner();
        let held = Held::new(grant.new_tenure(inner.store.capabilities(), inner.clock.uptime()));
        release::try_release(inner, &[held], outcome, None).await?;
        if let Outcome::Fail(error) = outcome {
            tracing::info!(lease = %grant.id, holder = %grant.owner, "failed: {error}");
        }
        ended(inner, grant, &Loss::Released);
        Ok(())
    }

    /// Passes a lease on to somebody who waits for it, by name or by `name#nonce`, after the work
    /// has stopped. See [`crate::lease::Lease::hand_over`].
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended; [`Error::Invalid`] if no such waiter is in line, and then it
    /// is still held. If the outcome stays [`Error::Unknown`], it is let go: it may be passed on at
    /// any moment.
    pub async fn hand_over_grant(&self, grant: &LeaseGrant, successor: &str) -> Result<()> {
        let inner = self.inner();
        let held = Held::new(grant.new_tenure(inner.store.capabilities(), inner.clock.uptime()));
        // Before the line is looked at: for what is lost, nobody need be in it.
        present(inner, grant).await?;
        let built = handover::build(inner, &held, &grant.queue, successor).await?;
        let passed_on = handover::pass_on(inner, &held, &grant.queue, successor, built).await;
        match &passed_on {
            Ok(to) => ended(inner, grant, &Loss::HandedOver { to: to.clone() }),
            Err(error) if error.is_unknown() => {
                let doubt = Some(error.clone());
                let _ = release::try_release(inner, &[held], Outcome::Plain, doubt).await;
            }
            Err(_) => {}
        }
        passed_on.map(drop)
    }

    /// Tells everybody something else about the holder, and starts the lease's life anew. If the
    /// outcome is unknown, say it again.
    ///
    /// # Errors
    /// [`Error::Lost`] if it has ended.
    pub async fn proclaim_grant(&self, grant: &LeaseGrant, metadata: Metadata) -> Result<Renewed> {
        check_life(grant.ttl)?;
        let inner = self.inner();
        let info = present(inner, grant).await?;
        let sent = inner.clock.uptime();
        // What the record says about itself stays; the grant may be anybody's copy.
        let (owner, acquired_at_ms) = (info.holder, info.acquired_at_ms);
        let new = grant.new_tenure(inner.store.capabilities(), sent);
        let held = Held::new(NewTenure { owner, acquired_at_ms, metadata, ..new });
        let committed = inner.store.commit(same_again(&held)).await?;
        let revision = committed.first_put().map_or(info.revision, |put| put.revision);
        inner.metrics.renewed.inc();
        granted(inner, grant, sent, revision)
    }
}

/// Keeps account of what was held elsewhere.
fn ended(inner: &Inner, grant: &LeaseGrant, loss: &Loss) {
    inner.metrics.ended.get_or_create(&EndLabels { reason: loss.code() }).inc();
    tracing::info!(lease = %grant.id, holder = %grant.owner, token = grant.token, "{loss}");
}

/// Renews as many as fit in one touch.
async fn renew(inner: &Inner, grants: &[LeaseGrant]) -> Vec<Result<Renewed>> {
    // One that makes no sense must not spoil the others.
    let mut answers: Vec<Option<Result<Renewed>>> =
        grants.iter().map(|grant| check(inner, grant).err().map(Err)).collect();
    let sound: Vec<usize> = (0..grants.len()).filter(|at| answers[*at].is_none()).collect();
    let touches = sound.iter().map(|at| touch(inner, &grants[*at], grants[*at].revision)).collect();
    let sent = inner.clock.uptime();
    let mut odd = Vec::new();
    match send(inner, touches).await {
        Err(error) => sound.iter().for_each(|at| answers[*at] = Some(Err(error.clone()))),
        Ok(results) => {
            for (at, result) in sound.into_iter().zip(results) {
                match result {
                    Ok(touched) => {
                        answers[at] = Some(granted(inner, &grants[at], sent, touched.revision));
                    }
                    Err(error) if error.is_conflict() || error.is_not_found() => odd.push(at),
                    Err(error) => answers[at] = Some(Err(error)),
                }
            }
        }
    }
    let again = |at: usize| async move { (at, renew_as_it_is(inner, &grants[at]).await) };
    let mut explained = stream::iter(odd.into_iter().map(again)).buffer_unordered(AT_ONCE);
    while let Some((at, answer)) = explained.next().await {
        answers[at] = Some(answer);
    }
    let silent = || Err(Error::unknown(inner.backend(), "the store said nothing about it"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(silent)).collect()
}

/// The store said no at the grant's revision: renews it at the present one, if it is still theirs.
async fn renew_as_it_is(inner: &Inner, grant: &LeaseGrant) -> Result<Renewed> {
    for _ in 0..ATTEMPTS {
        let info = present(inner, grant).await?;
        let sent = inner.clock.uptime();
        let touched = send(inner, vec![touch(inner, grant, info.revision)]).await?;
        match touched.into_iter().next() {
            Some(Ok(touched)) => return granted(inner, grant, sent, touched.revision),
            Some(Err(error)) if error.is_conflict() || error.is_not_found() => {}
            Some(Err(error)) => return Err(error),
            None => break,
        }
    }
    Err(Error::unavailable(inner.backend(), "others changed it each time; renew it again"))
}

/// The lease as it is now, if it is still the one of this grant.
async fn present(inner: &Inner, grant: &LeaseGrant) -> Result<LeaseInfo> {
    let key = grant.key();
    let timeout = inner.clock.sleep(patience(inner, grant.ttl));
    let info = tokio::select! {
        biased;
        info = read(inner, &key) => info?,
        () = timeout => return Err(Error::unavailable(inner.backend(), "no answer in time")),
    };
    match info {
        Some(info) if info.nonce == grant.nonce && info.token == grant.token => Ok(info),
        info => Err(grant.lost(info.map(|info| info.token))),
    }
}

fn touch(inner: &Inner, grant: &LeaseGrant, revision: u64) -> Touch {
    grant.touch(revision, inner.store.capabilities())
}

fn check(inner: &Inner, grant: &LeaseGrant) -> Result<()> {
    check_life(grant.ttl)?;
    inner.store.capabilities().limits.check_touches(&[touch(inner, grant, grant.revision)])
}

/// Sends touches, with a timeout that leaves time for others before the first of them ends.
async fn send(inner: &Inner, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
    let Some(shortest) = touches.iter().map(|touch| touch.ttl).min() else {
        return Ok(Vec::new());
    };
    let timeout = inner.clock.sleep(patience(inner, shortest));
    tokio::select! {
        biased;
        answer = inner.store.touch(touches) => answer,
        () = timeout => Err(Error::unknown(inner.backend(), "a renewal got no answer in time")),
    }
}

/// How long one call may take for a lease of this life.
fn patience(inner: &Inner, ttl: Duration) -> Duration {
    let now = inner.clock.uptime();
    attempt_timeout(now, now + ttl)
}

/// What was granted, unless the answer came too late to be of use.
fn granted(inner: &Inner, grant: &LeaseGrant, sent: Duration, revision: u64) -> Result<Renewed> {
    let timing = grant.timing(inner.store.capabilities());
    let sent = crate::lease::hold::renew::counted_from(inner, sent);
    match remaining(timing, sent, inner.clock.uptime()) {
        Some(remaining) => Ok(Renewed { revision, ttl: timing.ttl, remaining }),
        None => {
            let reason = "the answer took longer than the lease lives; renew it again";
            Err(Error::unknown(inner.backend(), reason))
        }
    }
}
