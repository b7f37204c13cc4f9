//! `tenure slots`: groups of which at most so many may hold a slot.

use std::process::ExitCode;

use serde_json::json;
use tenure::lease::Namespace;

use crate::lease::{lease_json, waiter_json};
use crate::stores::StoreArgument;
use crate::table;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show how many slots a group has, who holds them and who waits.
    Ls {
        /// The group, for instance `search.indexer`.
        group: Namespace,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Change how many slots a group has.
    ///
    /// More can be taken at once. Fewer evicts nobody: nothing is refilled until enough have gone.
    Resize {
        /// The group.
        group: Namespace,
        /// How many.
        count: u32,
        #[command(flatten)]
        store: StoreArgument,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Ls { group, json, store } => ls(&group, json, &store).await,
            Self::Resize { group, count, store } => {
                let coordinator = store.coordinator().await?;
                coordinator.slots(&group).resize(count).await?;
                coordinator.store().close().await;
                println!("{group} has {count} slots");
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn ls(group: &Namespace, json: bool, store: &StoreArgument) -> anyhow::Result<ExitCode> {
    let coordinator = store.coordinator().await?;
    let slots = coordinator.slots(group);
    let (count, holders) = (slots.count().await?, slots.holders().await?);
    let waiters = slots.waiters().await?;
    coordinator.store().close().await;
    if json {
        let slot = |slot: &tenure::lease::SlotInfo| {
            let mut value = lease_json(&slot.lease);
            value["slot"] = slot.index.into();
            value
        };
        let value = json!({
            "group": group.as_str(),
            "count": count,
            "holders": holders.iter().map(slot).collect::<Vec<_>>(),
            "waiters": waiters.iter().map(waiter_json).collect::<Vec<_>>(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = holders
        .iter()
        .map(|slot| {
            vec![
                slot.index.to_string(),
                slot.lease.holder.to_string(),
                slot.lease.token.to_string(),
                table::time(slot.lease.acquired_at_ms),
                slot.lease.expires_in.map_or_else(|| "-".into(), table::duration),
            ]
        })
        .collect();
    table::print(&["SLOT", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN"], &rows)?;
    let count = count.map_or_else(|| "an unset number of".into(), |count| count.to_string());
    println!("\n{} of {count} slots held, {} waiting", holders.len(), waiters.len());
    Ok(ExitCode::SUCCESS)
}
