//! Commits in memory.

use tenure::store::memory::MemoryStore;

use crate::measure::{Plan, commit_rate, heading, human, median};

pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    heading("Memory: single-object commits a second", &["writers", "Tenure"]);
    for writers in [1, 64, 512] {
        let mut figures = Vec::new();
        for run in 0..plan.runs {
            let store = MemoryStore::new().into_store();
            figures.push(commit_rate(&store, writers, plan.time, &run.to_string()).await?);
        }
        println!("| {writers} | {} |", human(median(figures)));
    }
    Ok(())
}
