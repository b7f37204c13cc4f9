//! Sharing: readers and writers, several scopes at once, a leader that everybody can find.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use tenure::Key;
use tenure::lease::{Election, LEASE, Scope};
use tenure::store::Put;

use super::leases::{refused, soon, terms};
use super::waiting::in_line;
use crate::context::{Context, PATIENCE};
use crate::helpers::put;
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            readers_share_and_a_writer_is_alone,
            [multi, ttl, real_time],
            "a writer gets in when the last reader is gone, and keeps readers out"
        ),
        behaviour!(
            readers_and_writers_never_overlap,
            [multi, ttl, real_time],
            "while many of both come and go"
        ),
        behaviour!(
            readers_whose_life_is_over_hide_none_that_reads,
            [multi, ttl, real_time],
            "however many of them nobody has tidied away yet"
        ),
        behaviour!(
            a_waiting_writer_is_not_passed_by_readers,
            [multi, ttl, real_time, told],
            "not even by one of another process, however long other readers stay"
        ),
        behaviour!(
            several_scopes_are_acquired_together_or_not_at_all,
            [multi, ttl, real_time],
            "nothing of them is held while one is missing"
        ),
        behaviour!(
            several_scopes_in_any_order_do_not_deadlock,
            [multi, ttl, real_time],
            "two who want the same two keep getting both"
        ),
        behaviour!(
            a_leader_is_elected_observed_and_succeeded,
            [ttl, real_time, told],
            "campaign, observe with its address, resign, the next one leads"
        ),
    ]
}

async fn readers_share_and_a_writer_is_alone(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("shared")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let first = a.acquire_read(&scope, &terms(&ctx)).await?;
    let second = b.acquire_read(&scope, &terms(&ctx)).await?;
    ensure!(second.token() > first.token(), "tokens of readers differ");
    let early = b.acquire_write(&scope, &terms(&ctx)).await;
    refused(early, first.is_valid() || second.is_valid())?;
    let waiting = {
        let (b, scope, terms) = (b.clone(), scope.clone(), terms(&ctx).wait_forever());
        tokio::spawn(async move { b.acquire_write(&scope, &terms).await })
    };
    first.release().await?;
    ctx.pass(Duration::from_millis(300)).await;
    ensure!(!waiting.is_finished(), "wrote beside a reader");
    second.release().await?;
    let writer = soon("the writer", waiting).await???;
    refused(a.acquire_read(&scope, &terms(&ctx)).await, writer.is_valid())?;
    ensure_eq!(a.readers_and_writer(&scope).await?.len(), 1);
    writer.release().await?;
    Ok(a.acquire_read(&scope, &terms(&ctx)).await?.release().await?)
}

/// What a reader leaves that is gone.
const RECORD: &str = r#"{"holder":"gone","start":"0","nonce":"0","acquired_at_ms":0}"#;

async fn readers_whose_life_is_over_hide_none_that_reads(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("hidden")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let long = terms(&ctx).ttl(ctx.ttl_of(Duration::from_secs(120)));
    let reader = a.acquire_read(&scope, &long).await?;
    // Before all others, in the order in which they are listed.
    let mut ends = ctx.uptime();
    for n in 0..5 {
        let key = Key::new(LEASE, format!("{scope}#read-!{n}"));
        let gone = put(ctx.store(), Put::new(key, RECORD).ttl(ctx.ttl())).await?;
        ends = ctx.uptime() + gone.ttl.unwrap_or_default();
    }
    ctx.pass_until(ends + Duration::from_millis(1)).await;
    refused(b.acquire_write(&scope, &terms(&ctx)).await, reader.is_valid())?;
    Ok(reader.release().await?)
}

async fn readers_and_writers_never_overlap(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("mixed")?;
    // Readers count up from zero; a writer makes it minus one.
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for n in 0..6 {
        let coordinator = ctx.coordinator(&format!("c{n}")).await?;
        let (scope, inside) = (scope.clone(), Arc::clone(&inside));
        let terms = terms(&ctx).wait(PATIENCE * 2);
        tasks.push(async move {
            for _ in 0..4 {
                if n % 3 == 0 {
                    let lease = coordinator.acquire_write(&scope, &terms).await?;
                    let others = inside.fetch_sub(1, Ordering::SeqCst);
                    ensure_eq!(others, 0, "inside beside a writer");
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    inside.fetch_add(1, Ordering::SeqCst);
                    lease.release().await?;
                } else {
                    let lease = coordinator.acquire_read(&scope, &terms).await?;
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    ensure!(others >= 0, "a writer inside beside a reader");
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    lease.release().await?;
                }
            }
            Ok(())
        });
    }
    all_at_once(tasks).await?;
    Ok(())
}

/// Who waits, once so many do.
async fn joined(ctx: &Context, scope: &Scope, count: usize) -> Result<Vec<String>, Failure> {
    soon("joining the line", async {
        loop {
            let waiting = in_line(ctx, scope).await?;
            if waiting.len() >= count {
                return Ok(waiting);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?
}

async fn a_waiting_writer_is_not_passed_by_readers(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("starving")?;
    let a = ctx.coordinator("a").await?;
    let first = a.acquire_read(&scope, &terms(&ctx)).await?;
    let second = a.acquire_read(&scope, &terms(&ctx)).await?;
    let (w, r) = (ctx.coordinator("writer").await?, ctx.coordinator("reader").await?);
    let forever = terms(&ctx).wait_forever();
    let writing = {
        let (scope, terms) = (scope.clone(), forever.clone());
        tokio::spawn(async move { w.acquire_write(&scope, &terms).await })
    };
    let writes = joined(&ctx, &scope, 1).await?;
    let reading = {
        let (scope, terms) = (scope.clone(), forever.clone());
        tokio::spawn(async move { r.acquire_read(&scope, &terms).await })
    };
    joined(&ctx, &scope, 2).await?;
    first.release().await?;
    // Long enough for the reader to think the writer dead, if it judged by silence alone.
    ctx.pass(Duration::from_millis(1_000)).await;
    // Without its place in the line it may be passed: a writer that stood still for so long is dead.
    let waiting = in_line(&ctx, &scope).await?;
    ensure_in_time!(waiting.contains(&writes[0]), "{writes:?} is not among {waiting:?}");
    ensure!(!reading.is_finished(), "a reader passed the writer that waits");
    second.release().await?;
    let writer = soon("the writer", writing).await???;
    ensure!(!reading.is_finished(), "a reader beside the writer");
    writer.release().await?;
    Ok(soon("the reader", reading).await???.release().await?)
}

async fn several_scopes_are_acquired_together_or_not_at_all(ctx: Context) -> Result<(), Failure> {
    let scopes = [ctx.scope("x")?, ctx.scope("y")?, ctx.scope("z")?];
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let y = b.acquire(&scopes[1], &terms(&ctx)).await?;
    refused(a.acquire_all(&scopes, &terms(&ctx)).await, y.is_valid())?;
    ensure_eq!(a.list(&ctx.namespace("lease")?, false).await?.len(), 1, "held by anybody");
    let waiting = {
        let (a, scopes, terms) = (a.clone(), scopes.clone(), terms(&ctx).wait(PATIENCE * 2));
        tokio::spawn(async move { a.acquire_all(&scopes, &terms).await })
    };
    ctx.pass(Duration::from_millis(200)).await;
    // What it does not hold yet, others can have.
    b.acquire(&scopes[2], &terms(&ctx)).await?.release().await?;
    y.release().await?;
    let all = soon("all three", waiting).await???;
    ensure_eq!(all.iter().count(), 3);
    ensure_in_time!(all.is_valid(), "{all:?}");
    ensure_eq!(a.list(&ctx.namespace("lease")?, false).await?.len(), 3, "held");
    all.release().await?;
    ensure_eq!(a.list(&ctx.namespace("lease")?, false).await?.len(), 0, "held after the release");
    Ok(())
}

async fn several_scopes_in_any_order_do_not_deadlock(ctx: Context) -> Result<(), Failure> {
    let (x, y) = (ctx.scope("x")?, ctx.scope("y")?);
    let mut tasks = Vec::new();
    for n in 0..4 {
        let coordinator = ctx.coordinator(&format!("c{n}")).await?;
        let scopes = if n % 2 == 0 { [x.clone(), y.clone()] } else { [y.clone(), x.clone()] };
        let terms = terms(&ctx).wait(PATIENCE * 2);
        tasks.push(async move {
            for _ in 0..3 {
                let all = coordinator.acquire_all(&scopes, &terms).await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
                all.release().await?;
            }
            Ok(())
        });
    }
    all_at_once(tasks).await?;
    Ok(())
}

async fn a_leader_is_elected_observed_and_succeeded(ctx: Context) -> Result<(), Failure> {
    let scope = ctx.scope("leader")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let (here, there) = (Election::new(&a, scope.clone()), Election::new(&b, scope.clone()));
    let mut leaders = there.observe().await?;
    let mut next = async || -> Result<Option<String>, Failure> {
        let leader = soon("the observer", leaders.next()).await?.ok_or("it ended")??;
        Ok(leader.and_then(|info| info.metadata.get("address").cloned()))
    };
    ensure_eq!(next().await?, None, "before anybody leads");
    let term = here.campaign(terms(&ctx).metadata("address", "a:1")).await?;
    ensure_eq!(next().await?.as_deref(), Some("a:1"));
    ensure!(there.try_campaign(terms(&ctx)).await?.is_none(), "two leaders");
    let waiting = {
        let (there, terms) = (there.clone(), terms(&ctx).metadata("address", "b:2"));
        tokio::spawn(async move { there.campaign(terms).await })
    };
    here.proclaim(&term, [("address".to_owned(), "a:3".to_owned())].into()).await?;
    ensure_eq!(next().await?.as_deref(), Some("a:3"));
    here.resign(term).await?;
    let succeeded = soon("the successor", waiting).await???;
    ensure_eq!(next().await?, None, "between two leaders");
    ensure_eq!(next().await?.as_deref(), Some("b:2"));
    Ok(there.resign(succeeded).await?)
}
