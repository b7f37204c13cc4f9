//! A tiny process that outlives a killed test and cleans up behind it.
//!
//! It waits at the read end of a pipe that only the test process holds open. A word through the pipe
//! means that all is tidy; the end of the pipe without one means that the test process is gone.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Postgres leaves its pid in its data folder, NATS in a file beside it, the nodes of etcd in a folder each.
/// Reads the server's pid anew, because a restart changes it. A stopped server is continued, or it
/// would not notice that it should end.
const SCRIPT: &str = r#"
if read -r word; then exit 0; fi
for file in "$1/data/postmaster.pid" "$1"/*.pid; do
  pid=$(head -n 1 "$file" 2>/dev/null)
  [ -n "$pid" ] || continue
  kill -QUIT "$pid" 2>/dev/null
  kill -CONT "$pid" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 1; done
done
for file in "$1"/*/pid; do
  if [ -f "$file" ]; then kill -KILL "$(cat "$file")" 2>/dev/null; fi
done
rm -rf "$1"
"#;

#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    pub(crate) fn over(folder: &Path) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "tenure-watchdog"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group: a Ctrl-C meant for the tests must not take the cleaner away first.
            .process_group(0)
            .spawn()
            .context("starting the watchdog shell")?;
        Ok(Self(child))
    }

    /// All is tidy; it may go.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b"tidy\n");
        }
        let _ = self.0.wait();
    }
}
