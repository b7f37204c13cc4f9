//! The history of a scope, as `tenure lease show` tells it.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::lease::{Coordinator, History, Older, PastTenure, Scope, TenureEnd};

use crate::table;

/// Nobody waits longer than this to see what was.
const WITHIN: Duration = Duration::from_secs(3);

/// What was told last. While that is shown again and again, history is read only when something has changed.
/// Who holds it does not tell: somebody may have come and gone between two looks.
#[derive(Default)]
pub(crate) struct Remembered {
    last: RefCell<Option<History>>,
}

impl Remembered {
    /// Who held it before; nothing if that was not asked for.
    pub(crate) async fn read(
        &self,
        coordinator: &Coordinator,
        scope: &Scope,
        most: usize,
        changed: bool,
    ) -> anyhow::Result<Option<History>> {
        if most == 0 {
            return Ok(None);
        }
        let known = self.last.borrow().clone().filter(|_| !changed);
        if known.is_some() {
            return Ok(known);
        }
        let history = coordinator.history(scope, most, WITHIN).await?;
        self.last.replace(Some(history.clone()));
        Ok(Some(history))
    }
}

/// Lines for people: one for each tenure, and what there was before.
pub(crate) fn lines(history: &History, kept: Option<Duration>) -> Vec<String> {
    let rows: Vec<Vec<String>> = history.tenures.iter().map(row).collect();
    let aligned = table::render(&["", "", "", "", ""], &rows);
    let mut lines: Vec<String> = aligned.lines().skip(1).map(str::to_owned).collect();
    lines.extend(older(history, kept));
    let first = std::iter::once("history   ").chain(std::iter::repeat("          "));
    first.zip(lines).map(|(before, line)| format!("{before}{line}")).collect()
}

/// A tenure as a row: token, holder, since when, until when, how it ended.
fn row(past: &PastTenure) -> Vec<String> {
    let lease = &past.lease;
    let until = past.until_ms.map_or_else(|| "-".into(), table::time);
    let lasted = past.until_ms.and_then(|until| {
        u64::try_from(until.saturating_sub(lease.acquired_at_ms)).ok().map(Duration::from_millis)
    });
    let after = lasted.map(|lasted| format!(" within {}", table::duration(lasted)));
    let end = match &past.end {
        TenureEnd::Released => "released".to_owned(),
        TenureEnd::Expired => "expired".to_owned(),
        TenureEnd::Revoked { by, reason } => format!("revoked by {by}: {reason}"),
        TenureEnd::HandedOver { to } => format!("handed over to {to}"),
        TenureEnd::Unspecified => "ended".to_owned(),
    };
    let end = match past.end {
        TenureEnd::Revoked { .. } | TenureEnd::HandedOver { .. } => end,
        _ => end + &after.unwrap_or_default(),
    };
    vec![
        format!("token {}", lease.token),
        lease.holder.to_string(),
        format!("since {}", table::time(lease.acquired_at_ms)),
        format!("until {until}"),
        end,
    ]
}

/// What is to be said of what came before, if anything.
fn older(history: &History, kept: Option<Duration>) -> Option<String> {
    let any = !history.tenures.is_empty();
    Some(match history.older {
        Older::None if any => return None,
        Older::None => "nobody held it before".into(),
        Older::LeftOff => "older ones are left off; --history shows more".into(),
        Older::Unread => "there was no time to read all of it".into(),
        Older::NotKept => "this store keeps none".into(),
        Older::Compacted => {
            let kept = kept.filter(|kept| !kept.is_zero()).map(table::duration);
            let kept = kept.map(|kept| format!("; this store keeps {kept}")).unwrap_or_default();
            let what = if any { "what was before that" } else { "what was before" };
            format!("{what} is forgotten{kept}")
        }
    })
}

/// The same for programs.
pub(crate) fn history_json(history: &History) -> Value {
    let tenure = |past: &PastTenure| {
        let mut value = json!({
            "holder": past.lease.holder.to_string(),
            "name": past.lease.holder.name(),
            "token": past.lease.token,
            "acquired_at_ms": past.lease.acquired_at_ms,
            "until_ms": past.until_ms,
            "ended": past.end.code(),
            "metadata": past.lease.metadata,
        });
        match &past.end {
            TenureEnd::Revoked { by, reason } => {
                value["by"] = by.as_str().into();
                value["reason"] = reason.as_str().into();
            }
            TenureEnd::HandedOver { to } => value["to"] = to.as_str().into(),
            _ => {}
        }
        value
    };
    json!({
        "tenures": history.tenures.iter().map(tenure).collect::<Vec<_>>(),
        "older": history.older.code(),
    })
}
