//! Starting the command so that it cannot escape, and stopping it.
//!
//! It leads a process group of its own, so that signals reach what it started, and it does not begin
//! before the guardian stands: the process first stops itself, and becomes the command when it is told
//! to go on.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, waitid,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

use super::family::Family;
use super::guard::{self, News};
use super::schedule::Pace;
use crate::output::say;

/// Starting a process takes milliseconds; this is for a machine in trouble.
const START: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);
/// What a shell says of a command that cannot be run, and of one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Becomes the command, once it is told to.
pub(crate) fn become_command(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else { return ExitCode::FAILURE };
    if kill_process(getpid(), Signal::STOP).is_err() {
        return ExitCode::FAILURE;
    }
    let error = std::process::Command::new(program).args(arguments).exec();
    say(format_args!("cannot run {}: {error}", program.display()));
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if missing { NOT_FOUND } else { CANNOT_RUN })
}

/// A command under guard.
pub(crate) struct Guarded {
    pub(crate) child: Child,
    group: Pid,
    pub(crate) family: Family,
    pub(crate) guardian: Child,
    news: ChildStdin,
}

impl Guarded {
    /// Starts the command and its guardian.
    pub(crate) async fn start(
        command: &[OsString],
        variables: Vec<(&'static str, String)>,
        until: Duration,
        pace: Pace,
    ) -> anyhow::Result<Self> {
        let myself = std::env::current_exe().context("finding this program")?;
        set_child_subreaper(Some(getpid())).context("becoming the parent of orphans")?;
        let mut waiting = Command::new(&myself);
        waiting.args(["run-it", "--"]).args(command).envs(variables).process_group(0);
        // A group that is not the terminal's would be stopped when it reads from it.
        if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            waiting.stdin(Stdio::null());
        }
        let child = waiting.kill_on_drop(true).spawn().context("starting the command")?;
        let group = pid(&child)?;
        let mut guardian = Command::new(&myself)
            .arg("run-guard")
            .args(guard::Arguments::list(getpid(), group, until, pace))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting the guardian")?;
        let (Some(news), Some(answers)) = (guardian.stdin.take(), guardian.stdout.take()) else {
            anyhow::bail!("the guardian has no pipes");
        };
        let family = Family::new(getpid(), group, pid(&guardian)?);
        let guarded = Self { child, group, family, guardian, news };
        let begun = async {
            let mut ready = String::new();
            BufReader::new(answers).read_line(&mut ready).await?;
            anyhow::ensure!(ready == "ready\n", "the guardian is not ready");
            while !has_stopped(group)? {
                sleep(LOOK).await;
            }
            Ok(())
        };
        timeout(START, begun).await.context("the command could not be started in time")??;
        Ok(guarded)
    }

    /// Lets the command begin.
    pub(crate) fn go(&self) -> anyhow::Result<()> {
        kill_process(self.group, Signal::CONT).context("starting the command")
    }

    /// Passes a signal on to the command's group.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Tells the guardian of a renewal; false if there is no guardian any more.
    pub(crate) async fn prolong(&mut self, until: Duration) -> bool {
        self.tell(News::Until(until)).await
    }

    async fn tell(&mut self, news: News) -> bool {
        // The pipe holds thousands of lines; only a guardian that hangs does not read them.
        let line = news.line();
        let told = timeout(Duration::from_secs(1), self.news.write_all(line.as_bytes()));
        matches!(told.await, Ok(Ok(())))
    }

    /// The command has ended: what it left behind goes too, then the guardian. Whether that had to stop
    /// it, because we could not.
    pub(crate) async fn end(mut self, grace: Duration) -> bool {
        if self.family.is_anybody_left() {
            self.family.ask();
            let _ = timeout(grace, async {
                while self.family.is_anybody_left() {
                    sleep(LOOK * 5).await;
                }
            })
            .await;
            let _ = timeout(START, async {
                while self.family.is_anybody_left() {
                    self.family.kill();
                    sleep(LOOK).await;
                }
            })
            .await;
        }
        self.tell(News::Done).await;
        drop(self.news);
        let ended = timeout(Duration::from_secs(1), self.guardian.wait()).await;
        matches!(ended, Ok(Ok(status)) if guard::has_acted(status))
    }
}

fn pid(child: &Child) -> anyhow::Result<Pid> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    id.and_then(Pid::from_raw).context("the command ended before it began")
}

/// Whether the process has stopped itself, and waits to go on.
fn has_stopped(pid: Pid) -> anyhow::Result<bool> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    Ok(waitid(WaitId::Pid(pid), options).context("waiting for the command")?.is_some())
}

/// A command's end as a shell tells it: its code, or 128 and the signal.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let code = status.code().or_else(|| signal.map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}
