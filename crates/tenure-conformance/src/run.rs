//! Running behaviours: each with handles of its own, bounded in time, tidied up after.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tokio::time::timeout;

use crate::context::Context;
use crate::{Behaviour, SharedTable, Subject, behaviours};

/// A behaviour that takes longer than this has failed.
pub const BEHAVIOUR_TIMEOUT: Duration = Duration::from_secs(60);

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
    let outcome = attempt(subject, table, behaviour).await;
    let took = SystemClock.uptime().saturating_sub(begun);
    Report { name: behaviour.name, about: behaviour.about, outcome, took }
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

async fn attempt(subject: &Subject, table: Option<SharedTable>, behaviour: &Behaviour) -> Outcome {
    let ctx = match Context::open_with(subject, table).await {
        Ok(ctx) => ctx,
        Err(failure) => return Outcome::Failed(format!("the store does not open: {failure}")),
    };
    if let Err(why) = (behaviour.needs)(ctx.undisguised().capabilities(), subject) {
        ctx.close().await;
        return Outcome::NotApplicable(why.to_owned());
    }
    // A task of its own, so that a panic is its result and not ours.
    let mut task = tokio::spawn((behaviour.run)(ctx.clone()));
    let outcome = match timeout(BEHAVIOUR_TIMEOUT, &mut task).await {
        Ok(Ok(Ok(()))) => Outcome::Passed,
        Ok(Ok(Err(failure))) => Outcome::Failed(failure.to_string()),
        Ok(Err(error)) => Outcome::Failed(panic_text(error)),
        Err(_) => {
            task.abort();
            Outcome::Failed(format!("no end after {BEHAVIOUR_TIMEOUT:?}"))
        }
    };
    ctx.tidy().await;
    ctx.close().await;
    outcome
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".into() };
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a message"))
}
