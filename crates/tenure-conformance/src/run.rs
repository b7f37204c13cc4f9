//! Running behaviours: each with handles of its own, bounded in time, tidied up after.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tokio::time::timeout;

use crate::context::Context;
use crate::{Behaviour, SharedTable, Subject, behaviours};

/// A behaviour that takes longer than this has failed.
pub const BEHAVIOUR_TIMEOUT: Duration = Duration::from_secs(60);

/// How much longer lives become with each try of a behaviour that came too late.
const STRETCHES: [u32; 3] = [1, 4, 8];

/// How a behaviour went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As the contract says.
    Passed,
    /// Otherwise; this is how.
    Failed(String),
    /// The store does not claim it; this is why.
    NotApplicable(String),
}

/// One behaviour's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The behaviour's name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// How often it was tried: more than once where the machine was too slow for short lives.
    pub tries: u32,
    /// How long it took.
    pub took: Duration,
}

/// How the whole suite went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Behaviours that are as the contract says.
    pub passed: usize,
    /// Behaviours that are not.
    pub failed: usize,
    /// Behaviours that the store does not claim.
    pub not_applicable: usize,
}

/// Runs one behaviour. Panics and hangs are failures; what it created is deleted in any case.
pub async fn run_one(subject: &Subject, behaviour: &Behaviour) -> Report {
    run(subject, None, behaviour).await
}

/// The same for one of [`crate::sql_behaviours`], with a table of the user's beside the store.
pub async fn run_one_with_sql(
    subject: &Subject,
    table: &SharedTable,
    behaviour: &Behaviour,
) -> Report {
    run(subject, Some(table.clone()), behaviour).await
}

async fn run(subject: &Subject, table: Option<SharedTable>, behaviour: &Behaviour) -> Report {
    let begun = SystemClock.uptime();
    let (outcome, tries) = in_time(subject, table.as_ref(), behaviour).await;
    let took = SystemClock.uptime().saturating_sub(begun);
    Report { name: behaviour.name, about: behaviour.about, outcome, tries, took }
}

/// A lease of a second is rightly lost on a machine that stands still for one, so what came too late
/// is tried again with longer lives. A store that keeps none of its promises keeps those neither.
async fn in_time(
    subject: &Subject,
    table: Option<&SharedTable>,
    behaviour: &Behaviour,
) -> (Outcome, u32) {
    let mut tries = 0;
    loop {
        let stretch = STRETCHES[tries];
        tries += 1;
        let (outcome, is_late) = attempt(subject, table.cloned(), behaviour, stretch).await;
        if !is_late || tries == STRETCHES.len() {
            return (outcome, u32::try_from(tries).unwrap_or(u32::MAX));
        }
        tracing::info!(behaviour = behaviour.name, ?outcome, "again, with longer lives");
    }
}

/// Runs every behaviour, one after the other, and tells of each as it ends.
pub async fn run_all(subject: &Subject, mut on_report: impl FnMut(&Report)) -> Summary {
    let mut summary = Summary::default();
    for behaviour in behaviours() {
        let report = run_one(subject, &behaviour).await;
        match report.outcome {
            Outcome::Passed => summary.passed += 1,
            Outcome::Failed(_) => summary.failed += 1,
            Outcome::NotApplicable(_) => summary.not_applicable += 1,
        }
        on_report(&report);
    }
    summary
}

/// How it went with lives so much longer, and whether more of that may help.
async fn attempt(
    subject: &Subject,
    table: Option<SharedTable>,
    behaviour: &Behaviour,
    stretch: u32,
) -> (Outcome, bool) {
    let ctx = match Context::open_with(subject, table, stretch).await {
        Ok(ctx) => ctx,
        Err(failure) => {
            return (Outcome::Failed(format!("the store does not open: {failure}")), false);
        }
    };
    if let Err(why) = (behaviour.needs)(ctx.undisguised().capabilities(), subject) {
        ctx.close().await;
        return (Outcome::NotApplicable(why.to_owned()), false);
    }
    let mut is_late = false;
    // A task of its own, so that a panic is its result and not ours.
    let mut task = tokio::spawn((behaviour.run)(ctx.clone()));
    let outcome = match timeout(BEHAVIOUR_TIMEOUT, &mut task).await {
        Ok(Ok(Ok(()))) => Outcome::Passed,
        Ok(Ok(Err(failure))) => {
            is_late = behaviour.is_timed && failure.is_late();
            Outcome::Failed(failure.to_string())
        }
        Ok(Err(error)) => Outcome::Failed(panic_text(error)),
        Err(_) => {
            task.abort();
            Outcome::Failed(format!("no end after {BEHAVIOUR_TIMEOUT:?}"))
        }
    };
    ctx.tidy().await;
    ctx.close().await;
    (outcome, is_late)
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".into() };
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a message"))
}
