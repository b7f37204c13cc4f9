//! Running something many times at once and counting.

use std::sync::Arc;
use std::time::Duration;

use tenure::Key;
use tenure::clock::{Clock as _, SystemClock};
use tenure::store::{Expect, Put, Store};

/// How often and how long to measure.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) runs: usize,
    pub(crate) time: Duration,
}

/// The value in the middle.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Starts `writers` loops of `operation` and returns how many operations a second they finish.
pub(crate) async fn rate<F, R>(writers: usize, time: Duration, operation: F) -> anyhow::Result<f64>
where
    F: Fn(usize, u64) -> R + Send + Sync + 'static,
    R: Future<Output = anyhow::Result<()>> + Send,
{
    let operation = Arc::new(operation);
    total(writers, time, |writer, until| {
        let operation = Arc::clone(&operation);
        async move {
            let mut turn = 0;
            while SystemClock.uptime() < until {
                operation(writer, turn).await?;
                turn += 1;
            }
            Ok(turn)
        }
    })
    .await
}

/// Starts `writers` tasks that count what they finish until an instant; how much that is a second.
async fn total<R>(
    writers: usize,
    time: Duration,
    task: impl Fn(usize, Duration) -> R,
) -> anyhow::Result<f64>
where
    R: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let begun = SystemClock.uptime();
    let tasks: Vec<_> =
        (0..writers).map(|writer| tokio::spawn(task(writer, begun + time))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done as f64 / (SystemClock.uptime() - begun).as_secs_f64())
}

/// Single-object commits: every writer replaces an object of its own, expecting the version it left.
/// Each has a handle of its own, as tasks of a program have.
pub(crate) async fn commit_rate(
    store: &Store,
    writers: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    total(writers, time, |writer, until| {
        let (store, key) = (store.clone(), Key::new("bench", format!("{tag}-{writer}")));
        async move {
            let mut turn = 0;
            while SystemClock.uptime() < until {
                let expect = if turn == 0 { Expect::Absent } else { Expect::Version(turn) };
                store.commit(Put::new(key.clone(), payload(turn)).expect(expect)).await?;
                turn += 1;
            }
            Ok(turn)
        }
    })
    .await
}

/// 100 bytes that differ from turn to turn.
pub(crate) fn payload(turn: u64) -> Vec<u8> {
    let mut bytes = turn.to_le_bytes().to_vec();
    bytes.resize(100, b'x');
    bytes
}

/// A table's heading.
pub(crate) fn heading(title: &str, columns: &[&str]) {
    println!("\n### {title}\n\n| {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len()));
}

/// A number with thousands apart.
pub(crate) fn human(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
