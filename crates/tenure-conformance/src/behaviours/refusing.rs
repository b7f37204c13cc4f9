//! What a store cannot do is refused by name, and nothing of it happens.

use async_trait::async_trait;
use tenure::lease::{Draft, LeaseInfo, ReapHook};
use tenure::store::{Capability, Commit, Expect, Put};
use tenure::{Error, Result as StoreResult};

use super::leases::terms;
use crate::context::Context;
use crate::helpers::refused;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![behaviour!(
        what_needs_several_objects_is_refused_by_name,
        [single, ttl, real_time],
        "fenced commits, reaping, readers, several scopes, resizes; a plain lease still works"
    )]
}

struct Tidy;

#[async_trait]
impl ReapHook for Tidy {
    async fn will_reap(&self, _: &LeaseInfo, _: &mut Draft<'_>) -> StoreResult<()> {
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
    let fenced = Commit::from(Put::new(target.clone(), "v")).fenced_by(&lease);
    let refusals = [
        refused(ctx.store().commit(fenced).await)?,
        refused(coordinator.acquire(&other, &terms.clone().reapable()).await)?,
        refused(coordinator.reap(std::slice::from_ref(&namespace), true, &Tidy).await)?,
        refused(coordinator.acquire_read(&other, &terms).await)?,
        refused(coordinator.acquire_all(&[other.clone(), scope.clone()], &terms).await)?,
        refused(coordinator.slots(&namespace).resize(2).await)?,
    ];
    for error in refusals {
        let several = Capability::MultiObjectCommits;
        let by_name =
            matches!(&error, Error::Unsupported { capability, .. } if *capability == several);
        ensure!(by_name, "{error}");
        let text = error.to_string();
        for part in [ctx.caps().backend, "multi-object commits", several.supported_by()] {
            ensure!(text.contains(part), "{text:?} does not name {part:?}");
        }
    }
    ctx.store().commit(Commit::new().check(target, Expect::Absent)).await?;
    ensure_eq!(coordinator.holder(&other).await?, None, "the holder of what was refused");
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    Ok(lease.release().await?)
}
