//! What a store cannot do is refused by name, and nothing of it happens.

use async_trait::async_trait;
use tenure::lease::{HookContext, LeaseInfo, ReapHook};
use tenure::store::{Capability, Commit, Expect, Put, Query, Selector, WatchRequest};
use tenure::{Error, Result as StoreResult};

use super::leases::terms;
use crate::context::Context;
use crate::helpers::refused;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            what_needs_several_objects_is_refused_by_name,
            [single, ttl, real_time],
            "fenced commits, reaping, readers, several scopes, resizes, hand-overs; a plain lease still works"
        ),
        behaviour!(
            what_is_missing_is_refused_by_name,
            [single],
            "names, selection by labels and watches from an earlier revision, where there are none"
        ),
    ]
}

/// The refusal names the capability, the backend, and the backends that have it.
fn by_name(ctx: &Context, error: &Error, wanted: Capability) -> Result<(), Failure> {
    let named = matches!(error, Error::Unsupported { capability, .. } if *capability == wanted);
    ensure!(named, "{error}");
    let text = error.to_string();
    for part in [ctx.caps().backend, &wanted.to_string(), wanted.supported_by()] {
        ensure!(text.contains(part), "{text:?} does not name {part:?}");
    }
    Ok(())
}

struct Tidy;

#[async_trait]
impl ReapHook for Tidy {
    async fn will_reap(&self, _: &LeaseInfo, _: &mut HookContext<'_>) -> StoreResult<()> {
        Ok(())
    }
}

async fn what_needs_several_objects_is_refused_by_name(ctx: Context) -> Result<(), Failure> {
    let coordinator = ctx.coordinator("alone").await?;
    let (scope, other) = (ctx.scope("one")?, ctx.scope("other")?);
    let namespace = ctx.namespace("lease")?;
    let terms = terms(&ctx);
    let lease = coordinator.acquire(&scope, &terms).await?;
    let target = ctx.key("target");
    // Whether or not somebody waits for it.
    let (lease, handed_over) = match lease.hand_over("anybody").await {
        Ok(()) => return Err("a lease was handed over to nobody".into()),
        Err((lease, error)) => (lease, error),
    };
    let fenced = Commit::from(Put::new(target.clone(), "v")).fenced_by(&lease);
    let refusals = [
        refused(ctx.store().commit(fenced).await)?,
        refused(coordinator.acquire(&other, &terms.clone().reapable()).await)?,
        refused(coordinator.reap(std::slice::from_ref(&namespace), true, &Tidy).await)?,
        refused(coordinator.acquire_read(&other, &terms).await)?,
        refused(coordinator.acquire_all(&[other.clone(), scope.clone()], &terms).await)?,
        refused(coordinator.slots(&namespace).resize(2).await)?,
        handed_over,
    ];
    for error in refusals {
        by_name(&ctx, &error, Capability::MultiObjectCommits)?;
    }
    ctx.store().commit(Commit::new().check(target, Expect::Absent)).await?;
    ensure_eq!(coordinator.holder(&other).await?, None, "the holder of what was refused");
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    Ok(lease.release().await?)
}

async fn what_is_missing_is_refused_by_name(ctx: Context) -> Result<(), Failure> {
    let (store, key) = (ctx.store(), ctx.key("one"));
    if !ctx.caps().names {
        let named = Put::new(key.clone(), "v").name("called");
        by_name(&ctx, &refused(store.commit(named).await)?, Capability::Names)?;
        let found = store.get_by_name(&key.kind, "called").await;
        by_name(&ctx, &refused(found)?, Capability::Names)?;
    }
    if !ctx.caps().labels {
        let red = Query::new(&key.kind).selector(Selector::equals("colour", "red"));
        by_name(&ctx, &refused(store.list(&red).await)?, Capability::Labels)?;
    }
    if ctx.caps().history.is_none() {
        let earlier = WatchRequest::kind(&key.kind).after(1);
        let watch = store.watch(&earlier).await.map(drop);
        by_name(&ctx, &refused(watch)?, Capability::History)?;
    }
    ensure_eq!(store.get(&key).await?, None, "what was refused");
    Ok(())
}
