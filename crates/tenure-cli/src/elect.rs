//! `tenure elect`: who leads, now and with every change. To lead is to hold: `tenure run` does that.

use std::io::Write as _;
use std::process::ExitCode;

use futures::StreamExt as _;
use tenure::lease::{Election, LeaseInfo, Scope};

use crate::exit::Told;
use crate::hand_over::HandingOver;
use crate::lease::lease_json;
use crate::stores::StoreArgument;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show who leads, and what it tells about itself. Exit code 3 if nobody does.
    Leader {
        /// The scope of the election, for instance `orders.reconciler/leader`.
        scope: Scope,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Have the lead handed over to somebody who waits for it.
    ///
    /// The leader is asked to stop its work, and passes the lead on when that has stopped: there is no
    /// moment without a leader, and none with two. `tenure run` does that, as if it had been sent TERM; so do
    /// programs that listen for it. It takes leave to revoke. Interrupted, this does not take the request
    /// back before its wait is over.
    HandOver {
        /// The scope of the election.
        scope: Scope,
        #[command(flatten)]
        how: HandingOver,
    },
    /// Follow who leads: now, and with every change.
    Observe {
        /// The scope of the election.
        scope: Scope,
        /// End after so many changes.
        #[arg(long)]
        limit: Option<usize>,
        /// One JSON object per line; `null` while nobody leads.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Leader { scope, json, store } => {
                let coordinator = store.reader().await?;
                let leader = Election::new(&coordinator, scope.clone()).leader().await?;
                coordinator.store().close().await;
                let Some(leader) = leader else {
                    return Err(Told::not_found(format!("nobody leads {scope}")).into());
                };
                tell(Some(&leader), json)?;
            }
            Self::HandOver { scope, how } => return how.scope(&scope).await,
            Self::Observe { scope, limit, json, store } => {
                let coordinator = store.reader().await?;
                let leaders = Election::new(&coordinator, scope).observe().await?;
                let mut leaders = leaders.take(limit.unwrap_or(usize::MAX));
                while let Some(leader) = leaders.next().await {
                    tell(leader?.as_ref(), json)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn tell(leader: Option<&LeaseInfo>, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match (leader, json) {
        (leader, true) => {
            writeln!(out, "{}", leader.map_or(serde_json::Value::Null, lease_json))?;
        }
        (None, false) => writeln!(out, "nobody")?,
        (Some(leader), false) => {
            let told = leader.metadata.iter().map(|(key, value)| format!("   {key} {value}"));
            let told: String = told.collect();
            writeln!(out, "{}   token {}{told}", leader.holder, leader.token)?;
        }
    }
    out.flush()
}
