//! Running something many times at once and counting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    let (operation, done) = (Arc::new(operation), Arc::new(AtomicU64::new(0)));
    let begun = SystemClock.uptime();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (operation, done) = (Arc::clone(&operation), Arc::clone(&done));
            tokio::spawn(async move {
                let mut turn = 0;
                while SystemClock.uptime() - begun < time {
                    operation(writer, turn).await?;
                    turn += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let took = (SystemClock.uptime() - begun).as_secs_f64();
    Ok(done.load(Ordering::Relaxed) as f64 / took)
}

/// Single-object commits: every writer replaces an object of its own, expecting the version it left.
pub(crate) async fn commit_rate(
    store: &Store,
    writers: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    let (store, tag) = (store.clone(), tag.to_owned());
    rate(writers, time, move |writer, turn| {
        let (store, key) = (store.clone(), Key::new("bench", format!("{tag}-{writer}")));
        async move {
            let expect = if turn == 0 { Expect::Absent } else { Expect::Version(turn) };
            store.commit(Put::new(key, payload(turn)).expect(expect)).await?;
            Ok(())
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
