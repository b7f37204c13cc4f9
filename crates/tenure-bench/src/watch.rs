//! Fan-out: a thousand watchers of one kind, fed by commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure::Key;
use tenure::clock::{Clock as _, SystemClock};
use tenure::store::memory::MemoryStore;
use tenure::store::{Put, Store, WatchRequest};
use tenure_sqlite::SqliteStore;

use crate::measure::{Plan, heading, human, median, payload};

const WATCHERS: usize = 1_000;

pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    heading(
        "Watch: events delivered a second to 1,000 watchers of one kind",
        &["store", "commits a second meanwhile", "deliveries a second"],
    );
    let folder = tempfile::tempdir_in(".")?;
    let memory = MemoryStore::new().into_store();
    let sqlite = SqliteStore::open(folder.path().join("watch.db"))?.into_store();
    for (name, store, events) in [("memory", memory, 2_000), ("SQLite", sqlite, 1_000)] {
        let (mut commits, mut deliveries) = (Vec::new(), Vec::new());
        for _ in 0..plan.runs {
            let seconds = fan_out(&store, events).await?;
            commits.push(events as f64 / seconds);
            deliveries.push((events * WATCHERS) as f64 / seconds);
        }
        println!("| {name} | {} | {} |", human(median(commits)), human(median(deliveries)));
    }
    Ok(())
}

/// Seconds until every watcher has seen every event.
async fn fan_out(store: &Store, events: usize) -> anyhow::Result<f64> {
    let seen = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..WATCHERS {
        let mut watch = store.watch(&WatchRequest::kind("fan")).await?;
        let seen = Arc::clone(&seen);
        tasks.push(tokio::spawn(async move {
            let mut mine = 0;
            while mine < events {
                let batch = watch.next().await.transpose()?;
                let Some(batch) = batch else { anyhow::bail!("the watch ended") };
                mine += batch.events.len();
                seen.fetch_add(batch.events.len() as u64, Ordering::Relaxed);
            }
            Ok(())
        }));
    }
    let begun = SystemClock.uptime();
    let writers = (0..64).map(|writer| {
        let store = store.clone();
        async move {
            for turn in (writer..events).step_by(64) {
                let put = Put::new(Key::new("fan", turn.to_string()), payload(turn as u64));
                store.commit(put.new_token()).await?;
            }
            anyhow::Ok(())
        }
    });
    futures::future::try_join_all(writers).await?;
    for task in tasks {
        task.await??;
    }
    anyhow::ensure!(seen.load(Ordering::Relaxed) == (events * WATCHERS) as u64, "events differ");
    Ok((SystemClock.uptime() - begun).as_secs_f64())
}
