//! Fenced commits: they apply while the lease is held under the token, and never after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::store::{Commit, Expect, Fence, Put, Store};
use tenure::{Error, Key};

use crate::context::Context;
use crate::helpers::{existing, number, put, refused};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_fenced_commit_applies_while_held,
            [multi],
            "also after renewals by put, which keep the token"
        ),
        behaviour!(
            a_released_lease_fences_out,
            [multi],
            "after release the commit is Lost, and nobody holds it"
        ),
        behaviour!(
            a_reacquired_lease_fences_out_the_old_token,
            [multi],
            "the old token is Lost even if the lease looks the same again"
        ),
        behaviour!(
            a_handed_over_lease_fences_out_the_old_token,
            [multi],
            "the refusal names the new token"
        ),
        behaviour!(
            an_expired_lease_fences_out,
            [multi, ttl],
            "from the instant it expires, whether or not it was swept"
        ),
        behaviour!(
            fenced_increments_stop_when_the_lease_moves,
            [multi],
            "a race: no holder's write lands after its successor's first"
        ),
    ]
}

fn write(lease: &Key, token: u64, target: &Key, value: &str) -> Commit {
    Commit::new()
        .fenced_by(Fence::new(lease.clone(), token))
        .put(Put::new(target.clone(), value.to_owned()))
}

/// Tries a fenced write that must be lost.
async fn lost(ctx: &Context, lease: &Key, token: u64) -> Result<Option<u64>, Failure> {
    let target = ctx.other_key("target");
    let before = ctx.store().get(&target).await?;
    match refused(ctx.store().commit(write(lease, token, &target, "late")).await)? {
        Error::Lost { key, token: told, current } => {
            ensure_eq!((&key, told), (lease, token));
            ensure_eq!(ctx.store().get(&target).await?, before, "after a lost commit");
            Ok(current)
        }
        other => Err(Failure::new(format!("not Lost: {other}"))),
    }
}

async fn a_fenced_commit_applies_while_held(ctx: Context) -> Result<(), Failure> {
    let (lease, target) = (ctx.key("lease"), ctx.other_key("target"));
    let token = put(ctx.store(), Put::new(lease.clone(), "me")).await?.token;
    for n in 1..=3u64 {
        ctx.store().commit(write(&lease, token, &target, &n.to_string())).await?;
        ensure_eq!(existing(ctx.store(), &target).await?.version, n);
        put(ctx.store(), Put::new(lease.clone(), format!("renewed {n}"))).await?;
    }
    let wrong = lost(&ctx, &lease, token + 1).await?;
    ensure_eq!(wrong, Some(token), "the token that holds it");
    Ok(())
}

async fn a_released_lease_fences_out(ctx: Context) -> Result<(), Failure> {
    let lease = ctx.key("lease");
    let token = put(ctx.store(), Put::new(lease.clone(), "me")).await?.token;
    let release = Commit::new().delete(lease.clone(), Expect::Token(token));
    ctx.store().commit(release.clone()).await?;
    ensure_eq!(lost(&ctx, &lease, token).await?, None, "the present holder");
    ensure_eq!(refused(ctx.store().commit(release).await)?.code(), "lost", "a second release");
    Ok(())
}

async fn a_reacquired_lease_fences_out_the_old_token(ctx: Context) -> Result<(), Failure> {
    let lease = ctx.key("lease");
    let old = put(ctx.store(), Put::new(lease.clone(), "me")).await?.token;
    ctx.store().delete(&lease).await?;
    let new = put(ctx.store(), Put::new(lease.clone(), "me")).await?.token;
    ensure!(new > old);
    ensure_eq!(lost(&ctx, &lease, old).await?, Some(new));
    ctx.store().commit(write(&lease, new, &ctx.other_key("target"), "x")).await?;
    Ok(())
}

async fn a_handed_over_lease_fences_out_the_old_token(ctx: Context) -> Result<(), Failure> {
    let lease = ctx.key("lease");
    let old = put(ctx.store(), Put::new(lease.clone(), "me")).await?.token;
    let hand_over = Put::new(lease.clone(), "you").expect(Expect::Token(old)).new_token();
    let new = put(ctx.store(), hand_over.clone()).await?.token;
    ensure!(new > old);
    ensure_eq!(lost(&ctx, &lease, old).await?, Some(new));
    let again = refused(ctx.store().commit(hand_over).await)?;
    ensure_eq!(again.code(), "lost", "a second hand-over by the old holder");
    ctx.store().commit(write(&lease, new, &ctx.other_key("target"), "x")).await?;
    Ok(())
}

async fn an_expired_lease_fences_out(ctx: Context) -> Result<(), Failure> {
    let (lease, target) = (ctx.key("lease"), ctx.other_key("target"));
    let granted = put(ctx.store(), Put::new(lease.clone(), "me").ttl(ctx.ttl())).await?;
    let answered = ctx.uptime();
    ctx.store().commit(write(&lease, granted.token, &target, "in time")).await?;
    let life = granted.ttl.unwrap_or_else(|| ctx.ttl());
    ctx.pass_until(answered + life + ctx.slack()).await;
    ensure_eq!(lost(&ctx, &lease, granted.token).await?, None, "the present holder");
    Ok(())
}

async fn fenced_increments_stop_when_the_lease_moves(ctx: Context) -> Result<(), Failure> {
    let (lease, counter) = (ctx.key("lease"), ctx.other_key("counter"));
    let handles = ctx.handles(3).await?;
    ctx.put(&counter, "0").await?;
    let token = put(ctx.store(), Put::new(lease.clone(), "first")).await?.token;
    let holder = Arc::new(AtomicU64::new(token));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = |store: Store| {
        let (lease, counter, holder) = (lease.clone(), counter.clone(), Arc::clone(&holder));
        let stop = Arc::clone(&stop);
        async move {
            let mut done = 0;
            while !stop.load(Ordering::Acquire) {
                // Deliberately remembered across the read: the lease may move in between.
                let token = holder.load(Ordering::Acquire);
                let object = existing(&store, &counter).await?;
                tokio::task::yield_now().await;
                let put = Put::new(counter.clone(), (number(&object) + 1).to_string())
                    .label("token", token.to_string())
                    .expect(Expect::Revision(object.revision));
                match store
                    .commit(Commit::new().fenced_by(Fence::new(lease.clone(), token)).put(put))
                    .await
                {
                    Ok(_) => done += 1,
                    Err(Error::Lost { .. } | Error::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(done)
        }
    };
    let writers: Vec<_> = handles.into_iter().map(writer).collect();
    let (mover, key) = (ctx.clone(), counter.clone());
    let moves = tokio::spawn(async move {
        let moved = move_lease(&mover, &lease, &key, &holder).await;
        stop.store(true, Ordering::Release);
        moved
    });
    let done: u64 = all_at_once(writers).await?.into_iter().sum();
    moves.await??;
    ensure_eq!(number(&existing(ctx.store(), &counter).await?), done, "acknowledged increments");
    Ok(())
}

/// Moves the lease from hand to hand. Before the new token is told to anybody, all writers still use
/// the old one, so the counter must stand still.
async fn move_lease(
    ctx: &Context,
    lease: &Key,
    counter: &Key,
    holder: &AtomicU64,
) -> Result<(), Failure> {
    for round in 0..25 {
        let write = Put::new(lease.clone(), format!("holder {round}"));
        let token = if round % 2 == 0 {
            put(ctx.store(), write.new_token()).await?.token
        } else {
            ctx.store().delete(lease).await?;
            put(ctx.store(), write).await?.token
        };
        let at_move = existing(ctx.store(), counter).await?.revision;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let later = existing(ctx.store(), counter).await?.revision;
        ensure_eq!(later, at_move, "round {round}: the counter while only lost tokens are in use");
        holder.store(token, Ordering::Release);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(())
}
