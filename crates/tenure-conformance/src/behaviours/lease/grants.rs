//! LeaseGrants: a lease that one coordinator granted and another one renews, releases or passes on.

use std::time::Duration;

use tenure::Error;
use tenure::lease::{
    Coordinator, HookContext, LeaseGrant, LeaseInfo, Metadata, Owner, ReapHook, ReleaseOutcome,
    Renewed, Scope, Terms,
};
use tenure::store::Commit;

use super::leases::{refused, soon, terms};
use crate::context::Context;
use crate::counting::counted;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_grant_is_renewed_anywhere,
            [ttl, real_time],
            "by a coordinator that did not grant it, for several lives; unrenewed it expires"
        ),
        behaviour!(
            many_grants_are_renewed_together,
            [ttl, real_time],
            "in one round trip, and one that makes no sense does not hold up the others"
        ),
        behaviour!(
            a_grant_out_of_date_is_renewed_all_the_same,
            [ttl, real_time],
            "after a proclamation at another coordinator, which everybody can read"
        ),
        behaviour!(
            a_grant_of_a_lost_lease_says_who_has_it,
            [ttl, real_time],
            "to whoever renews, releases, proclaims or hands over by it, and nothing happens"
        ),
        behaviour!(
            a_release_by_grant_wakes_a_waiter,
            [ttl, real_time, told],
            "whichever coordinator released it, long before it would have expired"
        ),
        behaviour!(
            a_released_grant_leaves_nothing_to_reap,
            [multi, ttl, real_time],
            "and one that was let expire is reaped in its owner's name"
        ),
        behaviour!(
            a_grant_is_handed_over,
            [multi, ttl, real_time, told],
            "to a waiter by name, by a coordinator that did not grant it"
        ),
        behaviour!(
            a_slot_is_handed_over_by_grant,
            [multi, ttl, real_time, told],
            "to whoever waits for the group, the same slot under a greater token"
        ),
        behaviour!(
            those_on_whose_behalf_are_named,
            [multi, ttl, real_time, told],
            "as holder and in line, not the coordinator that acts for them"
        ),
    ]
}

/// Somebody who is elsewhere.
pub(super) fn owner(name: &str) -> Result<Owner, Failure> {
    Ok(Owner::from_parts(name, "1")?)
}

/// Terms on behalf of somebody, with a life that suits the store.
pub(super) fn on_behalf(ctx: &Context, name: &str) -> Result<Terms, Failure> {
    Ok(terms(ctx).owner(owner(name)?))
}

/// Acquires on behalf of somebody and hands out the grant.
async fn grant_for(
    ctx: &Context,
    coordinator: &Coordinator,
    scope: &Scope,
    name: &str,
) -> Result<LeaseGrant, Failure> {
    Ok(coordinator.acquire(scope, &on_behalf(ctx, name)?).await?.detach())
}

async fn renew(coordinator: &Coordinator, grant: &LeaseGrant) -> tenure::Result<Renewed> {
    let answers = coordinator.renew_grants(std::slice::from_ref(grant)).await;
    answers.into_iter().next().unwrap_or_else(|| Err(Error::invalid("answer", "there is none")))
}

/// Resolves when so many wait for a scope.
pub(super) async fn in_line(
    coordinator: &Coordinator,
    scope: &Scope,
    count: usize,
) -> Result<(), Failure> {
    soon("joining the line", async {
        while coordinator.status(scope).await.is_ok_and(|status| status.waiters.len() < count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

async fn a_grant_is_renewed_anywhere(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("anywhere")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let lease = a.acquire(&scope, &on_behalf(&ctx, "client")?).await?;
    ensure_eq!((a.held(), a.metrics().held.get()), (1, 1), "held before");
    let mut grant = lease.detach();
    ensure_eq!((a.held(), a.metrics().held.get()), (0, 0), "held after");
    ensure!(grant.remaining > Duration::ZERO && grant.remaining < grant.ttl, "{grant:?}");
    let mut before = ctx.uptime();
    for _ in 0..9 {
        ctx.pass(grant.ttl / 3).await;
        before = ctx.uptime();
        let renewed = renew(&b, &grant).await?;
        ensure!(renewed.remaining < renewed.ttl, "{renewed:?}");
        grant = grant.renewed(&renewed);
        let holder = b.holder(&scope).await?;
        ensure_in_time!(ctx.uptime() < before + grant.ttl, "asked after its life: {holder:?}");
        let holder = holder.ok_or("it was released")?;
        ensure_eq!((holder.token, &holder.holder), (grant.token, &owner("client")?));
    }
    let asked = a.acquire(&scope, &terms(&ctx)).await;
    refused(asked, ctx.uptime() < before + grant.ttl)?;
    // Fenced like any other, and over like any other once nobody renews it.
    if ctx.caps().multi_object_commits {
        b.store().commit(Commit::new().fenced_by(&grant)).await?;
    }
    let next = soon("the next holder", a.acquire(&scope, &terms(&ctx).wait_forever())).await??;
    ensure!(next.token() > grant.token, "{} after {}", next.token(), grant.token);
    Ok(next.release().await?)
}

async fn many_grants_are_renewed_together(ctx: Context) -> Result<(), Failure> {
    let a = ctx.coordinator("a").await?;
    let (store, calls) = counted(ctx.store());
    let b = Coordinator::builder(store).name("b").start()?;
    let long = on_behalf(&ctx, "client")?.ttl(ctx.ttl_of(Duration::from_secs(20)));
    let mut grants = Vec::new();
    for n in 0..10 {
        grants.push(a.acquire(&ctx.scope(&format!("many-{n}"))?, &long).await?.detach());
    }
    let [_, _, _, before, _] = calls.all();
    let answers = b.renew_grants(&grants).await;
    ensure_eq!(calls.all()[3] - before, 1, "round trips");
    for (grant, answer) in grants.iter_mut().zip(answers) {
        *grant = grant.clone().renewed(&answer?);
    }
    // A life that cannot be, and one that has ended.
    grants[3].ttl = Duration::ZERO;
    b.release_grant(&grants[7], ReleaseOutcome::Plain).await?;
    for (n, answer) in b.renew_grants(&grants).await.into_iter().enumerate() {
        match (n, &answer) {
            (3, Err(Error::Invalid { .. })) | (7, Err(Error::Lost { current: None, .. })) => {}
            (3 | 7, _) | (_, Err(_)) => {
                return Err(Failure::new(format!("grant {n}: {answer:?}")));
            }
            _ => {}
        }
    }
    Ok(())
}

async fn a_grant_out_of_date_is_renewed_all_the_same(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("stale")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let grant = grant_for(&ctx, &a, &scope, "client").await?;
    let metadata = Metadata::from([("address".into(), "10.0.0.7:80".into())]);
    let proclaimed = b.proclaim_grant(&grant, metadata.clone()).await?;
    ensure!(proclaimed.revision > grant.revision, "{proclaimed:?}");
    let info = a.holder(&scope).await?.ok_or("nobody holds it")?;
    ensure_eq!((info.metadata, info.token), (metadata, grant.token));
    ensure_eq!(info.holder, owner("client")?);
    // The old paper still says who it is, and asks for another life this time.
    let longer = LeaseGrant { ttl: ctx.ttl_of(grant.ttl * 2), ..grant.clone() };
    let renewed = renew(&a, &longer).await?;
    ensure!(renewed.revision >= proclaimed.revision, "{renewed:?} after {proclaimed:?}");
    ensure_eq!(renewed.ttl, longer.ttl);
    ensure!(renewed.remaining > grant.ttl, "{renewed:?}");
    Ok(b.release_grant(&grant, ReleaseOutcome::Ok(b"done")).await?)
}

async fn a_grant_of_a_lost_lease_says_who_has_it(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("lost")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let grant = grant_for(&ctx, &a, &scope, "client").await?;
    ensure!(b.revoke(&scope, "maintenance").await?, "there was a holder");
    says_lost(&a, &grant, None).await?;
    let holder = b.acquire(&scope, &terms(&ctx)).await?;
    says_lost(&a, &grant, Some(holder.token())).await?;
    holder.renew().await?;
    Ok(holder.release().await?)
}

/// Whatever is done by this grant is told that it is lost, and who has it.
async fn says_lost(
    coordinator: &Coordinator,
    grant: &LeaseGrant,
    holder: Option<u64>,
) -> Result<(), Failure> {
    let answers = [
        renew(coordinator, grant).await.map(drop),
        coordinator.proclaim_grant(grant, Metadata::new()).await.map(drop),
        coordinator.release_grant(grant, ReleaseOutcome::Fail("stopped")).await,
        coordinator.hand_over_grant(grant, "nobody").await,
    ];
    for answer in answers {
        match answer {
            Err(Error::Lost { key, token, current }) => {
                ensure_eq!((key, token, current), (grant.key(), grant.token, holder));
            }
            other => return Err(Failure::new(format!("not lost: {other:?}"))),
        }
    }
    Ok(())
}

async fn a_release_by_grant_wakes_a_waiter(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("woken")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let long = ctx.ttl_of(Duration::from_secs(60));
    let grant = a.acquire(&scope, &on_behalf(&ctx, "client")?.ttl(long)).await?.detach();
    let waiting = {
        let (b, scope, terms) = (b.clone(), scope.clone(), terms(&ctx).wait_forever());
        tokio::spawn(async move { b.acquire(&scope, &terms).await })
    };
    soon("joining the line", async {
        while b.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    let other = ctx.coordinator("other").await?;
    other.release_grant(&grant, ReleaseOutcome::Plain).await?;
    let next = soon("the next holder", waiting).await???;
    ensure!(next.token() > grant.token, "{} after {}", next.token(), grant.token);
    ensure_eq!(b.waiting(), 0, "still in line");
    Ok(next.release().await?)
}

/// Reaps, and remembers whose it was.
struct Names(std::sync::Mutex<Vec<String>>);

#[async_trait::async_trait]
impl ReapHook for Names {
    async fn will_reap(&self, lease: &LeaseInfo, _: &mut HookContext<'_>) -> tenure::Result<()> {
        let mut names = self.0.lock().map_err(|_| Error::invalid("names", "poisoned"))?;
        names.push(lease.holder.to_string());
        Ok(())
    }
}

async fn a_released_grant_leaves_nothing_to_reap(ctx: Context) -> Result<(), Failure> {
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let reapable = |name: &str| Ok::<_, Failure>(on_behalf(&ctx, name)?.ttl(ctx.ttl()).reapable());
    let released = a.acquire(&ctx.scope("released")?, &reapable("tidy")?).await?.detach();
    let expired = a.acquire(&ctx.scope("expired")?, &reapable("gone")?).await?.detach();
    ensure!(released.reapable && expired.reapable, "{released:?}");
    b.release_grant(&released, ReleaseOutcome::Plain).await?;
    ctx.pass(ctx.ttl() + ctx.slack() * 2).await;
    let names = Names(std::sync::Mutex::default());
    let namespace = ctx.namespace("lease")?;
    soon("the expiry", async {
        while b
            .reap(std::slice::from_ref(&namespace), false, &names)
            .await
            .is_ok_and(|reaped| reaped == 0)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await?;
    let names = names.0.into_inner().map_err(|_| "poisoned")?;
    ensure_eq!(names, ["gone#1"], "reaped");
    Ok(())
}

async fn a_grant_is_handed_over(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("handed")?;
    let (a, b, c) =
        (ctx.coordinator("a").await?, ctx.coordinator("b").await?, ctx.coordinator("c").await?);
    let long = on_behalf(&ctx, "client")?.ttl(ctx.ttl_of(Duration::from_secs(20)));
    let grant = a.acquire(&scope, &long).await?.detach();
    let nobody = b.hand_over_grant(&grant, "nobody").await;
    ensure!(matches!(nobody, Err(Error::Invalid { .. })), "{nobody:?}");
    let mut waiting = Vec::new();
    for (n, name) in ["first", "second"].into_iter().enumerate() {
        let (c, wanted) = (c.clone(), scope.clone());
        let terms = on_behalf(&ctx, name)?.wait_forever();
        waiting.push(tokio::spawn(async move { c.acquire(&wanted, &terms).await }));
        in_line(&b, &scope, n + 1).await?;
    }
    b.hand_over_grant(&grant, "second#1").await?;
    let handed = soon("the successor", waiting.remove(1)).await???;
    ensure!(handed.token() > grant.token, "{} after {}", handed.token(), grant.token);
    ensure_eq!(handed.owner(), &owner("second")?);
    match renew(&a, &grant).await {
        Err(Error::Lost { current, .. }) => ensure_eq!(current, Some(handed.token())),
        other => return Err(Failure::new(format!("still held: {other:?}"))),
    }
    b.release_grant(&handed.detach(), ReleaseOutcome::Plain).await?;
    Ok(soon("the first in line", waiting.remove(0)).await???.release().await?)
}

async fn a_slot_is_handed_over_by_grant(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("passing")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let slot = a.slots(&group).acquire(1, &on_behalf(&ctx, "client")?).await?;
    let index = slot.index();
    let grant = slot.into_lease().detach();
    ensure_eq!(grant.queue, group.as_str(), "the line of a slot is its group");
    let waiting = {
        let (b, group, terms) = (b.clone(), group.clone(), on_behalf(&ctx, "next")?.wait_forever());
        tokio::spawn(async move { b.slots(&group).acquire(1, &terms).await })
    };
    soon("the waiter", async {
        while a.slots(&group).waiters().await.is_ok_and(|waiters| waiters.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    let grant = grant.clone().renewed(&renew(&b, &grant).await?);
    let other = ctx.coordinator("other").await?;
    other.hand_over_grant(&grant, "next").await?;
    let handed = soon("the successor", waiting).await???;
    ensure_eq!(handed.index(), index);
    ensure!(handed.token() > grant.token, "{} after {}", handed.token(), grant.token);
    let grant = handed.into_lease().detach();
    other.release_grant(&grant, ReleaseOutcome::Plain).await?;
    ensure_eq!(a.list_holders(&group).await?.len(), 0, "holders left");
    Ok(())
}

async fn those_on_whose_behalf_are_named(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("named")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let lease = a.acquire(&scope, &on_behalf(&ctx, "holder")?).await?;
    ensure_eq!(lease.owner(), &owner("holder")?);
    let waiting = {
        let (b, scope, terms) = (b.clone(), scope.clone(), on_behalf(&ctx, "waiter")?);
        let terms = terms.wait_forever();
        tokio::spawn(async move { b.acquire(&scope, &terms).await })
    };
    in_line(&a, &scope, 1).await?;
    let status = a.status(&scope).await?;
    ensure_eq!(status.holder.map(|info| info.holder), Some(owner("holder")?));
    let waiters: Vec<Owner> = status.waiters.into_iter().map(|waiter| waiter.owner).collect();
    ensure_eq!(waiters, [owner("waiter")?]);
    let holder = refused(a.acquire(&scope, &terms(&ctx)).await, lease.is_valid())?;
    ensure_eq!(holder.as_deref(), Some("holder#1"));
    // What its handle writes anew is still in that name.
    lease.proclaim(Metadata::from([("a".into(), "b".into())])).await?;
    let info = b.holder(&scope).await?.ok_or("nobody holds it")?;
    ensure_eq!(info.holder, owner("holder")?);
    lease.release().await?;
    let next = soon("the next holder", waiting).await???;
    ensure_eq!(next.owner(), &owner("waiter")?);
    Ok(next.release().await?)
}
