//! `--watch`: the same output again whenever something has changed.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use futures::StreamExt as _;
use serde_json::Value;
use tenure::store::{Store, WatchRequest};

/// On a terminal times run on, so it is drawn again this often even if nothing has happened.
const TICK: Duration = Duration::from_secs(1);
/// Changes that come together are shown together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Home, and nothing below.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// `--watch` of every command that shows how things are.
#[derive(clap::Args)]
pub(crate) struct Follow {
    /// Show it again with every change, until interrupted.
    #[arg(long, short = 'w')]
    watch: bool,
}

impl Follow {
    /// A list for programs: one object per line. Shown again and again, the whole list is one line, so that
    /// it is plain where it ends.
    pub(crate) fn list(&self, objects: impl Iterator<Item = Value>) -> String {
        match self.watch {
            true => format!("{}\n", objects.collect::<Value>()),
            false => objects.map(|object| format!("{object}\n")).collect(),
        }
    }

    /// One document for programs: on one line where there are more to come.
    pub(crate) fn document(&self, value: &Value) -> anyhow::Result<String> {
        Ok(match self.watch {
            true => value.to_string() + "\n",
            false => serde_json::to_string_pretty(value)? + "\n",
        })
    }
}

/// Prints the text once, or again with every change that one of the requests sees. Whoever makes the text is
/// told whether something has changed, or only time has passed. Programs get nothing that is not theirs: no
/// empty lines, and no drawing on a terminal.
pub(crate) async fn follow(
    following: &Follow,
    json: bool,
    store: &Store,
    requests: &[WatchRequest],
    text: impl AsyncFn(bool) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    if !following.watch {
        return print("", &text(true).await?);
    }
    let mut watches = Vec::new();
    for request in requests {
        watches.push(store.watch(request).await?);
    }
    let mut changes = futures::stream::select_all(watches);
    let terminal = std::io::stdout().is_terminal() && !json;
    let mut last = None;
    let mut changed = true;
    loop {
        let now = text(changed).await?;
        if last.as_ref() != Some(&now) {
            let before = match (terminal, &last) {
                (true, _) => CLEAR,
                (false, Some(_)) if !json => "\n",
                (false, _) => "",
            };
            print(before, &now)?;
            last = Some(now);
        }
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => {
                    change?;
                    changed = true;
                }
                None => return Ok(()),
            },
            () = tokio::time::sleep(TICK), if terminal => changed = false,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        tokio::time::sleep(TOGETHER).await;
    }
}

fn print(before: &str, text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(before.as_bytes())?;
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
