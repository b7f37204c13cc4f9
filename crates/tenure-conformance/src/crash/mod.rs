//! Processes killed in the middle of their commits.
//!
//! Each round starts one or two workers that commit as fast as they can, kills them at a random
//! moment, opens the store afresh and looks at what they left: nothing acknowledged is lost, nothing
//! is half done, revisions go on rising, and the history tells exactly what happened.

pub(crate) mod both;
pub(crate) mod script;
mod verify;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::random::{Random, SeededRandom, below};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::context::{Context, PATIENCE};
use crate::process::Worker;
use crate::worker::Request;
use crate::{Failure, Subject};
use script::Spam;
use verify::Ledger;

/// Workers at most at the same time.
const WORKERS: u32 = 2;

/// Kills workers in the middle of their commits, so many times, and verifies the store after each.
///
/// # Errors
/// What was lost or half done, with the round; the same seed draws the same moments again. A subject
/// without a worker command is an error too: nothing would have been shown.
pub async fn kill_rounds(subject: &Subject, rounds: u32, seed: u64) -> Result<(), Failure> {
    let ctx = Context::open_new(subject).await?;
    let result = run(&ctx, rounds, seed).await;
    ctx.tidy().await;
    ctx.close().await;
    result
}

pub(crate) async fn run(ctx: &Context, rounds: u32, seed: u64) -> Result<(), Failure> {
    let random = SeededRandom::new(seed);
    let mut ledger = Ledger::new(ctx, &ctx.kind("crash")).await?;
    for round in 0..rounds {
        let what = format!("round {round} of seed {seed}");
        let acked = kill(ctx, &ledger, &random).await.map_err(|f| f.during(&what))?;
        ledger.verify(ctx, &acked).await.map_err(|f| f.during(&what))?;
    }
    Ok(())
}

/// One worker at work: its last acknowledged step, and the task that reads its lines.
struct Running {
    worker: u32,
    acked: Arc<AtomicU64>,
    kill: mpsc::Sender<()>,
    reader: JoinHandle<Result<(), Failure>>,
}

/// Lets workers run and kills them; tells for each the last step it had acknowledged.
async fn kill(
    ctx: &Context,
    ledger: &Ledger,
    random: &dyn Random,
) -> Result<Vec<(u32, u64)>, Failure> {
    let (first_ack, mut any_ack) = mpsc::unbounded_channel();
    let mut running = Vec::new();
    for worker in 0..1 + below(random, WORKERS.into()) as u32 {
        let spam = Spam { kind: ledger.kind.clone(), worker, from: ledger.done(worker) + 1 };
        running.push(start(ctx, spam, first_ack.clone()).await?);
    }
    drop(first_ack);
    if below(random, 8) > 0 {
        // The moments of interest are those in which commits are under way.
        timeout(PATIENCE * 2, any_ack.recv())
            .await
            .map_err(|_| Failure::new("no worker finished a single step"))?;
    }
    pause(below(random, 30_000)).await;
    let mut acked = Vec::new();
    for one in &running {
        let _ = one.kill.send(()).await;
        // Sometimes one goes on for a moment after the other was killed.
        if below(random, 2) == 0 {
            pause(below(random, 5_000)).await;
        }
    }
    for one in running {
        // To the end of its output: what it acknowledged before it died counts.
        one.reader.await??;
        acked.push((one.worker, one.acked.load(Ordering::Acquire)));
    }
    Ok(acked)
}

async fn start(
    ctx: &Context,
    spam: Spam,
    first_ack: mpsc::UnboundedSender<()>,
) -> Result<Running, Failure> {
    let mut process = Worker::start(ctx.worker()?)?;
    let (worker, acked) = (spam.worker, Arc::new(AtomicU64::new(spam.from - 1)));
    process.send(0, Request::Spam(spam)).await?;
    let (kill, mut killed) = mpsc::channel(1);
    let last = Arc::clone(&acked);
    let reader = tokio::spawn(async move {
        loop {
            let line = tokio::select! {
                line = process.line() => line?,
                _ = killed.recv() => break,
            };
            let line = line.ok_or_else(|| Failure::new("a worker ended by itself"))?;
            note(&line, &last)?;
            let _ = first_ack.send(());
        }
        process.kill().await?;
        while let Some(line) = process.line().await? {
            note(&line, &last)?;
        }
        Ok(())
    });
    Ok(Running { worker, acked, kill, reader })
}

fn note(line: &str, last: &AtomicU64) -> Result<(), Failure> {
    // A line is written whole or not at all, so anything but a number is the worker's complaint.
    let step = line.parse().map_err(|_| format!("a worker was refused at {line}"))?;
    last.store(step, Ordering::Release);
    Ok(())
}

/// A pause to the microsecond: the timer alone would only ever kill at whole milliseconds.
async fn pause(micros: u64) {
    let until = SystemClock.uptime() + Duration::from_micros(micros);
    let coarse = Duration::from_micros(micros).saturating_sub(Duration::from_millis(2));
    tokio::time::sleep(coarse).await;
    while SystemClock.uptime() < until {
        tokio::task::yield_now().await;
    }
}
