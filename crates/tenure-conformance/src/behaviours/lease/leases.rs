//! Leases: one holder, rising tokens, what everybody can see of them.

use std::time::Duration;

use futures::StreamExt;
use tenure::lease::{Lease, LeaseEvent, Terms};
use tenure::store::{Commit, Put};
use tenure::{Error, Key};

use crate::context::{Context, PATIENCE};
use crate::helpers::number;
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_scope_has_one_holder,
            [ttl, real_time],
            "many ask at once: one gets it, the others are told who has it"
        ),
        behaviour!(
            a_later_holder_has_a_greater_token,
            [ttl, real_time],
            "through release and re-acquisition by several coordinators"
        ),
        behaviour!(
            a_lease_is_seen_by_everybody,
            [ttl, real_time],
            "by holder, list and watch, with what its holder tells about itself"
        ),
        behaviour!(
            a_former_holder_writes_nothing,
            [multi, ttl, real_time],
            "a commit fenced by a lease that moved on is Lost, and leaves everything alone"
        ),
        behaviour!(
            fenced_counting_under_a_lease_loses_nothing,
            [multi, ttl, real_time],
            "several coordinators count in turn, each write fenced by its lease"
        ),
        behaviour!(
            a_life_too_short_to_renew_is_refused,
            [ttl, real_time],
            "with the shortest one that works, instead of a lease that is lost at once"
        ),
    ]
}

/// Terms with a life that suits the store.
pub(super) fn terms(ctx: &Context) -> Terms {
    Terms::new().ttl(ctx.life())
}

/// That somebody asked in vain because another holds it, whom the store names. `is_held` tells whether
/// that other's life was certainly not over when the answer came: if it was, nothing is wrong.
#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(
    asked: tenure::Result<T>,
    is_held: bool,
) -> Result<Option<String>, Failure> {
    match asked {
        Err(Error::Held { holder, .. }) if is_held => Ok(holder),
        Ok(_) | Err(Error::Held { .. }) if !is_held => {
            Err(Failure::late(format!("the holder's life ended too soon: {asked:?}")))
        }
        Err(error) => Err(error.into()),
        Ok(taken) => Err(Failure::new(format!("had beside its holder: {taken:?}"))),
    }
}

/// The result of something that must happen in time.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(PATIENCE * 2, future).await;
    answer.map_err(|_| Failure::late(format!("{what}: nothing happened for {:?}", PATIENCE * 2)))
}

async fn a_scope_has_one_holder(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("one")?;
    let mut tasks = Vec::new();
    for n in 0..6 {
        let coordinator = ctx.coordinator(&format!("c{n}")).await?;
        for _ in 0..3 {
            let (coordinator, scope, terms) = (coordinator.clone(), scope.clone(), terms(&ctx));
            tasks.push(async move {
                match coordinator.acquire(&scope, &terms).await {
                    Ok(lease) => Ok(Some(lease)),
                    Err(Error::Held { .. }) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            });
        }
    }
    let winners: Vec<Lease> = all_at_once(tasks).await?.into_iter().flatten().collect();
    ensure_eq!(winners.len(), 1, "winners");
    let Some(winner) = winners.into_iter().next() else { return Err(Failure::new("no winner")) };
    ensure!(winner.token() > 0, "the winner has a token: {winner:?}");
    ensure_in_time!(winner.is_valid(), "the winner holds it: {winner:?}");
    let other = ctx.coordinator("late").await?;
    let asked = other.acquire(&scope, &terms(&ctx)).await;
    if let Err(Error::Held { token, .. }) = &asked
        && winner.is_valid()
    {
        ensure_eq!(*token, winner.token(), "under which token");
    }
    let holder = refused(asked, winner.is_valid())?;
    ensure_eq!(holder, Some(winner.owner().to_string()), "who has it");
    Ok(winner.release().await?)
}

async fn a_later_holder_has_a_greater_token(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("rising")?;
    let coordinators = [ctx.coordinator("a").await?, ctx.coordinator("b").await?];
    let mut last = 0;
    let mut keys = std::collections::BTreeSet::new();
    for round in 0..10 {
        let lease = coordinators[round % 2].acquire(&scope, &terms(&ctx)).await?;
        ensure!(lease.token() > last, "{} after {last}", lease.token());
        ensure!(keys.insert(lease.lease_key()), "a lease key came twice");
        last = lease.token();
        lease.release().await?;
    }
    Ok(())
}

async fn a_lease_is_seen_by_everybody(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("seen")?;
    let (holder, reader) = (ctx.coordinator("holder").await?, ctx.coordinator("reader").await?);
    let mut events = reader.watch(scope.as_str(), None).await?;
    let lease = holder.acquire(&scope, &terms(&ctx).metadata("address", "here:1")).await?;
    let info = reader.holder(&scope).await?.ok_or("nobody holds it")?;
    ensure_eq!(info.token, lease.token());
    ensure_eq!(info.metadata.get("address").map(String::as_str), Some("here:1"));
    ensure!(info.holder.is_called("holder"), "held by {}", info.holder);
    ensure!(info.expires_in.is_some_and(|left| left <= ctx.life()), "{:?}", info.expires_in);
    let listed = reader.list(&scope.namespace(), true).await?;
    ensure_eq!(listed.len(), 1, "listed");

    lease.proclaim([("address".to_owned(), "there:2".to_owned())].into()).await?;
    let info = reader.holder(&scope).await?.ok_or("nobody holds it")?;
    ensure_eq!(info.metadata.get("address").map(String::as_str), Some("there:2"));
    ensure_eq!(info.token, lease.token(), "a proclamation keeps the token");
    lease.renew().await?;
    lease.release().await?;
    ensure!(reader.holder(&scope).await?.is_none(), "after the release");

    let mut seen = Vec::new();
    while seen.len() < 3 {
        match soon("the watch", events.next()).await?.ok_or("the watch ended")?? {
            LeaseEvent::Held(info) => seen.push(info.metadata.get("address").cloned()),
            LeaseEvent::Ended { .. } => seen.push(None),
        }
    }
    ensure_eq!(seen, [Some("here:1".to_owned()), Some("there:2".to_owned()), None]);
    Ok(())
}

async fn a_former_holder_writes_nothing(ctx: Context) -> Result<(), Failure> {
    let (scope, target) = (ctx.scope("former")?, ctx.key("target"));
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let old = a.acquire(&scope, &terms(&ctx)).await?;
    let write = |value: &str| Commit::from(Put::new(target.clone(), value.to_owned()));
    a.store().commit(write("old").fenced_by(&old)).await?;
    let fence = old.fence();
    old.release().await?;
    let new = b.acquire(&scope, &terms(&ctx)).await?;
    match a.store().commit(write("late").fenced_by(fence)).await {
        Err(Error::Lost { current, .. }) => ensure_eq!(current, Some(new.token()), "who holds it"),
        other => return Err(Failure::new(format!("not Lost: {other:?}"))),
    }
    b.store().commit(write("new").fenced_by(&new)).await?;
    let now = crate::helpers::existing(ctx.store(), &target).await?;
    ensure_eq!((&now.payload[..], now.version), (&b"new"[..], 2));
    Ok(new.release().await?)
}

async fn fenced_counting_under_a_lease_loses_nothing(ctx: Context) -> Result<(), Failure> {
    const EACH: u64 = 15;
    let (scope, target) = (ctx.scope("count")?, ctx.key("count"));
    let mut tasks = Vec::new();
    for n in 0..4 {
        let coordinator = ctx.coordinator(&format!("c{n}")).await?;
        let (scope, target, terms) = (scope.clone(), target.clone(), terms(&ctx).wait(PATIENCE));
        tasks.push(async move {
            let mut tokens = Vec::new();
            for _ in 0..EACH {
                let lease = coordinator.acquire(&scope, &terms).await?;
                count(&coordinator, &lease, &target).await?;
                tokens.push(lease.token());
                lease.release().await?;
            }
            Ok(tokens)
        });
    }
    let tokens: Vec<u64> = all_at_once(tasks).await?.into_iter().flatten().collect();
    let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
    ensure_eq!(distinct.len(), tokens.len(), "tokens that differ");
    let total = number(&crate::helpers::existing(ctx.store(), &target).await?);
    ensure_eq!(total, 4 * EACH, "the count");
    Ok(())
}

/// Reads and writes without any condition but the fence: only the lease keeps others away.
pub(super) async fn count(
    coordinator: &tenure::lease::Coordinator,
    lease: &Lease,
    target: &Key,
) -> Result<(), Failure> {
    let store = coordinator.store();
    let now = store.get(target).await?.map_or(0, |object| number(&object));
    tokio::task::yield_now().await;
    let put = Put::new(target.clone(), (now + 1).to_string());
    store.commit(Commit::from(put).fenced_by(lease)).await?;
    Ok(())
}

async fn a_life_too_short_to_renew_is_refused(ctx: Context) -> Result<(), Failure> {
    let (coordinator, scope) = (ctx.coordinator("c").await?, ctx.scope("short")?);
    for short in [Duration::ZERO, Duration::from_millis(20)] {
        let refused = coordinator.acquire(&scope, &Terms::new().ttl(short)).await;
        match &refused {
            Err(Error::Invalid { reason, .. }) => ensure!(reason.contains("50ms"), "{reason}"),
            _ => return Err(Failure::new(format!("a life of {short:?}: {refused:?}"))),
        }
    }
    ensure!(coordinator.holder(&scope).await?.is_none(), "held all the same");
    Ok(())
}
