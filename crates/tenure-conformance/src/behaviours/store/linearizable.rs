//! Recorded histories of concurrent clients, checked for an order that explains every answer.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tenure::Key;
use tenure::store::ExpiryClock;
use tenure::store::faulty::FaultPlan;

use super::faults::faulty;
use crate::context::Context;
use crate::linearize::{LONGEST, Lives, Operation, Verdict, check};
use crate::recorder::{Client, Habits, KEYS, Lends};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

/// States the checker may try for one history.
const BUDGET: usize = 200_000;
/// Operations of each client in a history that is short enough for a verdict.
const SHORTEST: usize = 5;
/// Lives that a history with lives lasts.
const LIVES_LONG: u32 = 4;

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            concurrent_histories_are_linearizable,
            [],
            "reads, conditional writes and deletes of six clients over three keys"
        ),
        behaviour!(
            concurrent_commits_are_linearizable,
            [multi],
            "the same with commits and lists over several keys"
        ),
        behaviour!(
            histories_with_faults_are_linearizable,
            [],
            "the same while requests and replies get lost"
        ),
        behaviour!(
            histories_with_lives_are_linearizable,
            [ttl, kept_revisions],
            "the same with objects that expire, and renewals of several at once"
        ),
    ]
}

async fn concurrent_histories_are_linearizable(ctx: Context) -> Result<(), Failure> {
    for seed in 0..4 {
        run(&ctx, Plan { seed, clients: 6, each: 40, multi: false, faults: 0, lives: None })
            .await?;
    }
    Ok(())
}

async fn concurrent_commits_are_linearizable(ctx: Context) -> Result<(), Failure> {
    for seed in 10..14 {
        run(&ctx, Plan { seed, clients: 6, each: 40, multi: true, faults: 0, lives: None }).await?;
    }
    Ok(())
}

async fn histories_with_faults_are_linearizable(ctx: Context) -> Result<(), Failure> {
    let multi = ctx.caps().multi_object_commits;
    for seed in 20..24 {
        run(&ctx, Plan { seed, clients: 5, each: 16, multi, faults: 12, lives: None }).await?;
    }
    Ok(())
}

async fn histories_with_lives_are_linearizable(ctx: Context) -> Result<(), Failure> {
    let multi = ctx.caps().multi_object_commits;
    let lives = lives(&ctx);
    // Where lives are long, one history takes as long as several do elsewhere.
    let histories = if lives.ttl < Duration::from_secs(1) { 3 } else { 1 };
    for seed in 30..30 + histories {
        let faults = if seed % 3 == 2 { 8 } else { 0 };
        run(&ctx, Plan { seed, clients: 6, each: 40, multi, faults, lives: Some(lives) }).await?;
    }
    Ok(())
}

/// Lives as short as this store grants them, and what it declares about when they end. Being late on a
/// busy machine is no part of it: the instants before and after each call are known.
fn lives(ctx: &Context) -> Lives {
    let late = match ctx.caps().expiry_clock {
        // It counts from the latest that the server's time can be.
        ExpiryClock::Database => Duration::from_millis(500),
        // Its server sweeps when it gets round to it.
        ExpiryClock::Server => Duration::from_millis(1_500),
        _ => Duration::ZERO,
    };
    Lives { ttl: ctx.ttl(), early: Duration::from_millis(3), late: ctx.slack() + late }
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    clients: usize,
    each: usize,
    multi: bool,
    /// Calls in a hundred that go wrong.
    faults: u64,
    /// Objects expire and are renewed.
    lives: Option<Lives>,
}

/// A history with too many possible orders is no verdict: a shorter one is recorded then, on other keys.
async fn run(ctx: &Context, mut plan: Plan) -> Result<(), Failure> {
    loop {
        match record_and_check(ctx, plan).await? {
            Verdict::Linearizable => return Ok(()),
            Verdict::Exhausted if plan.each > SHORTEST => {
                tracing::warn!(?plan, "a history had too many possible orders to try them all");
                plan = Plan { seed: plan.seed + 100, each: plan.each / 2, ..plan };
            }
            Verdict::Exhausted => {
                return Err(Failure::new(format!("{plan:?}: too many possible orders to try")));
            }
            Verdict::Violation { explained, stuck } => {
                return Err(Failure::new(format!(
                    "{plan:?}: no order explains the answers; {explained} of them fit, then: {}",
                    stuck.join("; ")
                )));
            }
        }
    }
}

async fn record_and_check(ctx: &Context, plan: Plan) -> Result<Verdict, Failure> {
    let handles = ctx.handles(3).await?;
    let keys: Arc<[Key]> =
        (0..KEYS).map(|n| Key::new(ctx.kind(&format!("s{}", plan.seed)), n.to_string())).collect();
    let since = ctx.uptime();
    let ticks = Arc::new(AtomicU64::new(1));
    let clients = (0..plan.clients).map(|n| {
        let store = match plan.faults {
            0 => handles[n % handles.len()].clone(),
            percent => {
                let faults = FaultPlan::seeded(plan.seed * 100 + n as u64, percent);
                faulty(&handles[n % handles.len()], &faults)
            }
        };
        let habits = Habits {
            seed: plan.seed * 1000 + n as u64,
            number: n as u64,
            multi: plan.multi,
            lends: plan.lives.map(|lives| Lends {
                ttl: lives.ttl,
                since,
                pause: pause(ctx, plan, lives),
            }),
        };
        let client = Client::new(ctx, store, &keys, &ticks, habits);
        client.run(plan.each)
    });
    let history: Vec<Operation> = all_at_once(clients).await?.into_iter().flatten().collect();
    ensure!(history.len() <= LONGEST);
    let lives = plan.lives.unwrap_or_default();
    Ok(tokio::task::spawn_blocking(move || check(&history, KEYS, &lives, BUDGET)).await?)
}

/// The longest pause of a client, so that a history lasts for several lives. Every second request is
/// preceded by one; on a clock that moves only when told, all clients move it.
fn pause(ctx: &Context, plan: Plan, lives: Lives) -> Duration {
    let pauses = u32::try_from(plan.each / 2).unwrap_or(u32::MAX).max(1);
    let clients = u32::try_from(plan.clients).unwrap_or(u32::MAX).max(1);
    let longest = lives.ttl * LIVES_LONG * 2 / pauses;
    if ctx.is_manual() { longest / clients } else { longest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use tenure::clock::ManualClock;
    use tenure::store::memory::MemoryStore;

    /// The plans are small enough for a verdict: none of them runs out of budget.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_plan_comes_to_a_verdict() {
        let store = MemoryStore::new().into_store();
        let subject = Subject::new(Arc::new(move || {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        }));
        let ctx = Context::open_new(&subject).await.unwrap();
        for seed in 0..30 {
            let faults = if seed % 2 == 0 { 12 } else { 0 };
            let (clients, each) = if faults == 0 { (6, 40) } else { (5, 16) };
            let plan = Plan { seed, clients, each, multi: seed % 3 > 0, faults, lives: None };
            let verdict = record_and_check(&ctx, plan).await.unwrap();
            assert_eq!(verdict, Verdict::Linearizable, "{plan:?}");
        }
    }

    /// The same with lives, on a clock that the clients move.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_plan_with_lives_comes_to_a_verdict() {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(Arc::new(clock.clone())).into_store();
        let opener: crate::Opener = Arc::new(move || {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        });
        let subject = Subject { open: opener, worker: None, clock: Some(clock) };
        let ctx = Context::open_new(&subject).await.unwrap();
        let lives = Some(lives(&ctx));
        for seed in 0..30 {
            let faults = if seed % 3 == 0 { 8 } else { 0 };
            let plan = Plan { seed, clients: 6, each: 40, multi: seed % 2 == 0, faults, lives };
            let verdict = record_and_check(&ctx, plan).await.unwrap();
            assert_eq!(verdict, Verdict::Linearizable, "{plan:?}");
        }
    }
}
