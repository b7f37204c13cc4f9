//! Waiting: woken by the release or the expiry, in order, without a stampede, at no cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Lease, Scope, Terms, WAITER};
use tenure::store::Query;
use tokio::sync::mpsc;

use super::leases::{refused, soon, terms};
use crate::context::Context;
use crate::counting::{Calls, counted};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_waiter_is_woken_by_the_release,
            [ttl, real_time, told],
            "long before the lease would have expired"
        ),
        behaviour!(
            a_wait_that_is_over_says_who_holds,
            [ttl, real_time],
            "after the time asked for, not before"
        ),
        behaviour!(
            waiters_are_served_in_the_order_they_came,
            [multi, ttl, real_time, told],
            "across coordinators, and whoever comes later queues behind them"
        ),
        behaviour!(
            many_waiters_cause_no_stampede,
            [ttl, real_time, told],
            "a release costs a fixed number of commits, however many wait"
        ),
        behaviour!(
            a_standby_makes_no_calls,
            [ttl, real_time, told],
            "while it waits and the holder renews"
        ),
        behaviour!(
            a_cancelled_wait_leaves_the_line,
            [multi, ttl, real_time, told],
            "and the next in line is served"
        ),
        behaviour!(
            a_hand_over_leaves_neither_gap_nor_overlap,
            [multi, ttl, real_time, told],
            "the successor by name gets a greater token, ahead of those who came first"
        ),
        behaviour!(
            a_hand_over_to_nobody_keeps_the_lease,
            [multi, ttl, real_time],
            "the error says that the successor does not wait"
        ),
    ]
}

/// Starts to wait, and returns once it is in line.
async fn queue(
    ctx: &Context,
    coordinator: &Coordinator,
    scope: &Scope,
    done: impl FnOnce(Lease) + Send + 'static,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let before = in_line(ctx, scope).await?.len();
    let (coordinator, terms) = (coordinator.clone(), terms(ctx).wait_forever());
    let task = {
        let scope = scope.clone();
        tokio::spawn(async move {
            if let Ok(lease) = coordinator.acquire(&scope, &terms).await {
                done(lease);
            }
        })
    };
    soon("joining the line", async {
        while in_line(ctx, scope).await.is_ok_and(|now| now.len() <= before) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    Ok(task)
}

/// Who waits, by what the store knows.
pub(super) async fn in_line(ctx: &Context, scope: &Scope) -> Result<Vec<String>, Failure> {
    let query = Query::new(WAITER).prefix(format!("{scope}#"));
    let waiters = ctx.store().list_all(&query).await?.into_iter().map(|object| object.key.id);
    Ok(waiters.filter(|id| !id.ends_with('#')).collect())
}

async fn a_waiter_is_woken_by_the_release(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("woken")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let long = terms(&ctx).ttl(ctx.ttl_of(Duration::from_secs(60)));
    let lease = a.acquire(&scope, &long).await?;
    let waiting = {
        let (b, scope, long) = (b.clone(), scope.clone(), long.clone().wait_forever());
        tokio::spawn(async move { b.acquire(&scope, &long).await })
    };
    ctx.pass(Duration::from_millis(300)).await;
    ensure!(!waiting.is_finished(), "it did not wait");
    let released = SystemClock.uptime();
    lease.release().await?;
    let next = soon("the next holder", waiting).await???;
    let took = SystemClock.uptime() - released;
    ensure!(took < Duration::from_secs(10), "woken only after {took:?}");
    Ok(next.release().await?)
}

async fn a_wait_that_is_over_says_who_holds(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("over")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let lease = a.acquire(&scope, &terms(&ctx)).await?;
    let (wait, before) = (Duration::from_millis(300), SystemClock.uptime());
    let asked = b.acquire(&scope, &terms(&ctx).wait(wait)).await;
    ensure_eq!(refused(asked, lease.is_valid())?, Some(a.owner().to_string()));
    ensure!(SystemClock.uptime() - before >= wait, "it gave up early");
    Ok(lease.release().await?)
}

async fn waiters_are_served_in_the_order_they_came(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("order")?;
    let coordinators = [ctx.coordinator("a").await?, ctx.coordinator("b").await?];
    let first = coordinators[0].acquire(&scope, &terms(&ctx)).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    for n in 0..8 {
        let tell = tell.clone();
        queue(&ctx, &coordinators[n % 2], &scope, move |lease| {
            let _ = tell.send((n, lease));
        })
        .await?;
    }
    let status = coordinators[0].status(&scope).await?;
    ensure_eq!(status.waiters.len(), 8, "who waits is visible");
    first.release().await?;
    let (mut order, mut last) = (Vec::new(), 0);
    while order.len() < 8 {
        let (n, lease) = soon("the next holder", told.recv()).await?.ok_or("all are gone")?;
        ensure!(lease.token() > last, "token {} after {last}", lease.token());
        last = lease.token();
        order.push(n);
        lease.release().await?;
    }
    ensure_eq!(order, (0..8).collect::<Vec<_>>(), "the order");
    ensure_eq!(in_line(&ctx, &scope).await?, Vec::<String>::new(), "left in line");
    Ok(())
}

async fn many_waiters_cause_no_stampede(ctx: Context) -> Result<(), Failure> {
    const WAITERS: usize = 60;
    let scope = ctx.scope("many")?;
    let (store, calls) = counted(&ctx.open().await?);
    let coordinator = Coordinator::builder(store).name("crowd").start()?;
    let first = coordinator.acquire(&scope, &terms(&ctx)).await?;
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..WAITERS {
        let (coordinator, scope, served) = (coordinator.clone(), scope.clone(), served.clone());
        let terms = terms(&ctx).wait_forever();
        tasks.push(tokio::spawn(async move {
            let lease = coordinator.acquire(&scope, &terms).await?;
            served.fetch_add(1, Ordering::Relaxed);
            lease.release().await
        }));
    }
    let waiting = coordinator.metrics().waiting.clone();
    soon("all to wait", async {
        while waiting.get() < WAITERS as i64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    // The last of them may still be on their way into the line.
    let before = soon("peace", async {
        loop {
            let before = calls.commits();
            tokio::time::sleep(Duration::from_millis(300)).await;
            if calls.commits() == before {
                return before;
            }
        }
    })
    .await?;
    first.release().await?;
    for task in tasks {
        soon("a waiter", task).await???;
    }
    ensure_eq!(served.load(Ordering::Relaxed), WAITERS);
    // One to take and one to release for each, and a few for waiters that were still joining.
    let commits = calls.commits() - before;
    ensure!(commits <= 3 * WAITERS as u64, "{commits} commits for {WAITERS} waiters");
    Ok(())
}

/// How many calls there were, once no more are made for a while.
async fn settled(ctx: &Context, calls: &Calls) -> Result<[u64; 5], Failure> {
    soon("waiting in peace", async {
        loop {
            let before = calls.all();
            ctx.pass(Duration::from_millis(500)).await;
            if calls.all() == before && before.iter().sum::<u64>() > 0 {
                return before;
            }
        }
    })
    .await
}

async fn a_standby_makes_no_calls(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("standby")?;
    let holder = ctx.coordinator("holder").await?;
    let (store, calls) = counted(&ctx.open().await?);
    let standby = Coordinator::builder(store).name("standby").start()?;
    let lease = holder.acquire(&scope, &terms(&ctx)).await?;
    let waiting = {
        let (scope, terms) = (scope.clone(), Terms::new().ttl(ctx.life()).wait_forever());
        tokio::spawn(async move { standby.acquire(&scope, &terms).await })
    };
    let before = settled(&ctx, &calls).await?;
    ctx.pass(ctx.life() * 3).await;
    // A holder that was too slow to renew is looked after.
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    ensure_eq!(calls.all(), before, "calls while it waited");
    ensure_in_time!(!waiting.is_finished(), "the holder did not renew");
    lease.release().await?;
    Ok(soon("the next holder", waiting).await???.release().await?)
}

async fn a_cancelled_wait_leaves_the_line(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("cancelled")?;
    let (a, b, c) =
        (ctx.coordinator("a").await?, ctx.coordinator("b").await?, ctx.coordinator("c").await?);
    let lease = a.acquire(&scope, &terms(&ctx)).await?;
    let cancelled = queue(&ctx, &b, &scope, drop).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    queue(&ctx, &c, &scope, move |lease| drop(tell.send(lease))).await?;
    cancelled.abort();
    let _ = cancelled.await;
    soon("leaving the line", b.settle()).await?;
    let waiting = in_line(&ctx, &scope).await?;
    ensure!(waiting.len() <= 1, "{waiting:?} in line after one of two has left");
    lease.release().await?;
    let next = soon("the next holder", told.recv()).await?.ok_or("it gave up")?;
    next.release().await?;
    // With nobody in line, whoever is ready to wait gets it with one commit again.
    Ok(b.acquire(&scope, &terms(&ctx).wait(Duration::from_secs(5))).await?.release().await?)
}

async fn a_hand_over_leaves_neither_gap_nor_overlap(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("handed")?;
    let (a, b, c) =
        (ctx.coordinator("a").await?, ctx.coordinator("b").await?, ctx.coordinator("c").await?);
    let lease = a.acquire(&scope, &terms(&ctx)).await?;
    let (tell_b, mut told_b) = mpsc::unbounded_channel();
    let (tell_c, mut told_c) = mpsc::unbounded_channel();
    queue(&ctx, &b, &scope, move |lease| drop(tell_b.send(lease))).await?;
    queue(&ctx, &c, &scope, move |lease| drop(tell_c.send(lease))).await?;
    let mut watch = c.watch(scope.as_str(), None).await?;
    let token = lease.token();
    lease.hand_over("c").await.map_err(|(_, error)| error)?;
    let handed = soon("the successor", told_c.recv()).await?.ok_or("it gave up")?;
    ensure!(handed.token() > token, "{} after {token}", handed.token());
    ensure!(handed.is_valid() && told_b.try_recv().is_err(), "only the successor holds it");
    handed.release().await?;
    soon("the first in line", told_b.recv()).await?.ok_or("it gave up")?.release().await?;
    // From one holder straight to the next: no end between.
    use futures::StreamExt;
    match soon("the watch", watch.next()).await?.ok_or("the watch ended")?? {
        tenure::lease::LeaseEvent::Held(info) => ensure!(info.holder.is_called("c"), "{info:?}"),
        other => return Err(Failure::new(format!("a gap: {other:?}"))),
    }
    Ok(())
}

async fn a_hand_over_to_nobody_keeps_the_lease(ctx: Context) -> Result<(), Failure> {
    let a = ctx.coordinator("a").await?;
    let lease = a.acquire(&ctx.scope("kept")?, &terms(&ctx)).await?;
    let Err((lease, error)) = lease.hand_over("nobody").await else {
        return Err(Failure::new("handed over to nobody"));
    };
    ensure!(error.to_string().contains("nobody"), "{error}");
    ctx.pass(ctx.life() + ctx.slack()).await;
    ensure_in_time!(lease.is_valid(), "{lease:?}");
    Ok(lease.release().await?)
}
