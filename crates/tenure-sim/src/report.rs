//! A failed run, for people: what was violated, what led there, how to see it again.

use crate::run::Outcome;
use crate::world::Settings;

/// Lines of history before the violation that are worth reading first.
const LAST: usize = 120;

/// The report of a failed run; the whole history if asked.
pub fn failure(outcome: &Outcome, settings: Settings, whole: bool) -> String {
    let mut text = String::new();
    let skipped = if whole { 0 } else { outcome.history.len().saturating_sub(LAST) };
    if skipped > 0 {
        text += &format!("… {skipped} events before\n");
    }
    for line in &outcome.history[skipped..] {
        text += line;
        text.push('\n');
    }
    if let Some(violation) = &outcome.violation {
        text += &format!("\nseed {}: {violation}\n", outcome.seed);
    }
    text + &format!("repeat it with: {}\n", command(outcome.seed, settings))
}

/// The command that repeats a run.
pub fn command(seed: u64, settings: Settings) -> String {
    let flaw = settings.flaw.map_or(String::new(), |flaw| format!(" --flaw {flaw:?}"));
    let single = if settings.single { " --single" } else { "" };
    format!("cargo run --release -p tenure-sim -- --seed {seed}{flaw}{single} --verbose")
}
