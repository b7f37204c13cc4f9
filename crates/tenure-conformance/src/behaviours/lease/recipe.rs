//! The reconciler lease: the recipe on one record, renewed and released by hand.

use tenure::Error;
use tenure::lease::{LeaseGuard, ReconcilerLease};
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Operation};

use crate::behaviours::store::faults::faulty;
use crate::context::Context;
use crate::helpers::existing;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            the_reconciler_recipe_holds,
            [ttl, real_time],
            "acquire, steal only what expired, renew, release, on a record that people can read"
        ),
        behaviour!(
            the_recipe_is_not_granted_a_record_of_before,
            [ttl, real_time],
            "a request that was lost grants nothing, though the same replica's old record is there"
        ),
    ]
}

const NAME: &str = "reconciler-lease";

/// The recipe on a record of this behaviour's own: the documented one may be in use.
fn recipe(ctx: &Context, store: &Store, replica: &str) -> Result<ReconcilerLease, Failure> {
    let lease = ReconcilerLease::new(store.clone(), replica)?;
    Ok(lease.ttl(ctx.ttl()).record(ctx.key("singleton"), NAME))
}

/// Who holds it and since when, as the record tells a person.
async fn read(ctx: &Context) -> Result<(String, i64), Failure> {
    let object = existing(ctx.store(), &ctx.key("singleton")).await?;
    if ctx.caps().names {
        ensure_eq!(object.name.as_deref(), Some(NAME), "its name");
    }
    let record: serde_json::Value = serde_json::from_slice(&object.payload)?;
    let holder = record["holder"].as_str().ok_or_else(|| format!("no holder in {record}"))?;
    let since = record["acquired_at_ms"].as_i64();
    Ok((holder.to_owned(), since.ok_or_else(|| format!("no instant in {record}"))?))
}

async fn the_reconciler_recipe_holds(ctx: Context) -> Result<(), Failure> {
    let of = |name: &str| recipe(&ctx, ctx.store(), name);
    let (a, b, twin) = (of("gateway-0")?, of("gateway-1")?, of("gateway-0")?);
    let before = ctx.store().clock().wall_ms();
    let mut guard = a.acquire_or_steal().await?;
    let first = guard.token();
    guard.renew().await?;
    ensure_in_time!(guard.is_valid(), "after a renewal");
    let (holder, since) = read(&ctx).await?;
    ensure!(holder.starts_with("gateway-0#"), "held by {holder}");
    ensure!((before..=ctx.store().clock().wall_ms()).contains(&since), "since {since}");
    for other in [&b, &twin] {
        match other.try_steal_expired().await {
            Err(Error::Held { holder: who, .. }) => ensure_eq!(who, Some(holder.clone())),
            other => {
                ensure_in_time!(guard.is_valid(), "it ended too soon: {other:?}");
                return Err(Failure::new(format!("a live lease was stolen: {other:?}")));
            }
        }
    }
    ctx.pass(ctx.ttl() + ctx.slack()).await;
    ensure!(!guard.is_valid(), "the holder stops by itself");
    let stolen = b.try_steal_expired().await?;
    ensure!(stolen.token() > first, "{} after {first}", stolen.token());
    match guard.renew().await {
        Err(Error::Lost { .. }) => {}
        other => return Err(Failure::new(format!("renewed what was stolen: {other:?}"))),
    }
    ensure!(guard.release().await.is_err(), "released what was stolen");
    stolen.release().await?;
    let next = a.try_acquire().await?;
    ensure!(next.token() > first, "a token that never repeats");
    Ok(next.release().await?)
}

async fn the_recipe_is_not_granted_a_record_of_before(ctx: Context) -> Result<(), Failure> {
    let plan = FaultPlan::scripted();
    let recipe = recipe(&ctx, &faulty(ctx.store(), &plan), "gateway-0")?;
    let nothing = |tried: tenure::Result<LeaseGuard>| match tried {
        Err(Error::Unknown { .. }) => Ok(()),
        other => Err(Failure::new(format!("granted by a request that was lost: {other:?}"))),
    };
    // Its guard is forgotten, its record lives on: whoever starts a loop anew begins like this.
    let old = recipe.try_acquire().await?;
    plan.next(Operation::Commit, Fault::LostRequest);
    nothing(recipe.acquire_or_steal().await)?;
    old.release().await?;
    plan.next(Operation::Commit, Fault::LostRequest);
    nothing(recipe.acquire_or_steal().await)?;
    // One whose reply was lost is found all the same.
    plan.next(Operation::Commit, Fault::LostReply);
    let guard = recipe.acquire_or_steal().await?;
    ensure_eq!(existing(ctx.store(), &ctx.key("singleton")).await?.token, guard.token());
    Ok(guard.release().await?)
}
