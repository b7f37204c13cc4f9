//! How long a role is without a holder: after a release, and after a crash.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure::clock::{Clock as _, SystemClock};
use tenure::lease::{Coordinator, Scope, Terms};
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_file::FileStore;
use tenure_postgres::PostgresStore;
use tenure_sqlite::SqliteStore;
use tenure_testkit::Postgres;

use crate::measure::{Plan, heading};

const ROUNDS: usize = 200;
const CRASHES: usize = 10;
const TTL: Duration = Duration::from_secs(1);

pub(crate) async fn run(plan: Plan, folder: &TempDir, server: &Postgres) -> anyhow::Result<()> {
    heading(
        "Hand-over: milliseconds until the waiter holds it (two handles on one store)",
        &[
            "store",
            "after a release, median",
            "p99",
            "after a crash, beyond the TTL of 1 s, worst of 10",
        ],
    );
    let memory = MemoryStore::new();
    let sqlite = folder.path().join("handover.db");
    let file = folder.path().join("handover");
    let url = server.fresh_database()?;
    let stores = [
        ("memory", memory.clone().into_store(), memory.into_store()),
        ("file", FileStore::open(&file)?.into_store(), FileStore::open(&file)?.into_store()),
        (
            "SQLite",
            SqliteStore::open(&sqlite)?.into_store(),
            SqliteStore::open(&sqlite)?.into_store(),
        ),
        (
            "Postgres",
            PostgresStore::connect(&url).await?.into_store(),
            PostgresStore::connect(&url).await?.into_store(),
        ),
    ];
    for (name, a, b) in stores {
        let mut graceful = releases(&a, &b, ROUNDS * plan.runs.min(5) / 5).await?;
        graceful.sort();
        let at = |part: usize| graceful.get(graceful.len() * part / 100).copied();
        let crash = crashes(&a, &b).await?;
        println!(
            "| {name} | {:.1} | {:.1} | {:.0} |",
            millis(at(50).unwrap_or_default()),
            millis(at(99).unwrap_or_default()),
            millis(crash),
        );
    }
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// From the call that releases until the other one's wait is over.
async fn releases(a: &Store, b: &Store, rounds: usize) -> anyhow::Result<Vec<Duration>> {
    let here = Coordinator::builder(a.clone()).name("here").start()?;
    let there = Coordinator::builder(b.clone()).name("there").start()?;
    let scope: Scope = "bench.handover/role".parse()?;
    let terms = Terms::new().ttl(Duration::from_secs(30)).wait_forever();
    let mut took = Vec::new();
    let mut holder = (here.clone(), here.acquire(&scope, &terms).await?);
    for round in 0..rounds {
        let next = if round % 2 == 0 { &there } else { &here };
        let waiting = {
            let (next, scope, terms) = (next.clone(), scope.clone(), terms.clone());
            tokio::spawn(async move { next.acquire(&scope, &terms).await })
        };
        while holder.0.status(&scope).await?.waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begun = SystemClock.uptime();
        holder.1.release().await?;
        let lease = waiting.await??;
        took.push(SystemClock.uptime() - begun);
        holder = (next.clone(), lease);
    }
    holder.1.release().await?;
    Ok(took)
}

/// How much longer than its life a role is held by one that died right after a renewal.
async fn crashes(a: &Store, b: &Store) -> anyhow::Result<Duration> {
    let there = Coordinator::builder(b.clone()).name("there").start()?;
    let mut worst = Duration::ZERO;
    for round in 0..CRASHES {
        let plan = FaultPlan::scripted();
        let faulty = Faulty::new(Arc::clone(a.backend()), Arc::clone(&plan), SystemClock::shared());
        let dying = Coordinator::builder(Store::new(faulty)).name("dying").start()?;
        let scope: Scope = format!("bench.handover/crash-{round}").parse()?;
        let terms = Terms::new().ttl(TTL);
        let lease = dying.acquire(&scope, &terms).await?;
        let waiting = {
            let (there, scope, terms) = (there.clone(), scope.clone(), terms.clone());
            tokio::spawn(async move { there.acquire(&scope, &terms.wait_forever()).await })
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        lease.renew().await?;
        let died = SystemClock.uptime();
        plan.next(Operation::Touch, Fault::CrashBefore);
        let next = waiting.await??;
        worst = worst.max((SystemClock.uptime() - died).saturating_sub(TTL));
        next.release().await?;
    }
    Ok(worst)
}
