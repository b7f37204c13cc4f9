//! Reservation of a runner: held while the runner gets ready, however long that takes, then released.
//!
//! Two controllers want the same runner. The first reserves it and waits for the module to start,
//! which takes longer than the lease lives: heartbeats keep it. The second waits in line and costs
//! the store nothing. It gets the runner with the release, and not a moment before.
//!
//! Run it with `cargo run -p tenure-sqlite --example runner_reservation`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Scope, Terms};
use tenure::store::{Commit, Put};
use tenure::{Error, Key};
use tenure_sqlite::SqliteStore;

/// A controller that dies blocks the runner for no longer than this.
const LIFE: Duration = Duration::from_millis(1500);
/// How long the module takes to start.
const START: Duration = Duration::from_millis(3500);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("reservations.db");
    let (first, second) = (controller(&path, "controller-a")?, controller(&path, "controller-b")?);
    let scope: Scope = "runner.reserve/runner-1".parse()?;
    let terms = Terms::new().ttl(LIFE).metadata("module", "time");

    let reservation = first.acquire(&scope, &terms).await?;
    println!("controller-a has reserved runner-1 (token {}).", reservation.token());
    match second.acquire(&scope, &terms).await {
        Err(Error::Held { holder, .. }) => {
            println!("controller-b is told at once that {} has it.", holder.unwrap_or_default());
        }
        other => return Err(format!("controller-b was told {other:?}").into()),
    }

    // The second one gets in line.
    let released = Arc::new(AtomicBool::new(false));
    let (line, seen) = (second.clone(), Arc::clone(&released));
    let (place, patient) = (scope.clone(), terms.clone().wait(Duration::from_secs(60)));
    let waiting = tokio::spawn(async move {
        let lease = line.acquire(&place, &patient).await;
        (lease, seen.load(Ordering::Acquire))
    });
    while first.status(&scope).await?.waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("controller-b waits in line.");

    // The lease is renewed by itself; `run` drops the work if it should be lost all the same.
    let began = SystemClock.uptime();
    println!("The module takes {START:?} to start; the lease lives for {LIFE:?} …");
    reservation.run(start_module()).await.map_err(|loss| format!("interrupted: {loss}"))?;
    let took = SystemClock.uptime() - began;
    assert!(took > LIFE * 2, "the work outlived the lease's life");
    assert!(reservation.is_valid(), "heartbeats kept it");
    let beats = first.metrics().renewed.get();
    println!("… and {beats} heartbeats kept it for {:.1} s.", took.as_secs_f64());

    // Whatever the reservation was for goes into the store fenced: it cannot land late.
    let assigned = Put::new(Key::new("runner", "runner-1"), r#"{"module":"time"}"#);
    first.store().commit(Commit::from(assigned).fenced_by(&reservation)).await?;
    let token = reservation.token();
    released.store(true, Ordering::Release);
    reservation.release().await?;
    println!("controller-a is done and releases.");

    let (lease, after_release) = waiting.await?;
    let lease = lease?;
    println!("controller-b has runner-1 now (token {}).", lease.token());
    assert!(after_release, "not before the release");
    assert!(lease.token() > token, "a later holder has a greater token");
    lease.release().await?;
    assert!(first.holder(&scope).await?.is_none());
    println!("Both are done, and runner-1 is free.");
    Ok(())
}

fn controller(path: &std::path::Path, name: &str) -> Outcome<Coordinator> {
    let store = SqliteStore::open(path)?.into_store();
    Ok(Coordinator::builder(store).name(name).start()?)
}

/// Stands for the call to the runner.
async fn start_module() {
    tokio::time::sleep(START).await;
}
