//! Letting go: by a caller that goes away halfway, of several leases at once, with an answer in doubt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::lease::{HookContext, Hooks, LeaseRef, Loss, Terms, lease_key};
use tenure::store::faulty::{Fault, Operation};
use tenure::store::{Commit, Expect, Put, Store};
use tenure::{Error, Key};

use super::leases::soon;
use crate::context::{Context, PATIENCE};
use crate::helpers::{existing, text};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

/// A call that takes this long was given up long before.
const AGES: Duration = Duration::from_secs(3600);

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_release_given_up_is_finished,
            [ttl, real_time],
            "its caller goes away halfway, and the next one need not wait for the expiry"
        ),
        behaviour!(
            a_hooked_release_given_up_is_finished,
            [multi, ttl, real_time],
            "with the value it began with, for the hook to see"
        ),
        behaviour!(
            a_hand_over_given_up_lets_go,
            [multi, ttl, real_time],
            "whoever is next in line gets the lease, long before it would expire"
        ),
        behaviour!(
            one_that_is_lost_does_not_keep_the_others,
            [multi, ttl, real_time],
            "several are released at once: those still held are let go of, each is told its own end"
        ),
        behaviour!(
            a_release_that_lands_late_is_not_told_as_a_loss,
            [multi, ttl, real_time],
            "the first attempt may have been what ended it, so the outcome is unknown"
        ),
    ]
}

/// Terms with a life that no behaviour outlives.
fn long(ctx: &Context) -> Terms {
    Terms::new().ttl(ctx.ttl_of(Duration::from_secs(60)))
}

/// Begins something and goes away while the store has not answered.
async fn give_up<T>(call: impl Future<Output = T>) -> Result<(), Failure> {
    match tokio::time::timeout(Duration::from_millis(50), call).await {
        Ok(_) => Err(Failure::new("it was answered before it could be given up")),
        Err(_) => Ok(()),
    }
}

async fn a_release_given_up_is_finished(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("given-up")?;
    let (holder, plan) = ctx.faulty("holder").await?;
    let lease = holder.acquire(&scope, &long(&ctx)).await?;
    let observer = lease.observer();
    plan.next(Operation::Commit, Fault::Delay(AGES));
    give_up(lease.release()).await?;
    soon("the rest of the release", holder.settle()).await?;
    ensure_eq!(observer.loss(), Some(Loss::Released), "what is told");
    ensure_eq!(holder.metrics().held.get(), 0, "held, by the count");
    let next = ctx.coordinator("next").await?.acquire(&scope, &long(&ctx)).await?;
    Ok(next.release().await?)
}

/// Takes a note of the value in the commit that releases.
struct Note {
    key: Key,
    /// Before it is asked for the second time, this commit arrives.
    late: Mutex<Option<(Store, Commit)>>,
    asked: AtomicUsize,
}

impl Note {
    fn new(key: Key) -> Self {
        Self { key, late: Mutex::default(), asked: AtomicUsize::new(0) }
    }
}

#[async_trait]
impl Hooks for Note {
    async fn will_release_ok(
        &self,
        _: LeaseRef<'_>,
        value: &[u8],
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 1 {
            let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((store, commit)) = late {
                store.commit(commit).await?;
            }
        }
        draft.commit = Commit::from(Put::new(self.key.clone(), value.to_vec()));
        Ok(())
    }
}

async fn a_hooked_release_given_up_is_finished(ctx: Context) -> Result<(), Failure> {
    let (scope, note) = (ctx.scope("given-up")?, ctx.key("note"));
    let (holder, plan) = ctx.faulty("holder").await?;
    let terms = long(&ctx).hooks(Arc::new(Note::new(note.clone())));
    let lease = holder.acquire(&scope, &terms).await?;
    plan.next(Operation::Commit, Fault::Delay(AGES));
    give_up(lease.release_ok(b"42")).await?;
    soon("the rest of the release", holder.settle()).await?;
    ensure_eq!(text(&existing(ctx.store(), &note).await?), "42", "what the hook saw");
    ensure!(holder.holder(&scope).await?.is_none(), "held after its release");
    Ok(())
}

async fn a_hand_over_given_up_lets_go(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("given-up")?;
    let (holder, plan) = ctx.faulty("holder").await?;
    let waiter = ctx.coordinator("waiter").await?;
    let lease = holder.acquire(&scope, &long(&ctx)).await?;
    let waiting = {
        let (scope, terms) = (scope.clone(), long(&ctx).wait_forever());
        tokio::spawn(async move { waiter.acquire(&scope, &terms).await })
    };
    let in_line = async {
        while holder.status(&scope).await?.waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, Error>(())
    };
    soon("the waiter", in_line).await??;
    plan.next(Operation::Commit, Fault::Delay(AGES));
    give_up(lease.hand_over("waiter")).await?;
    Ok(soon("the next holder", waiting).await???.release().await?)
}

async fn one_that_is_lost_does_not_keep_the_others(ctx: Context) -> Result<(), Failure> {
    let scopes = [ctx.scope("a")?, ctx.scope("b")?, ctx.scope("c")?];
    let (holder, operator) = (ctx.coordinator("holder").await?, ctx.coordinator("op").await?);
    let leases = holder.acquire_all(&scopes, &long(&ctx)).await?;
    let observers: Vec<_> = leases.iter().map(tenure::lease::Lease::observer).collect();
    ensure!(operator.revoke(&scopes[1], "maintenance").await?, "there was a holder");
    match tokio::time::timeout(PATIENCE, leases.release()).await {
        Ok(Err(Error::Lost { key, .. })) => ensure_eq!(key, lease_key(&scopes[1]), "which is lost"),
        other => return Err(Failure::new(format!("not told that one is lost: {other:?}"))),
    }
    for scope in &scopes {
        ensure!(operator.holder(scope).await?.is_none(), "{scope} is held after its release");
    }
    let told: Vec<_> = observers.iter().map(tenure::lease::LeaseObserver::loss).collect();
    let by = Some(operator.owner().to_string());
    let revoked = Loss::Revoked { by, reason: Some("maintenance".into()) };
    ensure_eq!(told, [Some(Loss::Released), Some(revoked), Some(Loss::Released)]);
    Ok(())
}

async fn a_release_that_lands_late_is_not_told_as_a_loss(ctx: Context) -> Result<(), Failure> {
    let (scope, note) = (ctx.scope("late")?, ctx.key("note"));
    let (holder, plan) = ctx.faulty("holder").await?;
    let hook = Arc::new(Note::new(note.clone()));
    let lease = holder.acquire(&scope, &long(&ctx).hooks(hook.clone())).await?;
    // What the first attempt sends is on its way for a while.
    let first = Commit::new().delete(lease_key(&scope), Expect::Token(lease.token()));
    let first = first.put(Put::new(note.clone(), "42"));
    let late = Some((ctx.store().clone(), first));
    *hook.late.lock().unwrap_or_else(PoisonError::into_inner) = late;
    plan.next(Operation::Commit, Fault::LostRequest);
    let observer = lease.observer();
    match lease.release_ok(b"42").await {
        Err(Error::Unknown { .. }) => {}
        other => return Err(Failure::new(format!("not in doubt: {other:?}"))),
    }
    ensure_eq!(observer.loss(), Some(Loss::Released), "what is told");
    ensure_eq!(text(&existing(ctx.store(), &note).await?), "42", "what applied");
    Ok(())
}
