//! Lost requests, lost replies and crashes: what a caller may conclude, and what it may not.

use std::sync::Arc;

use tenure::Error;
use tenure::Key;
use tenure::clock::SystemClock;
use tenure::random::{SystemRandom, nonce};
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::{Commit, Expect, Put, Store};

use crate::context::Context;
use crate::helpers::{ATTEMPTS, existing, number, put};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_lost_reply_is_unknown_and_was_applied,
            [],
            "the write happened although the caller was not told"
        ),
        behaviour!(
            a_lost_request_is_unknown_and_was_not_applied,
            [],
            "the same answer, yet nothing happened"
        ),
        behaviour!(
            an_unavailable_store_applied_nothing,
            [],
            "any error but Unknown means that nothing happened"
        ),
        behaviour!(
            a_lost_reply_to_several_writes_was_applied_whole,
            [multi],
            "an unknown outcome is all or nothing too"
        ),
        behaviour!(
            a_crash_leaves_all_or_nothing,
            [multi],
            "before the commit or after it, never in between"
        ),
        behaviour!(
            a_nonce_settles_an_unknown_outcome,
            [],
            "exactly-once increments while a third of all calls go wrong"
        ),
    ]
}

/// The same store through a wrapper that fails as planned.
pub(crate) fn faulty(store: &Store, plan: &Arc<FaultPlan>) -> Store {
    let backend = Faulty::new(Arc::clone(store.backend()), Arc::clone(plan), SystemClock::shared());
    Store::from_arc(Arc::new(backend))
}

async fn strike(ctx: &Context, fault: Fault, commit: Commit) -> Result<Error, Failure> {
    let plan = FaultPlan::scripted();
    let store = faulty(ctx.store(), &plan);
    plan.next(Operation::Commit, fault);
    match store.commit(commit).await {
        Ok(done) => Err(Failure::new(format!("{fault:?} was answered {done:?}"))),
        Err(error) => Ok(error),
    }
}

async fn a_lost_reply_is_unknown_and_was_applied(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let error = strike(&ctx, Fault::LostReply, Put::new(key.clone(), "v").into()).await?;
    ensure!(error.is_unknown(), "{error}");
    ensure_eq!(existing(ctx.store(), &key).await?.version, 1);
    // A refusal whose reply is lost is still a refusal to whoever asks again.
    let again = Put::new(key.clone(), "w").expect(Expect::Absent).into();
    strike(&ctx, Fault::LostReply, again).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.version, 1);
    Ok(())
}

async fn a_lost_request_is_unknown_and_was_not_applied(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let error = strike(&ctx, Fault::LostRequest, Put::new(key.clone(), "v").into()).await?;
    ensure!(error.is_unknown(), "{error}");
    ensure_eq!(ctx.store().get(&key).await?, None);
    Ok(())
}

async fn an_unavailable_store_applied_nothing(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let error = strike(&ctx, Fault::Error, Put::new(key.clone(), "v").into()).await?;
    ensure_eq!(error.code(), "unavailable");
    ensure_eq!(ctx.store().get(&key).await?, None);
    Ok(())
}

fn pair(ctx: &Context, value: &str) -> Commit {
    let one = |id| Put::new(ctx.key(id), value.to_owned());
    Commit::new().put(one("a")).put(one("b"))
}

async fn versions(ctx: &Context) -> Result<(u64, u64), Failure> {
    let version = async |id| -> Result<u64, Failure> {
        Ok(ctx.store().get(&ctx.key(id)).await?.map_or(0, |object| object.version))
    };
    Ok((version("a").await?, version("b").await?))
}

async fn a_lost_reply_to_several_writes_was_applied_whole(ctx: Context) -> Result<(), Failure> {
    let error = strike(&ctx, Fault::LostReply, pair(&ctx, "v")).await?;
    ensure!(error.is_unknown(), "{error}");
    ensure_eq!(versions(&ctx).await?, (1, 1));
    Ok(())
}

async fn a_crash_leaves_all_or_nothing(ctx: Context) -> Result<(), Failure> {
    for (fault, expected) in [(Fault::CrashBefore, (0, 0)), (Fault::CrashAfter, (1, 1))] {
        let plan = FaultPlan::scripted();
        let store = faulty(ctx.store(), &plan);
        plan.next(Operation::Commit, fault);
        ensure!(store.commit(pair(&ctx, "v")).await.is_err(), "{fault:?} was answered");
        ensure!(plan.crashed());
        ensure!(store.get(&ctx.key("a")).await.is_err(), "a crashed process answered");
        ensure_eq!(versions(&ctx).await?, expected, "after {fault:?}");
    }
    Ok(())
}

/// Adds one, exactly once, over a store that loses requests and replies: the payload carries a nonce
/// of this very increment, so a second look tells whether it happened.
async fn increment_once(store: &Store, key: &Key) -> Result<(), Failure> {
    let mine = nonce(&SystemRandom);
    for _ in 0..ATTEMPTS {
        // A store in memory never waits, and only who waits can be stopped.
        tokio::task::yield_now().await;
        let object = match store.get(key).await {
            Ok(object) => object.ok_or("the counter is gone")?,
            Err(Error::Unavailable { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        // Others may have counted since, so every nonce is kept, not only the last.
        if object.labels.contains_key(&mine) {
            return Ok(());
        }
        let mut put = object.to_put().expect(Expect::Revision(object.revision));
        put.payload = (number(&object) + 1).to_string().into();
        let put = put.label(&mine, "");
        match store.commit(put).await {
            Ok(_) => return Ok(()),
            Err(Error::Unavailable { .. } | Error::Conflict { .. } | Error::Unknown { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err("an increment conflicts for ever".into())
}

async fn a_nonce_settles_an_unknown_outcome(ctx: Context) -> Result<(), Failure> {
    let clients = 4;
    let each = (ctx.caps().limits.labels / clients).min(12);
    let key = ctx.key("counter");
    put(ctx.store(), Put::new(key.clone(), "0")).await?;
    let counting = (0..clients as u64).map(|seed| {
        let store = faulty(ctx.store(), &FaultPlan::seeded(seed, 30));
        let key = key.clone();
        async move {
            for _ in 0..each {
                increment_once(&store, &key).await?;
            }
            Ok(())
        }
    });
    all_at_once(counting).await?;
    let object = existing(ctx.store(), &key).await?;
    let wanted = (clients * each) as u64;
    ensure_eq!(number(&object), wanted, "increments");
    ensure_eq!(object.version, wanted + 1, "changes");
    Ok(())
}
