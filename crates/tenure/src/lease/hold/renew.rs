//! Renewal: many leases in one round trip, again and again until each one's deadline.
//!
//! A renewal that fails is tried again, ever sooner relative to what is left; every attempt has a
//! timeout well below that. So a hung store, a lost reply and a restart of the store all look alike
//! and end in one of two ways: a confirmation in time, or the holder stopping itself in time.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::flaws::{Flaw, planted};
use crate::lease::acquire::claim::read;
use crate::lease::hold::heartbeat;
use crate::lease::hold::state::Held;
use crate::lease::hold::timing::{attempt_timeout, retry_at};
use crate::lease::inner::Inner;
use crate::lease::record::{REVOKED, RevokedRecord, decode, tagged};
use crate::lease::{LeaseInfo, Loss};
use crate::random::below;
use crate::store::{Touch, Touched};
use crate::{Error, Key, Result};

/// With nothing to renew the task sleeps until it is woken; this only bounds the arithmetic.
const FAR: Duration = Duration::from_secs(3600);
/// Timers stand still while the machine is suspended, lives do not. So the clock is looked at this often
/// while something is held: a holder that wakes up without its lease is told so.
const LOOK: Duration = Duration::from_secs(1);

/// Renews until the inner is gone.
pub(crate) async fn run(weak: Weak<Inner>, wake: Arc<Notify>) {
    let mut calls = FuturesUnordered::new();
    while let Some(inner) = weak.upgrade() {
        let now = inner.clock.uptime();
        let (due, next) = inner.take_due(now);
        for batch in batches(&inner, due, now) {
            calls.push(renew(Arc::clone(&inner), batch));
        }
        let until = next.map_or(now + FAR, |next| next.min(now + LOOK));
        let sleep = inner.clock.sleep_until(until);
        drop(inner);
        tokio::select! {
            biased;
            Some(()) = calls.next(), if !calls.is_empty() => {}
            () = wake.notified() => {}
            () = sleep => {}
        }
    }
}

/// One round trip each: as many plain leases as the store takes at once, or one with a hook.
///
/// Leases that are close to their deadline go apart from those that are not: the timeout of a call
/// is that of its most urgent lease.
fn batches(inner: &Inner, due: Vec<Arc<Held>>, now: Duration) -> Vec<Vec<Arc<Held>>> {
    let (mut alone, mut calm, mut urgent) = (Vec::new(), Vec::new(), Vec::new());
    for held in due {
        let (valid_until, failures) = {
            let state = held.state();
            (state.valid_until, state.failures)
        };
        if now >= valid_until {
            inner.end(&held, Loss::Expired);
        } else if held.hooks.as_ref().is_some_and(|hooks| hooks.hears_heartbeats()) {
            alone.push(vec![held]);
        } else if failures > 0 {
            urgent.push(held);
        } else {
            calm.push(held);
        }
    }
    let limit = inner.store.capabilities().limits.touches.max(1);
    let chunks = calm.chunks(limit).chain(urgent.chunks(limit)).map(<[_]>::to_vec);
    alone.into_iter().chain(chunks).collect()
}

async fn renew(inner: Arc<Inner>, batch: Vec<Arc<Held>>) {
    let sent = inner.clock.uptime();
    // One look at each: with ten thousand leases, every look is paid for with a trip to memory.
    let (mut deadline, mut tried) = (None, Vec::with_capacity(batch.len()));
    for held in &batch {
        let state = held.state();
        deadline = Some(deadline.map_or(state.valid_until, |d: Duration| d.min(state.valid_until)));
        tried.push(state.revision);
    }
    let timeout = inner.clock.sleep(attempt_timeout(sent, deadline.unwrap_or(sent)));
    let attempt = attempt(&inner, &batch, &tried);
    let answer = tokio::select! {
        biased;
        answer = attempt => answer,
        () = timeout => Err(Error::unknown(inner.backend(), "a renewal got no answer in time")),
    };
    let sent = counted_from(&inner, sent);
    match answer {
        Ok(results) => {
            let mut odd = FuturesUnordered::new();
            for ((held, &tried), result) in batch.iter().zip(&tried).zip(results) {
                match result {
                    Ok(touched) => renewed(&inner, held, sent, touched),
                    Err(error) => odd.push(explain(&inner, held, tried, error)),
                }
            }
            while odd.next().await.is_some() {}
        }
        Err(error) => {
            tracing::debug!(%error, leases = batch.len(), "renewal failed; trying again");
            try_again(&inner, &batch);
        }
    }
}

async fn attempt(
    inner: &Inner,
    batch: &[Arc<Held>],
    revisions: &[u64],
) -> Result<Vec<Result<Touched>>> {
    if let [held] = batch
        && let Some(hooks) = held.hooks.as_ref().filter(|hooks| hooks.hears_heartbeats())
    {
        // It is the caller's code, and others are renewed by this task as well.
        let hooked = AssertUnwindSafe(heartbeat::with_hooks(inner, held, &**hooks));
        let panicked = |_| Err(Error::unavailable(inner.backend(), "a hook has panicked"));
        return Ok(vec![hooked.catch_unwind().await.unwrap_or_else(panicked)]);
    }
    let touch = |(held, &revision): (&Arc<Held>, &u64)| Touch {
        key: held.key.clone(),
        revision,
        ttl: held.timing.ttl,
    };
    inner.store.touch(batch.iter().zip(revisions).map(touch).collect()).await
}

fn renewed(inner: &Inner, held: &Arc<Held>, sent: Duration, touched: Touched) {
    inner.metrics.renewed.inc();
    let (lease, holder) = (&held.key.id, &held.owner);
    tracing::debug!(%lease, %holder, token = held.token, "renewed");
    let valid_until = held.renewed(sent, touched.revision);
    if inner.clock.uptime() >= valid_until {
        // The answer came too late to be of use: by its count the lease may be gone again.
        return inner.end(held, Loss::Expired);
    }
    inner.renew_at(held, held.timing.due(sent));
}

/// The instant from which a grant counts: when the request left.
pub(crate) fn counted_from(inner: &Inner, sent: Duration) -> Duration {
    if planted(Flaw::CountsFromReply) { inner.clock.uptime() } else { sent }
}

/// Schedules another attempt before the deadline, or the end at the deadline. What failed together
/// pauses together, to share the next round trip as well.
fn try_again(inner: &Inner, batch: &[Arc<Held>]) {
    let now = inner.clock.uptime();
    let jitter = u32::try_from(below(&*inner.random, 1000)).unwrap_or(0);
    for held in batch {
        inner.metrics.renewals_failed.inc();
        if planted(Flaw::GivesUpAtOnce) {
            inner.end(held, Loss::Expired);
            continue;
        }
        let at = {
            let mut state = held.state();
            state.failures += 1;
            retry_at(now, state.valid_until, state.failures, jitter)
        };
        inner.renew_at(held, at);
    }
}

/// The store said no to this one: find out why, and carry on if it is still ours. Where a touch draws
/// a revision, another renewal of ours may have been quicker than this one, which `tried` shows.
async fn explain(inner: &Inner, held: &Arc<Held>, tried: u64, error: Error) {
    if !error.is_refusal() || matches!(error, Error::Invalid { .. }) || held.state().leaving {
        return try_again(inner, std::slice::from_ref(held));
    }
    match found(inner, held).await {
        Ok(Found::Ours(revision)) => {
            {
                let mut state = held.state();
                state.revision = state.revision.max(revision);
            }
            if tried != revision {
                inner.renew_at(held, inner.clock.uptime());
            } else {
                try_again(inner, std::slice::from_ref(held));
            }
        }
        Ok(Found::Ended(loss)) => {
            // A release that is under way finds out by itself how it went.
            if !held.state().leaving {
                inner.end(held, loss);
            }
        }
        Err(_) => try_again(inner, std::slice::from_ref(held)),
    }
}

/// What has become of a lease that was ours.
pub(crate) enum Found {
    /// It still is, at this revision.
    Ours(u64),
    /// It is not, and this is why.
    Ended(Loss),
}

/// Who holds what was ours. Bounded by what is left of it.
pub(crate) async fn present(inner: &Inner, held: &Held) -> Result<Option<LeaseInfo>> {
    let until = held.state().valid_until;
    let timeout = inner.clock.sleep(attempt_timeout(inner.clock.uptime(), until));
    tokio::select! {
        biased;
        info = read(inner, &held.key) => info,
        () = timeout => Err(Error::unavailable(inner.backend(), "no answer in time")),
    }
}

/// Reads what has become of a lease of ours. Bounded by what is left of it.
pub(crate) async fn found(inner: &Inner, held: &Held) -> Result<Found> {
    let until = held.state().valid_until;
    if let Some(info) = present(inner, held).await? {
        if *info.nonce == *held.nonce {
            return Ok(Found::Ours(info.revision));
        }
        return Ok(Found::Ended(Loss::Taken { by: info.holder.to_string(), token: info.token }));
    }
    if inner.clock.uptime() >= until {
        return Ok(Found::Ended(Loss::Expired));
    }
    // Gone before it can have expired: somebody ended it, and may have left a word about it.
    // If that cannot be read soon, the loss is told without it.
    let key = Key::new(REVOKED, tagged(&held.key.id, &held.nonce));
    let timeout = inner.clock.sleep(attempt_timeout(inner.clock.uptime(), until));
    let note = tokio::select! {
        biased;
        note = inner.store.get(&key) => note.ok().flatten(),
        () = timeout => None,
    };
    let note = note.and_then(|object| decode::<RevokedRecord>(&object, inner.backend()).ok());
    let (by, reason) = note.map(|note| (note.by, note.reason)).unzip();
    Ok(Found::Ended(Loss::Revoked { by, reason }))
}

/// Renews these leases now, in as few round trips as the store allows. One answer for each.
///
/// They stay on the schedule meanwhile: the caller may go away or block before the answer comes.
pub(crate) async fn renew_now(inner: &Arc<Inner>, leases: Vec<Arc<Held>>) -> Vec<Result<()>> {
    let now = inner.clock.uptime();
    let mut calls: FuturesUnordered<_> = batches(inner, leases.clone(), now)
        .into_iter()
        .map(|batch| renew(Arc::clone(inner), batch))
        .collect();
    while calls.next().await.is_some() {}
    let now = inner.clock.uptime();
    let answer = |held: &Arc<Held>| {
        // First, whatever failed before: what has ended is not tried again.
        if let Some(loss) = held.ended(now) {
            return Err(held.lost(&loss));
        }
        if held.state().failures > 0 {
            let reason = "the renewal failed; it is tried again until the deadline";
            return Err(Error::unavailable(inner.backend(), reason));
        }
        Ok(())
    };
    leases.iter().map(answer).collect()
}
