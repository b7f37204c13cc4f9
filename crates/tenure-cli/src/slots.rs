//! `tenure slots`: groups of which at most so many may hold a slot.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::json;
use tenure::lease::{Coordinator, LEASE, LeaseInfo, Namespace, SLOTS, SlotInfo, WAITER};
use tenure::store::{Query, WatchRequest};

use crate::follow::{Follow, follow};
use crate::hand_over::HandingOver;
use crate::lease::{lease_json, waiter_json};
use crate::output::print;
use crate::stores::StoreArgument;
use crate::table;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show the slots of a group, who holds them and who waits; or all groups.
    Ls {
        /// The group, for instance `search.indexer`; all that have a size or a holder without it.
        group: Option<Namespace>,
        /// JSON for programs; of all groups one object per line, with --watch one array per line.
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
            Self::Ls { group, json, follow, store } => {
                ls(group.as_ref(), json, &follow, &store).await
            }
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
        true => print(json!({ "group": group.as_str(), "count": count }))?,
        false => print(format_args!("{group} has {count} slots"))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn ls(
    group: Option<&Namespace>,
    json: bool,
    following: &Follow,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.reader().await?;
    let kinds = [LEASE, WAITER, SLOTS];
    let prefix = group.map_or("", Namespace::as_str);
    let requests = kinds.map(|kind| WatchRequest::kind(kind).prefix(prefix));
    let text = async |_| match group {
        Some(group) => text(&coordinator, group, json, following).await,
        None => groups_text(&coordinator, json, following).await,
    };
    follow(following, json, coordinator.store(), &requests, text).await?;
    coordinator.store().close().await;
    Ok(ExitCode::SUCCESS)
}

/// Every group that has a size or a holder, as it is now.
async fn groups_text(
    coordinator: &Coordinator,
    json: bool,
    following: &Follow,
) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    for group in groups(coordinator).await? {
        let slots = coordinator.slots(&group);
        let count = slots.size().await?.map(|size| size.count);
        rows.push((group, count, slots.holders().await?.len(), slots.waiters().await?.len()));
    }
    if json {
        let object = |(group, count, held, waiting): &(Namespace, Option<u32>, usize, usize)| json!({ "group": group.as_str(), "count": count, "held": held, "waiting": waiting });
        return Ok(following.list(rows.iter().map(object)));
    }
    let row = |(group, count, held, waiting): &(Namespace, Option<u32>, usize, usize)| {
        let count = count.map_or_else(|| "-".into(), |count| count.to_string());
        vec![group.to_string(), count, held.to_string(), waiting.to_string()]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    Ok(table::render(&["GROUP", "SLOTS", "HELD", "WAITING"], &rows))
}

/// The groups: those whose size is kept, and, where a store keeps none, those of whose slots one is held.
async fn groups(coordinator: &Coordinator) -> anyhow::Result<BTreeSet<Namespace>> {
    let sizes = coordinator.store().list_all(&Query::new(SLOTS)).await?;
    let held = coordinator.list_all().await?;
    let of_slot = |info: &LeaseInfo| {
        let (group, slot) = info.id.rsplit_once('/')?;
        slot.strip_prefix("slot-")?.parse::<u32>().ok()?;
        group.parse().ok()
    };
    let sized = sizes.iter().filter_map(|object| object.key.id.parse().ok());
    Ok(sized.chain(held.iter().filter_map(of_slot)).collect())
}

/// A group as it is now.
async fn text(
    coordinator: &Coordinator,
    group: &Namespace,
    json: bool,
    following: &Follow,
) -> anyhow::Result<String> {
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
        return following.document(&value);
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
