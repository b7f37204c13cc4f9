//! Asking again: the same owner gets the lease it has, and nobody else does.

use std::time::Duration;

use tenure::lease::{Owner, ReleaseOutcome};
use tenure::store::faulty::{Fault, Operation};

use super::grants::on_behalf;
use super::leases::{refused, soon, terms};
use crate::context::Context;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            the_same_owner_resumes_its_lease,
            [ttl, real_time],
            "at any coordinator, under the same token; another start of that name is another owner"
        ),
        behaviour!(
            an_acquisition_nobody_heard_of_is_resumed,
            [ttl, real_time],
            "its caller went away before the answer came, and asks elsewhere"
        ),
        behaviour!(
            one_owner_that_waits_twice_has_one_lease,
            [ttl, real_time, told],
            "whichever of its requests is served, the other finds the lease it has"
        ),
        behaviour!(
            an_owner_has_one_slot_however_often_it_asks,
            [ttl, real_time],
            "also while others are free"
        ),
        behaviour!(
            several_scopes_are_resumed_together,
            [multi, ttl, real_time],
            "all that were acquired at once, or none"
        ),
        behaviour!(
            readers_and_writers_resume,
            [multi, ttl, real_time],
            "one share each, however often they ask"
        ),
    ]
}

async fn the_same_owner_resumes_its_lease(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("resumed")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let mine = on_behalf(&ctx, "client")?.metadata("address", "here");
    let begun = ctx.uptime();
    let grant = a.acquire(&scope, &mine).await?.detach();
    // Without asking to resume.
    refused(b.acquire(&scope, &mine).await, ctx.uptime() < begun + grant.ttl)?;
    let again = Owner::from_parts("client", "2")?;
    for other in [on_behalf(&ctx, "other")?, terms(&ctx).owner(again), terms(&ctx)] {
        let asked = b.acquire(&scope, &other.resume()).await;
        refused(asked, ctx.uptime() < begun + grant.ttl)?;
    }
    // Close to its end, so that what follows shows a life started anew.
    ctx.pass(grant.ttl / 2).await;
    let mut lives_until = begun + grant.ttl;
    for wait in [Duration::ZERO, Duration::from_secs(5)] {
        let asked = ctx.uptime();
        let resumed = b.acquire(&scope, &mine.clone().resume().wait(wait)).await?.detach();
        let is_same = (resumed.token, &resumed.nonce) == (grant.token, &grant.nonce);
        ensure!(is_same || ctx.uptime() >= lives_until, "{resumed:?} is not {grant:?}");
        // Whoever comes too late acquires it anew.
        ensure_in_time!(is_same, "{resumed:?} is not {grant:?}");
        ensure_in_time!(resumed.remaining > grant.ttl / 2, "{resumed:?}");
        lives_until = asked + grant.ttl;
    }
    let held = b.acquire(&scope, &mine.resume()).await?;
    ctx.pass(grant.ttl + ctx.slack()).await;
    ensure_in_time!(held.is_valid(), "what is resumed is renewed: {held:?}");
    held.release().await?;
    ensure!(a.holder(&scope).await?.is_none(), "after the release");
    Ok(())
}

async fn an_acquisition_nobody_heard_of_is_resumed(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("unheard")?;
    let (a, plan) = ctx.faulty("a").await?;
    let b = ctx.coordinator("b").await?;
    let long = ctx.ttl_of(Duration::from_secs(20));
    let mine = on_behalf(&ctx, "client")?.ttl(long).resume();
    plan.next(Operation::Commit, Fault::LostReply);
    plan.next(Operation::Get, Fault::Delay(Duration::from_secs(60)));
    let taken = async {
        while b.holder(&scope).await.is_ok_and(|holder| holder.is_none()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = a.acquire(&scope, &mine) => return Err(Failure::new(format!("{answer:?}"))),
        taken = soon("the acquisition", taken) => taken?,
    }
    // Whatever the first coordinator does about a caller that went away, it must not take it back.
    soon("settling", a.settle()).await?;
    let holder = b.holder(&scope).await?.ok_or("it was taken back")?;
    let resumed = b.acquire(&scope, &mine).await?;
    ensure_eq!(resumed.token(), holder.token);
    Ok(resumed.release().await?)
}

async fn one_owner_that_waits_twice_has_one_lease(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("twice")?;
    let holder = ctx.coordinator("holder").await?;
    let long = ctx.ttl_of(Duration::from_secs(60));
    let lease = holder.acquire(&scope, &terms(&ctx).ttl(long)).await?;
    let mine = on_behalf(&ctx, "client")?.ttl(long).resume().wait_forever();
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let mut waiting = Vec::new();
    for coordinator in [&a, &b] {
        let (own, scope, terms) = (coordinator.clone(), scope.clone(), mine.clone());
        waiting.push(tokio::spawn(async move { own.acquire(&scope, &terms).await }));
        soon("joining the line", async {
            while coordinator.waiting() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await?;
    }
    lease.release().await?;
    // One of them is served. The other hears of it, though its turn never comes.
    let mut grants = Vec::new();
    for waiting in waiting {
        grants.push(soon("the lease", waiting).await???.detach());
    }
    ensure_eq!((grants[0].token, &grants[0].nonce), (grants[1].token, &grants[1].nonce));
    for coordinator in [&a, &b] {
        soon("leaving the line", coordinator.settle()).await?;
    }
    ensure_eq!(holder.status(&scope).await?.waiters.len(), 0, "left in line");
    Ok(holder.release_grant(&grants[0], ReleaseOutcome::Plain).await?)
}

async fn an_owner_has_one_slot_however_often_it_asks(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("asking")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let mine = on_behalf(&ctx, "client")?.resume();
    let first = a.slots(&group).acquire(3, &mine).await?;
    let (index, grant) = (first.index(), first.into_lease().detach());
    for coordinator in [&a, &b] {
        let again = coordinator.slots(&group).acquire(3, &mine).await?;
        ensure_eq!((again.index(), again.token()), (index, grant.token));
        ensure_eq!(again.into_lease().detach().queue, grant.queue);
    }
    let other = b.slots(&group).acquire(3, &on_behalf(&ctx, "other")?.resume()).await?;
    ensure!(other.index() != index, "the same slot twice");
    ensure_eq!(a.list_holders(&group).await?.len(), 2, "holders");
    other.into_lease().release().await?;
    Ok(b.release_grant(&grant, ReleaseOutcome::Plain).await?)
}

async fn several_scopes_are_resumed_together(ctx: Context) -> Result<(), Failure> {
    let scopes = [ctx.scope("both-1")?, ctx.scope("both-2")?];
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let mine = on_behalf(&ctx, "client")?.resume();
    let tokens = |leases: &tenure::lease::Leases| -> Vec<u64> {
        leases.iter().map(tenure::lease::Lease::token).collect()
    };
    let both = a.acquire_all(&scopes, &mine).await?;
    let had = tokens(&both);
    let mut grants: Vec<_> = both.into_leases().into_iter().map(|lease| lease.detach()).collect();
    let resumed = ctx.uptime();
    let again = b.acquire_all(&scopes, &mine).await?;
    ensure_eq!(tokens(&again), had);
    again.into_leases().into_iter().for_each(|lease| drop(lease.detach()));
    // With one of them gone, what is left was not acquired together with what is asked for.
    if let Some(grant) = grants.pop() {
        b.release_grant(&grant, ReleaseOutcome::Plain).await?;
    }
    let half = b.acquire_all(&scopes, &mine).await;
    refused(half, ctx.uptime() < resumed + ctx.life()).map(drop)
}

async fn readers_and_writers_resume(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("shared")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let mine = on_behalf(&ctx, "client")?.resume();
    let reader = a.acquire_read(&scope, &mine).await?.detach();
    let again = b.acquire_read(&scope, &mine).await?.detach();
    ensure_eq!((&again.id, again.token), (&reader.id, reader.token));
    ensure_eq!(b.readers_and_writer(&scope).await?.len(), 1, "readers");
    b.release_grant(&again, ReleaseOutcome::Plain).await?;
    let writer = a.acquire_write(&scope, &mine).await?.detach();
    let again = b.acquire_write(&scope, &mine).await?;
    ensure_eq!(again.token(), writer.token);
    Ok(again.release().await?)
}
