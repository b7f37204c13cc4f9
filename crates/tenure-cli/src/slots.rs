//! `tenure slots`: groups of which at most so many may hold a slot.

use std::process::ExitCode;

use serde_json::json;
use tenure::lease::{Coordinator, LEASE, Namespace, SLOTS, SlotInfo, WAITER};
use tenure::store::WatchRequest;

use crate::follow::{Follow, follow};
use crate::hand_over::HandingOver;
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
        follow: Follow,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Have a slot handed over to somebody who waits for it.
    ///
    /// The holder is asked to stop its work, and passes it on when that has stopped: there is no moment
    /// without a holder, and none with two. `tenure run` does that, as if it had been sent TERM; so do
    /// programs that listen for it. It takes leave to revoke. Interrupted, this does not take the request
    /// back before its wait is over.
    HandOver {
        /// The group.
        group: Namespace,
        /// Which slot, as `tenure slots ls` shows it.
        slot: u32,
        #[command(flatten)]
        how: HandingOver,
    },
    /// Change how many slots a group has.
    ///
    /// More can be taken at once. Fewer evicts nobody: nothing is refilled until enough have gone.
    Resize {
        /// The group.
        group: Namespace,
        /// How many.
        count: u32,
        /// Only if the group has not changed since `slots ls --json` told this version.
        #[arg(long = "expect-version", value_name = "VERSION")]
        version: Option<u64>,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Ls { group, json, follow, store } => ls(&group, json, &follow, &store).await,
            Self::HandOver { group, slot, how } => how.slot(&group, slot).await,
            Self::Resize { group, count, version, json, store } => {
                resize(&group, count, version, json, &store).await
            }
        }
    }
}

async fn resize(
    group: &Namespace,
    count: u32,
    version: Option<u64>,
    json: bool,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.coordinator().await?;
    let slots = coordinator.slots(group);
    match version {
        Some(version) => slots.resize_from(version, count).await?,
        None => slots.resize(count).await?,
    }
    coordinator.store().close().await;
    match json {
        true => println!("{}", json!({ "group": group.as_str(), "count": count })),
        false => println!("{group} has {count} slots"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn ls(
    group: &Namespace,
    json: bool,
    following: &Follow,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.coordinator().await?;
    let kinds = [LEASE, WAITER, SLOTS];
    let requests = kinds.map(|kind| WatchRequest::kind(kind).prefix(group.as_str()));
    let text = || text(&coordinator, group, json);
    follow(following, coordinator.store(), &requests, text).await?;
    coordinator.store().close().await;
    Ok(ExitCode::SUCCESS)
}

/// A group as it is now.
async fn text(coordinator: &Coordinator, group: &Namespace, json: bool) -> anyhow::Result<String> {
    let slots = coordinator.slots(group);
    let (size, holders) = (slots.size().await?, slots.holders().await?);
    let waiters = slots.waiters().await?;
    let count = size.map(|size| size.count);
    if json {
        let slot = |slot: &SlotInfo| {
            let mut value = lease_json(&slot.lease);
            value["slot"] = slot.index.into();
            value
        };
        let value = json!({
            "group": group.as_str(),
            "count": count,
            "version": size.map(|size| size.version),
            "holders": holders.iter().map(slot).collect::<Vec<_>>(),
            "waiters": waiters.iter().map(waiter_json).collect::<Vec<_>>(),
        });
        return Ok(serde_json::to_string_pretty(&value)? + "\n");
    }
    let row = |slot: &SlotInfo| {
        vec![
            slot.index.to_string(),
            slot.lease.holder.to_string(),
            slot.lease.token.to_string(),
            table::time(slot.lease.acquired_at_ms),
            slot.lease.expires_in.map_or_else(|| "-".into(), table::duration),
        ]
    };
    let rows: Vec<_> = holders.iter().map(row).collect();
    let table = table::render(&["SLOT", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN"], &rows);
    let count = count.map_or_else(|| "an unset number of".into(), |count| count.to_string());
    Ok(format!("{table}\n{} of {count} slots held, {} waiting\n", rows.len(), waiters.len()))
}
