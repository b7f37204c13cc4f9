//! Handing over: to a waiter that can take it, and to nobody else.

use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::lease::{Coordinator, Hooks, Lease, Scope, Terms};
use tenure::store::faulty::{Fault, Operation};
use tokio::task::JoinHandle;

use super::leases::{soon, terms};
use super::waiting::in_line;
use crate::context::{Context, PATIENCE};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_holder_that_is_asked_hands_over,
            [multi, ttl, real_time, told],
            "to whom it is told; one that does not listen goes on, and never hears of it again"
        ),
        behaviour!(
            a_hand_over_to_one_that_gave_up_is_let_go,
            [multi, ttl, real_time, told],
            "the next in line gets it at once, not when a whole life is over"
        ),
        behaviour!(
            a_readers_lease_is_not_handed_over,
            [multi, ttl, real_time, told],
            "to a writer it would be of no use; the reader keeps it, and is told why"
        ),
        behaviour!(
            a_waiter_with_hooks_is_not_handed_to,
            [multi, ttl, real_time, told],
            "its hooks could not run in another's commit; it gets the lease when it is released"
        ),
    ]
}

type Waiting = JoinHandle<tenure::Result<Lease>>;

/// Waits for a scope, or to write it, and returns once it is in line.
async fn queue(
    ctx: &Context,
    coordinator: &Coordinator,
    scope: &Scope,
    terms: Terms,
    writes: bool,
) -> Result<Waiting, Failure> {
    let before = in_line(ctx, scope).await?.len();
    let waiting = {
        let (coordinator, scope, terms) =
            (coordinator.clone(), scope.clone(), terms.wait_forever());
        tokio::spawn(async move {
            match writes {
                true => coordinator.acquire_write(&scope, &terms).await,
                false => coordinator.acquire(&scope, &terms).await,
            }
        })
    };
    soon("joining the line", async {
        while in_line(ctx, scope).await?.len() <= before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, Failure>(())
    })
    .await??;
    Ok(waiting)
}

/// That a hand-over was refused for this reason. The lease is still held.
fn refused(handed: Result<(), (Lease, Error)>, because: &str) -> Result<Lease, Failure> {
    match handed {
        Err((lease, Error::Invalid { reason, .. })) => {
            ensure!(reason.contains(because), "the reason is not told: {reason}");
            ensure_in_time!(lease.is_valid(), "{lease:?}");
            Ok(lease)
        }
        Err((_, error)) => Err(error.into()),
        Ok(()) => Err(Failure::new("it was handed over")),
    }
}

async fn a_holder_that_is_asked_hands_over(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("asked")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let operator = ctx.coordinator("operator").await?;
    let long = terms(&ctx).ttl(ctx.ttl_of(Duration::from_secs(120)));
    let lease = a.acquire(&scope, &long).await?;
    let waiting = queue(&ctx, &b, &scope, long, false).await?;
    let ask = |wait| {
        let (operator, scope) = (operator.clone(), scope.clone());
        tokio::spawn(async move { operator.ask_to_hand_over(&scope, None, None, wait).await })
    };
    let deaf = soon("the end of the wait", ask(Duration::from_millis(200))).await??;
    ensure!(matches!(deaf, Err(Error::Held { .. })), "it did not listen, and: {deaf:?}");
    let asked = ask(PATIENCE);
    let request = soon("the request", lease.asked_to_hand_over()).await?;
    ensure_eq!((&request.to, &request.by), (&b.owner().to_string(), &operator.owner().to_string()));
    ensure!(!asked.is_finished(), "it was told before anything happened");
    let token = lease.token();
    lease.hand_over(&request.to).await.map_err(|(_, error)| error)?;
    let now = soon("the answer", asked).await???;
    ensure!(now.holder == *b.owner() && now.token > token, "{now:?} after {token}");
    Ok(soon("the successor", waiting).await???.release().await?)
}

async fn a_hand_over_to_one_that_gave_up_is_let_go(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("given up")?;
    let (a, c) = (ctx.coordinator("a").await?, ctx.coordinator("c").await?);
    let (b, plan) = ctx.faulty("b").await?;
    // So long that nobody gets it by waiting for its end.
    let long = terms(&ctx).ttl(ctx.ttl_of(Duration::from_secs(120))).reapable();
    let lease = a.acquire(&scope, &long).await?;
    let token = lease.token();
    let giving_up = queue(&ctx, &b, &scope, long.clone(), false).await?;
    // It hears that the lease is its own, and cannot make sure of it before it gives up.
    plan.next(Operation::Touch, Fault::Delay(PATIENCE * 6));
    lease.hand_over("b").await.map_err(|(_, error)| error)?;
    giving_up.abort();
    ensure!(giving_up.await.is_err(), "it did not give up");
    let next = soon("the next holder", c.acquire(&scope, &long.wait(PATIENCE))).await??;
    ensure!(next.token() > token, "{} after {token}", next.token());
    Ok(next.release().await?)
}

async fn a_readers_lease_is_not_handed_over(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("read")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let reader = a.acquire_read(&scope, &terms(&ctx)).await?;
    let writing = queue(&ctx, &b, &scope, terms(&ctx), true).await?;
    let reader = refused(reader.hand_over("b").await, "reader")?;
    reader.release().await?;
    let writer = soon("the writer", writing).await???;
    // From one writer to the next it is the whole that changes hands.
    let next = queue(&ctx, &a, &scope, terms(&ctx), true).await?;
    writer.hand_over("a").await.map_err(|(_, error)| error)?;
    Ok(soon("the next writer", next).await???.release().await?)
}

/// Hooks that add nothing; that there are any is enough.
struct Quiet;

impl Hooks for Quiet {}

async fn a_waiter_with_hooks_is_not_handed_to(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("hooked")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let lease = a.acquire(&scope, &terms(&ctx)).await?;
    let waiting = queue(&ctx, &b, &scope, terms(&ctx).hooks(Arc::new(Quiet)), false).await?;
    let lease = refused(lease.hand_over("b").await, "hooks")?;
    lease.release().await?;
    let hooked = soon("the waiter", waiting).await???;
    // One of the same name without hooks gets it, though it came later.
    let _first = queue(&ctx, &a, &scope, terms(&ctx).hooks(Arc::new(Quiet)), false).await?;
    let twin = queue(&ctx, &a, &scope, terms(&ctx), false).await?;
    hooked.hand_over("a").await.map_err(|(_, error)| error)?;
    Ok(soon("the one without", twin).await???.release().await?)
}
