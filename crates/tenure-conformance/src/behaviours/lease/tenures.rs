//! Tenures: how long a holder may act, what keeps it going, and how it learns of the end.

use std::time::Duration;

use tenure::Error;
use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Loss, Terms};
use tenure::store::faulty::{Fault, Operation};
use tenure::store::{Commit, Expect};

use super::leases::{refused, soon, terms};
use crate::context::Context;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_lease_is_renewed_for_as_long_as_it_is_held,
            [ttl, real_time],
            "for several of its lives, many leases together"
        ),
        behaviour!(
            a_failed_renewal_is_tried_again,
            [ttl, real_time],
            "errors, lost replies and lost requests inside its life do not end a tenure"
        ),
        behaviour!(
            a_renewal_given_up_ends_no_tenure,
            [ttl, real_time],
            "its caller goes away halfway, and the renewals that happen anyway go on"
        ),
        behaviour!(
            a_lost_reply_to_an_acquisition_is_resolved,
            [ttl, real_time],
            "the nonce tells that the lease is ours; a lost request is sent again"
        ),
        behaviour!(
            a_holder_without_its_store_stops_before_the_next_one_starts,
            [ttl, real_time],
            "it tells that it expired by its own clock, then the waiter gets the lease"
        ),
        behaviour!(
            a_late_grant_is_not_handed_out,
            [ttl, real_time],
            "a reply that took longer than the lease lives does not make a holder"
        ),
        behaviour!(
            a_revoked_holder_learns_by_whom_and_why,
            [multi, ttl, real_time],
            "with its next renewal; its fenced commits fail before that"
        ),
        behaviour!(
            a_holder_learns_who_took_its_lease,
            [ttl, real_time],
            "if it was deleted and another acquired it"
        ),
        behaviour!(
            a_dropped_handle_lets_go,
            [ttl, real_time],
            "in the background, long before the lease would expire"
        ),
        behaviour!(
            work_is_dropped_when_the_lease_is_lost,
            [ttl, real_time],
            "and runs to its end when it is not"
        ),
        behaviour!(
            renewals_that_overlap_all_succeed,
            [ttl, real_time],
            "also where each of them draws a revision, so that all but one come too late"
        ),
    ]
}

async fn a_lease_is_renewed_for_as_long_as_it_is_held(ctx: Context) -> Result<(), Failure> {
    let (holder, other) = (ctx.coordinator("holder").await?, ctx.coordinator("other").await?);
    let mut leases = Vec::new();
    for n in 0..20 {
        leases.push(holder.acquire(&ctx.scope(&format!("long-{n}"))?, &terms(&ctx)).await?);
    }
    for _ in 0..3 {
        ctx.pass(ctx.life()).await;
        for lease in &leases {
            ensure_in_time!(lease.is_valid(), "{lease:?}");
        }
        refused(other.acquire(&ctx.scope("long-3")?, &terms(&ctx)).await, leases[3].is_valid())?;
    }
    let all: Vec<_> = leases.iter().collect();
    for result in holder.heartbeat(&all).await {
        result?;
    }
    let renewed = holder.metrics().renewed.get();
    ensure_in_time!(renewed >= 60, "renewed {renewed} times");
    for lease in leases {
        lease.release().await?;
    }
    ensure_eq!(other.list(&ctx.namespace("lease")?, false).await?.len(), 0, "left");
    Ok(())
}

async fn a_failed_renewal_is_tried_again(ctx: Context) -> Result<(), Failure> {
    let (holder, plan) = ctx.faulty("holder").await?;
    let lease = holder.acquire(&ctx.scope("retry")?, &terms(&ctx)).await?;
    for fault in [Fault::Error, Fault::LostReply, Fault::LostRequest] {
        plan.next(Operation::Touch, fault);
    }
    ctx.pass(ctx.life() * 2).await;
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    ensure!(holder.metrics().renewals_failed.get() >= 3, "no renewal failed");
    Ok(lease.release().await?)
}

async fn a_renewal_given_up_ends_no_tenure(ctx: Context) -> Result<(), Failure> {
    let (holder, plan) = ctx.faulty("holder").await?;
    let lease = holder.acquire(&ctx.scope("given-up")?, &terms(&ctx)).await?;
    plan.next(Operation::Touch, Fault::Delay(ctx.life()));
    let renewal = tokio::time::timeout(ctx.life() / 20, lease.renew()).await;
    ensure_in_time!(renewal.is_err(), "it was answered before it could be given up");
    ctx.pass(ctx.life() * 2).await;
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    Ok(lease.release().await?)
}

async fn a_lost_reply_to_an_acquisition_is_resolved(ctx: Context) -> Result<(), Failure> {
    let (holder, plan) = ctx.faulty("holder").await?;
    for (key, fault) in [("reply", Fault::LostReply), ("request", Fault::LostRequest)] {
        let scope = ctx.scope(key)?;
        plan.next(Operation::Commit, fault);
        let lease = holder.acquire(&scope, &terms(&ctx).wait(Duration::from_secs(5))).await?;
        let info = holder.holder(&scope).await?.ok_or("nobody holds it")?;
        ensure_eq!(info.token, lease.token());
        // A release whose reply is lost is still a release.
        plan.next(Operation::Commit, Fault::LostReply);
        lease.release().await?;
        ensure!(holder.holder(&scope).await?.is_none(), "after the release");
    }
    Ok(())
}

async fn a_holder_without_its_store_stops_before_the_next_one_starts(
    ctx: Context,
) -> Result<(), Failure> {
    let scope = ctx.scope("cut off")?;
    let (holder, plan) = ctx.faulty("holder").await?;
    let waiter = ctx.coordinator("waiter").await?;
    let lease = holder.acquire(&scope, &terms(&ctx)).await?;
    let token = lease.token();
    let waiting = {
        let (scope, terms) = (scope.clone(), terms(&ctx).wait_forever());
        tokio::spawn(async move {
            let lease = waiter.acquire(&scope, &terms).await?;
            Ok::<_, Error>((SystemClock.uptime(), lease))
        })
    };
    // From now on every call of the holder fails.
    plan.next(Operation::Touch, Fault::CrashBefore);
    let loss = soon("the loss", lease.lost()).await?;
    let stopped = SystemClock.uptime();
    ensure_eq!(loss, Loss::Expired, "why");
    ensure_eq!(lease.lost().await, Loss::Expired, "the reason stays");
    let (started, next) = soon("the take-over", waiting).await???;
    ensure!(stopped <= started, "the next one started {:?} early", stopped - started);
    ensure!(next.token() > token, "{} after {token}", next.token());
    let late = started.saturating_sub(lease.valid_until());
    ensure_in_time!(late < ctx.life() + Duration::from_secs(2), "taken over {late:?} later");
    Ok(next.release().await?)
}

async fn a_late_grant_is_not_handed_out(ctx: Context) -> Result<(), Failure> {
    let (over, nearly) = (ctx.life() + ctx.slack() * 2, ctx.life() * 3 / 4);
    // It is over when we find out that it was granted, or when we make sure of it.
    for (name, looks_after, touches_after) in [("late", over, None), ("later", nearly, Some(over))]
    {
        let (holder, plan) = ctx.faulty("holder").await?;
        let scope = ctx.scope(name)?;
        plan.next(Operation::Commit, Fault::LostReply);
        plan.next(Operation::Get, Fault::Delay(looks_after));
        if let Some(delay) = touches_after {
            plan.next(Operation::Touch, Fault::Delay(delay));
        }
        match holder.acquire(&scope, &terms(&ctx)).await {
            Err(Error::Unavailable { .. } | Error::Unknown { .. }) => {}
            Err(error) => return Err(Failure::new(format!("{name}: {error:?}"))),
            Ok(lease) => {
                let info = ctx.coordinator("reader").await?.holder(&scope).await?;
                ensure_eq!(info.map(|info| info.token), Some(lease.token()), "who holds it");
                ensure!(lease.is_valid(), "handed out though it is over: {lease:?}");
            }
        }
    }
    Ok(())
}

async fn a_revoked_holder_learns_by_whom_and_why(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("revoked")?;
    let (holder, operator) = (ctx.coordinator("holder").await?, ctx.coordinator("op").await?);
    let lease = holder.acquire(&scope, &terms(&ctx)).await?;
    ensure!(operator.revoke(&scope, "maintenance").await?, "there was a holder");
    ensure!(!operator.revoke(&scope, "again").await?, "there is none any more");
    let late = holder.store().commit(Commit::new().fenced_by(&lease)).await;
    ensure!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    match soon("the loss", lease.lost()).await? {
        Loss::Revoked { by, reason } => {
            ensure_eq!(by, Some(operator.owner().to_string()));
            ensure_eq!(reason.as_deref(), Some("maintenance"));
        }
        // Its life may end before its next renewal finds out.
        Loss::Expired => return Err(Failure::late("its life ended before the holder looked")),
        other => return Err(Failure::new(format!("not revoked: {other:?}"))),
    }
    Ok(())
}

async fn a_holder_learns_who_took_its_lease(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("taken")?;
    let (holder, thief) = (ctx.coordinator("holder").await?, ctx.coordinator("thief").await?);
    let lease = holder.acquire(&scope, &terms(&ctx)).await?;
    let key = tenure::lease::lease_key(&scope);
    thief.store().commit(Commit::new().delete(key, Expect::Any)).await?;
    let taken = thief.acquire(&scope, &terms(&ctx)).await?;
    let loss = soon("the loss", lease.lost()).await?;
    // Between the two steps of the thief nobody holds it, and a life may end before the holder looks.
    let is_early = matches!(loss, Loss::Revoked { by: None, .. } | Loss::Expired);
    ensure_in_time!(!is_early, "{loss:?}");
    let expected = Loss::Taken { by: thief.owner().to_string(), token: taken.token() };
    ensure_eq!(loss, expected);
    ensure!(lease.release().await.is_err(), "released what another holds");
    ensure_in_time!(taken.is_valid(), "{taken:?}");
    Ok(taken.release().await?)
}

async fn a_dropped_handle_lets_go(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("dropped")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let long = ctx.ttl_of(Duration::from_secs(60));
    drop(a.acquire(&scope, &terms(&ctx).ttl(long)).await?);
    let terms = terms(&ctx).wait(Duration::from_secs(15));
    Ok(soon("the next holder", b.acquire(&scope, &terms)).await??.release().await?)
}

async fn work_is_dropped_when_the_lease_is_lost(ctx: Context) -> Result<(), Failure> {
    let holder = ctx.coordinator("holder").await?;
    let scope = ctx.scope("work")?;
    let lease = holder.acquire(&scope, &terms(&ctx)).await?;
    ensure_eq!(lease.run(async { 7 }).await, Ok(7));
    let key = tenure::lease::lease_key(&scope);
    ctx.store().commit(Commit::new().delete(key, Expect::Any)).await?;
    let loss = soon("the end", lease.run(std::future::pending::<()>())).await?;
    ensure_in_time!(loss != Err(Loss::Expired), "its life ended before the holder looked");
    ensure!(matches!(loss, Err(Loss::Revoked { .. })), "{loss:?}");
    ensure!(!lease.is_valid() && lease.remaining().is_zero(), "{lease:?}");
    Ok(())
}

async fn renewals_that_overlap_all_succeed(ctx: Context) -> Result<(), Failure> {
    let holder = ctx.coordinator("holder").await?;
    let long = Terms::new().ttl(ctx.ttl_of(Duration::from_secs(20)));
    let lease = holder.acquire(&ctx.scope("often")?, &long).await?;
    for _ in 0..5 {
        futures::future::try_join_all((0..6).map(|_| lease.renew())).await?;
    }
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    Ok(lease.release().await?)
}
