//! `tenure lease`: who holds what, and who waits for it.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt as _;
use serde_json::{Value, json};
use tenure::clock::{Clock as _, SystemClock};
use tenure::lease::{LEASE, LeaseEvent, LeaseInfo, Namespace, Scope, Status, WAITER, WaiterInfo};
use tenure::store::WatchRequest;

use crate::exit::Told;
use crate::follow::{Follow, follow};
use crate::hand_over::HandingOver;
use crate::history::{Remembered, history_json};
use crate::output::print;
use crate::stores::StoreArgument;
use crate::{history, json, orphans, table};

/// The most of the past that is shown: it is kept in memory, and may be explained one by one.
const MOST: usize = 1_000;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the leases that are held.
    Ls {
        /// Only those of this namespace, for instance `billing.nightly`.
        namespace: Option<Namespace>,
        /// Those of the namespaces below it, too.
        #[arg(long, requires = "namespace")]
        children: bool,
        /// One JSON object per line; with --watch one array per line.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        follow: Follow,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Show who holds a scope, who waits for it and who held it before.
    ///
    /// What was before is told as far as the store remembers; most keep ten minutes. The end of a tenure is
    /// not kept with a time: `until` is when it was revoked, or else when the next one began.
    Show {
        /// The scope, for instance `billing.nightly/close`.
        scope: Scope,
        /// So many of those who held it before; 0 for none.
        #[arg(long, value_name = "N", default_value_t = 5)]
        history: usize,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        follow: Follow,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Have a lease handed over to somebody who waits for it.
    ///
    /// The holder is asked to stop its work, and passes it on when that has stopped: there is no moment
    /// without a holder, and none with two. `tenure run` does that, as if it had been sent TERM; so do
    /// programs that listen for it. It takes leave to revoke. Interrupted, this does not take the request
    /// back before its wait is over.
    HandOver {
        /// The scope.
        scope: Scope,
        #[command(flatten)]
        how: HandingOver,
    },
    /// End somebody's tenure.
    ///
    /// Its fenced writes fail from that instant. It learns of it with its next renewal and stops then,
    /// so work that is not fenced may go on for a third of its life beside the next holder's.
    Revoke {
        /// The scope.
        scope: Scope,
        /// Only the tenure under this token: whoever came after it is left alone.
        #[arg(long = "expect-token", value_name = "TOKEN")]
        token: Option<u64>,
        /// Why, for the holder to read.
        #[arg(long, default_value = "revoked from the command line")]
        reason: String,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// List what is left to reap.
    ///
    /// A lease that was reapable and ended without a release leaves something, for somebody to do what its
    /// holder cannot do any more.
    Orphans {
        /// Only of this namespace, for instance `billing.nightly`.
        namespace: Option<Namespace>,
        /// Of the namespaces below it, too.
        #[arg(long, requires = "namespace")]
        children: bool,
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Remove what is left of leases.
    ///
    /// Do first what their holders could not do any more. What is left is removed, and nothing else
    /// happens: no hook of a program runs, now or later. A program that has something to write for it does
    /// both in one commit, over HTTP or by a library.
    Reap {
        /// The scopes, as `tenure lease orphans` lists them.
        #[arg(required = true, value_name = "SCOPE", value_parser = orphans::scope)]
        scopes: Vec<String>,
        /// Only what the tenure under this token has left.
        #[arg(long)]
        token: Option<u64>,
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Follow what happens to leases.
    Watch {
        /// Only scopes that start with this.
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
        /// End after so many events.
        #[arg(long)]
        limit: Option<usize>,
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreArgument,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Ls { namespace, children, json, follow, store } => {
                ls(namespace.as_ref(), children, json, &follow, &store).await
            }
            Self::Show { scope, history, json, follow, store } => {
                show(&scope, history.min(MOST), json, &follow, &store).await
            }
            Self::HandOver { scope, how } => how.scope(&scope).await,
            Self::Revoke { scope, token, reason, json, store } => {
                revoke(&scope, token, &reason, json, &store).await
            }
            Self::Orphans { namespace, children, json, store } => {
                orphans::ls(namespace.as_ref(), children, json, &store).await
            }
            Self::Reap { scopes, token, json, store } => {
                orphans::reap(&scopes, token, json, &store).await
            }
            Self::Watch { prefix, limit, json, store } => watch(&prefix, limit, json, &store).await,
        }
    }
}

async fn ls(
    namespace: Option<&Namespace>,
    children: bool,
    json: bool,
    following: &Follow,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.reader().await?;
    let text = async |_| {
        let leases = match namespace {
            Some(namespace) => coordinator.list(namespace, children).await?,
            None => coordinator.list_all().await?,
        };
        if json {
            return Ok(following.list(leases.iter().map(lease_json)));
        }
        let heading = ["SCOPE", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN"];
        Ok(table::render(&heading, &leases.iter().map(row).collect::<Vec<_>>()))
    };
    let prefix = namespace.map_or("", |namespace| namespace.as_str());
    let requests = [WatchRequest::kind(LEASE).prefix(prefix)];
    follow(following, json, coordinator.store(), &requests, text).await?;
    coordinator.store().close().await;
    Ok(ExitCode::SUCCESS)
}

async fn show(
    scope: &Scope,
    most: usize,
    json: bool,
    following: &Follow,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.reader().await?;
    let remembered = Remembered::default();
    let text = async |changed| {
        let status = coordinator.status(scope).await?;
        let history = remembered.read(&coordinator, scope, most, changed).await?;
        if !json {
            let kept = coordinator.store().capabilities().history;
            let lines = history.map(|history| history::lines(&history, kept)).unwrap_or_default();
            let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
            return Ok(status_text(scope, &status) + &lines);
        }
        let value = json!({
            "scope": scope.as_str(),
            "holder": status.holder.as_ref().map(lease_json),
            "waiters": status.waiters.iter().map(waiter_json).collect::<Vec<_>>(),
            "history": history.as_ref().map(history_json),
        });
        following.document(&value)
    };
    let requests = [LEASE, WAITER].map(|kind| WatchRequest::kind(kind).prefix(scope.as_str()));
    follow(following, json, coordinator.store(), &requests, text).await?;
    coordinator.store().close().await;
    Ok(ExitCode::SUCCESS)
}

fn status_text(scope: &Scope, status: &Status) -> String {
    let mut lines = Vec::new();
    match &status.holder {
        None => lines.push(format!("free      {scope}")),
        Some(info) => {
            let (holder, token, since) =
                (&info.holder, info.token, table::time(info.acquired_at_ms));
            let left = info.expires_in.map_or_else(|| "-".into(), table::duration);
            let renewed = renewed_ago(info).map(table::duration);
            let renewed = renewed.map(|ago| format!(" (renewed {ago} ago)")).unwrap_or_default();
            lines.push(format!(
                "held by   {holder}   token {token}   since {since}   expires in {left}{renewed}"
            ));
            let told = info.metadata.iter();
            lines.extend(told.map(|(key, value)| format!("          {key}: {value}")));
        }
    }
    if !status.waiters.is_empty() {
        let waiter =
            |waiter: &WaiterInfo| format!("{} {}", waiter.owner, table::duration(waited(waiter)));
        let waiters: Vec<_> = status.waiters.iter().map(waiter).collect();
        lines.push(format!("waiting   {}", waiters.join("   ")));
    }
    lines.join("\n") + "\n"
}

async fn revoke(
    scope: &Scope,
    token: Option<u64>,
    reason: &str,
    json: bool,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.coordinator().await?;
    let revoked = match token {
        Some(token) => coordinator.revoke_token(scope, token, reason).await?,
        None => coordinator.revoke(scope, reason).await?,
    };
    coordinator.store().close().await;
    if !revoked {
        return Err(Told::not_found(format!("nobody holds {scope}")).into());
    }
    match json {
        true => print(json!({ "scope": scope.as_str(), "revoked": true, "reason": reason }))?,
        false => print(format_args!("revoked {scope}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(
    prefix: &str,
    limit: Option<usize>,
    json: bool,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.reader().await?;
    let mut events = coordinator.watch(prefix, None).await?.take(limit.unwrap_or(usize::MAX));
    while let Some(event) = events.next().await {
        let event = event?;
        let mut out = std::io::stdout().lock();
        match (json, &event) {
            (true, event) => writeln!(out, "{}", event_json(event))?,
            (false, LeaseEvent::Held(info)) => {
                writeln!(out, "held      {}  {}  token {}", info.id, info.holder, info.token)?;
            }
            (false, LeaseEvent::Ended { id, cause, last }) => {
                let holder =
                    last.as_ref().map_or_else(|| "-".into(), |last| last.holder.to_string());
                writeln!(out, "{:<8}  {id}  {holder}", json::cause_word(*cause))?;
            }
        }
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A lease as a row: scope, holder, token, since when, how long still.
fn row(info: &LeaseInfo) -> Vec<String> {
    vec![
        info.id.clone(),
        info.holder.to_string(),
        info.token.to_string(),
        table::time(info.acquired_at_ms),
        info.expires_in.map_or_else(|| "-".into(), table::duration),
    ]
}

/// How long ago its life began anew.
fn renewed_ago(info: &LeaseInfo) -> Option<Duration> {
    info.expires_in.map(|left| info.ttl.saturating_sub(left))
}

/// By this machine's wall clock and the waiter's: for people.
fn waited(waiter: &WaiterInfo) -> Duration {
    let ms = SystemClock.wall_ms().saturating_sub(waiter.since_ms);
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A lease for programs.
pub(crate) fn lease_json(info: &LeaseInfo) -> Value {
    json!({
        "scope": info.id,
        "holder": info.holder.to_string(),
        "name": info.holder.name(),
        "token": info.token,
        "acquired_at_ms": info.acquired_at_ms,
        "expires_in_ms": info.expires_in.map(json::millis),
        "ttl_ms": json::millis(info.ttl),
        "renewed_ago_ms": renewed_ago(info).map(json::millis),
        "metadata": info.metadata,
    })
}

/// A waiter for programs.
pub(crate) fn waiter_json(waiter: &WaiterInfo) -> Value {
    json!({
        "owner": waiter.owner.to_string(),
        "place": waiter.place,
        "since_ms": waiter.since_ms,
    })
}

fn event_json(event: &LeaseEvent) -> Value {
    match event {
        LeaseEvent::Held(info) => json!({ "event": "held", "lease": lease_json(info) }),
        LeaseEvent::Ended { id, cause, last } => json!({
            "event": json::cause_word(*cause),
            "scope": id,
            "last": last.as_ref().map(lease_json),
        }),
    }
}
