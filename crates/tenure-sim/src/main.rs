//! Runs seeds and tells what they found.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use tenure::flaws::Flaw;
use tenure_sim::{Outcome, Settings, report};

/// Simulates leases in a world where everything goes wrong, and checks what was guaranteed.
#[derive(Parser)]
struct Arguments {
    /// Seeds to run, as `first..end`.
    #[arg(long, default_value = "0..500", value_parser = seeds)]
    seeds: Range<u64>,
    /// One seed to run.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// A mistake to make on purpose, for instance CountsFromReply.
    #[arg(long, value_parser = flaw)]
    flaw: Option<Flaw>,
    /// On a store that takes one object a commit, whatever the seed says.
    #[arg(long)]
    single: bool,
    /// Keep going after this many seeds have failed.
    #[arg(long, default_value_t = 1)]
    failures: u64,
    /// Print the whole history.
    #[arg(long)]
    verbose: bool,
    /// How many seeds to run at once.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is no range; write it like 0..500");
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    Ok(first.parse().map_err(|_| wrong())?..end.parse().map_err(|_| wrong())?)
}

fn flaw(text: &str) -> Result<Flaw, String> {
    let all = tenure_sim::flaws::ALL;
    all.iter().map(|(flaw, _)| *flaw).find(|flaw| format!("{flaw:?}") == text).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|(flaw, _)| format!("{flaw:?}")).collect();
        format!("there is no flaw {text:?}; there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings =
        Settings { flaw: arguments.flaw, single: arguments.single, ..Settings::default() };
    let seeds = arguments.seed.map_or(arguments.seeds.clone(), |seed| seed..seed + 1);
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let (calls, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    let output = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                while failed.load(Ordering::Relaxed) < arguments.failures {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = tenure_sim::check(seed, settings);
                    calls.fetch_add(outcome.calls, Ordering::Relaxed);
                    granted.fetch_add(outcome.granted, Ordering::Relaxed);
                    let bad = outcome.violation.is_some();
                    failed.fetch_add(u64::from(bad), Ordering::Relaxed);
                    if bad || arguments.verbose {
                        let _alone = output.lock();
                        show(&outcome, settings, arguments.verbose);
                    }
                }
            });
        }
    });
    let (failed, run) = (failed.into_inner(), next.into_inner().min(seeds.end) - seeds.start);
    println!(
        "{run} seeds, {} calls, {} leases held, {failed} failed",
        calls.into_inner(),
        granted.into_inner()
    );
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(outcome: &Outcome, settings: Settings, whole: bool) {
    println!("{}", report::failure(outcome, settings, whole));
}
