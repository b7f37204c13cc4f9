//! `tenure lease orphans` and `tenure lease reap`: what leases left behind that ended without a release.

use std::io::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};
use tenure::Result;
use tenure::lease::{Coordinator, LeaseInfo, Namespace};
use tenure::store::Commit;

use crate::exit::Told;
use crate::stores::StoreArgument;
use crate::table;

pub(crate) async fn ls(
    namespace: Option<&Namespace>,
    children: bool,
    json: bool,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.reader().await?;
    let orphans = coordinator.orphans(namespace, children).await?;
    coordinator.store().close().await;
    if json {
        let lines: String =
            orphans.iter().map(|left| format!("{}\n", orphans_json(left))).collect();
        std::io::stdout().write_all(lines.as_bytes())?;
    } else {
        let rows: Vec<_> = orphans.iter().map(row).collect();
        table::print(&["SCOPE", "HOLDER", "TOKEN", "SINCE", "METADATA"], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reaps what these scopes left. A scope that left nothing is a mistake, named before anything is done.
pub(crate) async fn reap(
    scopes: &[String],
    token: Option<u64>,
    json: bool,
    store: &StoreArgument,
) -> anyhow::Result<ExitCode> {
    let coordinator = store.coordinator().await?;
    let mut orphans = Vec::new();
    for scope in scopes {
        orphans.extend(of(&coordinator, scope, token).await?);
    }
    for left in &orphans {
        let (scope, token) = (&left.id, left.token);
        let reaping = coordinator.reap_one(scope, &left.nonce, left.revision, Commit::new());
        let reaped = reaping.await?;
        let line = match json {
            true => json!({ "scope": scope, "token": token, "reaped": reaped }).to_string(),
            // Gone is what somebody else reaped since it was listed.
            false => {
                let word = if reaped { "reaped" } else { "gone" };
                format!("{word:<8}  {scope}  {}  token {token}", left.holder)
            }
        };
        // The others are reaped, too, if nobody reads this any more.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
    coordinator.store().close().await;
    Ok(ExitCode::SUCCESS)
}

/// A scope as it is listed. Text, because those of readers and writers have a tag that is no part of a scope.
pub(crate) fn scope(text: &str) -> Result<String> {
    namespace(text).map(|_| text.to_owned())
}

fn namespace(scope: &str) -> Result<Namespace> {
    scope.split_once('/').map_or(scope, |(own, _)| own).parse()
}

/// What one scope left, all of it or only that of one tenure.
async fn of(
    coordinator: &Coordinator,
    scope: &str,
    token: Option<u64>,
) -> anyhow::Result<Vec<LeaseInfo>> {
    let mut orphans = coordinator.orphans(Some(&namespace(scope)?), false).await?;
    orphans.retain(|left| left.id == scope && token.is_none_or(|token| left.token == token));
    if orphans.is_empty() {
        let token = token.map(|token| format!(" under token {token}")).unwrap_or_default();
        return Err(Told::not_found(format!("{scope}{token} has left nothing to reap")).into());
    }
    Ok(orphans)
}

/// What is left as a row: scope, holder, token, since when it was held, what the holder told.
fn row(left: &LeaseInfo) -> Vec<String> {
    let told = left.metadata.iter().map(|(key, value)| format!("{key}={value}"));
    vec![
        left.id.clone(),
        left.holder.to_string(),
        left.token.to_string(),
        table::time(left.acquired_at_ms),
        table::or_dash(Some(&told.collect::<Vec<_>>().join(","))),
    ]
}

/// What is left, for programs.
fn orphans_json(left: &LeaseInfo) -> Value {
    json!({
        "scope": left.id,
        "holder": left.holder.to_string(),
        "token": left.token,
        "nonce": left.nonce,
        "revision": left.revision,
        "acquired_at_ms": left.acquired_at_ms,
        "metadata": left.metadata,
    })
}
