//! Liveness by proxy: an owner reports to whoever listens, and that one keeps its lease alive.

use std::time::Duration;

use tenure::lease::{Owner, lease_key};
use tenure::random::SystemRandom;
use tenure::store::{Commit, Expect};

use super::leases::{refused, terms};
use crate::context::Context;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_reported_owner_is_kept_alive,
            [ttl, real_time],
            "by whoever hears from it; another owner is refused until it falls silent"
        ),
        behaviour!(
            a_report_leaves_the_owner_its_handle,
            [ttl, real_time],
            "what it acquired itself is still the same lease, and goes on being renewed"
        ),
        behaviour!(
            every_reported_tenure_has_its_own_lease_key,
            [ttl, real_time],
            "also the next one of the same owner, after it fell silent"
        ),
    ]
}

async fn a_reported_owner_is_kept_alive(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("runner-1")?;
    let controllers = [ctx.coordinator("a").await?, ctx.coordinator("b").await?];
    let (runner, other) =
        (Owner::new("runner", &SystemRandom)?, Owner::new("runner", &SystemRandom)?);
    let (mut token, mut kept_at) = (None, ctx.uptime());
    for n in 0..6 {
        kept_at = ctx.uptime();
        let controller = &controllers[n % 2];
        let kept = controller.keep_alive(&scope, &runner, ctx.life(), [].into()).await?;
        ensure_eq!(*token.get_or_insert(kept.token), kept.token, "one tenure");
        ctx.pass(ctx.life() / 3).await;
    }
    let asked = controllers[0].keep_alive(&scope, &other, ctx.life(), [].into()).await;
    refused(asked, ctx.uptime() < kept_at + ctx.life())?;
    ctx.pass(ctx.life() + ctx.slack() + Duration::from_millis(50)).await;
    let kept = controllers[0].keep_alive(&scope, &other, ctx.life(), [].into()).await?;
    ensure!(Some(kept.token) > token, "a greater token");
    Ok(())
}

async fn a_report_leaves_the_owner_its_handle(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("runner-2")?;
    let (runner, controller) = (ctx.coordinator("runner").await?, ctx.coordinator("c").await?);
    let lease = runner.acquire(&scope, &terms(&ctx)).await?;
    let about = [("seen-by".to_owned(), "c".to_owned())];
    let kept = controller.keep_alive(&scope, runner.owner(), ctx.life(), about.into()).await?;
    ensure_eq!(kept.token, lease.token(), "its token");
    let renewed = lease.renew().await;
    // Only a life that was over may have ended it.
    ensure!(lease.loss().is_none_or(|loss| loss.code() == "expired"), "{:?}", lease.loss());
    renewed?;
    let info = controller.holder(&scope).await?.ok_or("nobody holds it")?;
    ensure_eq!(format!("{}#{}", info.id, info.nonce), lease.lease_key(), "its key");
    Ok(lease.release().await?)
}

async fn every_reported_tenure_has_its_own_lease_key(ctx: Context) -> Result<(), Failure> {
    let (scope, controller) = (ctx.scope("runner-3")?, ctx.coordinator("c").await?);
    let runner = Owner::new("runner", &SystemRandom)?;
    // So long that none of them ends by itself.
    let life = ctx.ttl_of(Duration::from_secs(60));
    let mut keys = Vec::new();
    for _ in 0..3 {
        for _ in 0..2 {
            controller.keep_alive(&scope, &runner, life, [].into()).await?;
            keys.push(controller.holder(&scope).await?.ok_or("nobody holds it")?.nonce);
        }
        ctx.store().commit(Commit::new().delete(lease_key(&scope), Expect::Any)).await?;
    }
    ensure!(keys.chunks(2).all(|tenure| tenure[0] == tenure[1]), "one key a tenure: {keys:?}");
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    ensure_eq!(distinct.len(), 3, "keys of three tenures");
    Ok(())
}
