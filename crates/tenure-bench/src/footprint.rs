//! Memory of idle leases and of waiters, by what the process occupies before and after.

use std::time::Duration;

use tenure::lease::{Coordinator, Terms};
use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure_sqlite::SqliteStore;

use crate::leases::session;
use crate::measure::{heading, human};

/// This process.
const SELF: &str = "/proc/self/status";

/// What can be measured. What one has freed would blur what the next one takes, hence the processes.
const ALL: [&str; 2] = ["sqlite", "memory"];

pub(crate) async fn run(count: usize, store: Option<&str>, together: bool) -> anyhow::Result<()> {
    match store {
        // On SQLite the objects are on disk, so what grows is the coordinator alone.
        Some("sqlite") => {
            let folder = tempfile::tempdir_in(".")?;
            let sqlite = SqliteStore::open(folder.path().join("tenure.db"))?.into_store();
            measure("SQLite", &sqlite, count, together).await
        }
        Some("memory") => {
            let memory = MemoryStore::new().into_store();
            measure("memory (objects and history included)", &memory, count, together).await
        }
        Some(other) => anyhow::bail!("no store is called {other}; there are {}", ALL.join(", ")),
        None => all(count),
    }
}

fn all(count: usize) -> anyhow::Result<()> {
    heading(
        &format!("Memory: bytes per lease and per waiter, at {} of each", human(count as f64)),
        &["store", "waiters", "per idle lease", "per waiter"],
    );
    for (store, together) in ALL.into_iter().flat_map(|store| [(store, false), (store, true)]) {
        let mut one = std::process::Command::new(std::env::current_exe()?);
        one.args(["footprint", "--count", &count.to_string(), "--store", store]);
        one.args(together.then_some("--together"));
        anyhow::ensure!(one.status()?.success(), "measuring {store} failed");
    }
    Ok(())
}

async fn measure(name: &str, store: &Store, count: usize, together: bool) -> anyhow::Result<()> {
    let holder = Coordinator::builder(store.clone()).name("holder").start()?;
    let before = resident(SELF)?;
    let leases = session(&holder, count, "footprint").await?;
    let per_lease = (resident(SELF)? - before) / count as f64;

    let waiter = Coordinator::builder(store.clone()).name("waiter").start()?;
    let scope = |n: usize| format!("bench.footprint/{}", if together { 0 } else { n });
    let per_waiter = waiters(&waiter, count, scope).await?;
    let way = if together { "all on one scope" } else { "each on a scope of its own" };
    println!("| {name} | {way} | {per_lease:.0} | {per_waiter:.0} |");
    drop(leases);
    Ok(())
}

/// Bytes per waiter. They are aborted afterwards.
async fn waiters(
    coordinator: &Coordinator,
    count: usize,
    scope: impl Fn(usize) -> String,
) -> anyhow::Result<f64> {
    let before = resident(SELF)?;
    let terms = Terms::new().wait_forever();
    let mut tasks = Vec::new();
    for n in 0..count {
        let (coordinator, terms, scope) = (coordinator.clone(), terms.clone(), scope(n).parse()?);
        tasks.push(tokio::spawn(async move { coordinator.acquire(&scope, &terms).await }));
    }
    while coordinator.metrics().waiting.get() < i64::try_from(count)? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let each = (resident(SELF)? - before) / count as f64;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(each)
}

/// Bytes of a process that are in memory, by its status file.
pub(crate) fn resident(of: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(of)?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("0");
    Ok(kilobytes.parse::<f64>()? * 1024.0)
}
