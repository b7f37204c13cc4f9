//! `hand-over` of `tenure lease`, `tenure elect` and `tenure slots`: the holder is asked to stop its work
//! and to pass on what it holds.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tenure::lease::{LEASE, LeaseInfo, Namespace, Scope};
use tenure::{Error, Result};

use crate::duration::parse_duration;
use crate::exit::Told;
use crate::lease::lease_json;
use crate::output::print;
use crate::progress;
use crate::stores::StoreArgument;

/// To whom, and how long to wait for it.
#[derive(clap::Args)]
pub(crate) struct HandingOver {
    /// Who is to have it: one that waits for it, by name or as `name#start`; without it the first in line.
    #[arg(long, value_name = "HOLDER")]
    to: Option<String>,
    /// Only from the tenure under this token: whoever came after it is left alone.
    #[arg(long = "expect-token", value_name = "TOKEN")]
    token: Option<u64>,
    /// How long to wait until it is done. A holder that has not begun to stop by then never will.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    wait: Duration,
    /// JSON for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgument,
}

impl HandingOver {
    /// Of a scope.
    pub(crate) async fn scope(self, scope: &Scope) -> anyhow::Result<ExitCode> {
        let coordinator = self.store.coordinator().await?;
        let to = self.to.as_deref();
        let asking = coordinator.ask_to_hand_over(scope, self.token, to, self.wait);
        let now = self.shown(asking).await;
        coordinator.store().close().await;
        self.tell(&now?)
    }

    /// Of a slot.
    pub(crate) async fn slot(self, group: &Namespace, index: u32) -> anyhow::Result<ExitCode> {
        let coordinator = self.store.coordinator().await?;
        let slots = coordinator.slots(group);
        let asking = slots.ask_to_hand_over(index, self.token, self.to.as_deref(), self.wait);
        let now = self.shown(asking).await;
        coordinator.store().close().await;
        self.tell(&now?)
    }

    /// Waits where a person can see it, and says what to do if it was in vain.
    async fn shown(
        &self,
        asking: impl Future<Output = Result<LeaseInfo>>,
    ) -> anyhow::Result<LeaseInfo> {
        let spinner = (!self.json).then(|| progress::waiting("the holder is asked"));
        let became = asking.await;
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        if let Err(Error::NotFound { key }) = &became
            && key.kind == LEASE
        {
            let told = format!("nobody holds {}, so nobody can hand it over", key.id);
            return Err(Told::not_found(told).into());
        }
        let deaf = matches!(became, Err(Error::Held { .. }));
        let became = became.map_err(anyhow::Error::from);
        if !deaf {
            return became;
        }
        became.context(
            "it was not handed over, and goes on: its holder does not listen as `tenure run` does, or cannot; \
             `tenure lease revoke` ends its tenure all the same",
        )
    }

    fn tell(&self, now: &LeaseInfo) -> anyhow::Result<ExitCode> {
        match self.json {
            true => print(json!({ "handed_over": true, "lease": lease_json(now) }))?,
            false => {
                let LeaseInfo { id, holder, token, .. } = now;
                print(format_args!("handed over {id} to {holder}, token {token}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
