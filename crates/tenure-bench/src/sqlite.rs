//! Durable commits in one SQLite file, beside rusqlite committing one by one.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tenure::clock::{Clock as _, SystemClock};
use tenure_sqlite::SqliteStore;

use crate::measure::{Plan, commit_rate, heading, human, median, payload};

pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    heading(
        "SQLite: durable single-object commits a second",
        &["writers", "Tenure", "rusqlite, one by one", "ratio"],
    );
    let folder = tempfile::tempdir_in(".")?;
    let store = SqliteStore::open(folder.path().join("tenure.db"))?.into_store();
    for writers in [1, 64, 512] {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..plan.runs {
            let a = commit_rate(&store, writers, plan.time, &format!("{writers}-{run}")).await?;
            let path = folder.path().join(format!("raw-{writers}-{run}.db"));
            let time = plan.time;
            let b = tokio::task::spawn_blocking(move || raw(&path, writers, time)).await??;
            ours.push(a);
            theirs.push(b);
            ratios.push(a / b);
        }
        let (ours, theirs) = (human(median(ours)), human(median(theirs)));
        println!("| {writers} | {ours} | {theirs} | {:.1}× |", median(ratios));
    }
    store.close().await;
    Ok(())
}

/// The same work by hand: a thread per writer, one connection behind a lock (SQLite has one writer
/// anyway), one transaction and so one flush for each commit.
fn raw(path: &Path, writers: usize, time: Duration) -> anyhow::Result<f64> {
    let conn = Connection::open(path)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.execute_batch(
        "CREATE TABLE objects (id TEXT PRIMARY KEY, payload BLOB NOT NULL, version INTEGER NOT NULL)",
    )?;
    let conn = Arc::new(Mutex::new(conn));
    let begun = SystemClock.uptime();
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let conn = Arc::clone(&conn);
            std::thread::spawn(move || writer_loop(&conn, &format!("w{writer}"), begun + time))
        })
        .collect();
    let mut done = 0;
    for thread in threads {
        done += thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
    }
    Ok(f64::from(done) / (SystemClock.uptime() - begun).as_secs_f64())
}

fn writer_loop(conn: &Mutex<Connection>, id: &str, until: Duration) -> anyhow::Result<u32> {
    let mut done = 0;
    while SystemClock.uptime() < until {
        let conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match done {
            0 => conn
                .prepare_cached("INSERT INTO objects VALUES (?1, ?2, 1)")?
                .execute((id, payload(0)))?,
            _ => conn
                .prepare_cached(
                    "UPDATE objects SET payload = ?2, version = version + 1
                     WHERE id = ?1 AND version = ?3",
                )?
                .execute((id, payload(done.into()), done))?,
        };
        anyhow::ensure!(changed == 1, "the raw writer lost a race it cannot lose");
        done += 1;
    }
    Ok(done)
}
