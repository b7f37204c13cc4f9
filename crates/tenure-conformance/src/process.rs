//! A worker process as the suite sees it: started, asked, and gone when dropped.

use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::context::PATIENCE;
use crate::worker::{Ask, Reply, Request};
use crate::{Failure, WorkerCommand};

/// A running worker; killed when dropped.
pub(crate) struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start(command: &WorkerCommand) -> Result<Self, Failure> {
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", command.program.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| Failure::new("a worker has no pipes"))?;
        Ok(Self { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// The process, its input and its output apart, for whoever listens all along.
    pub(crate) fn into_parts(self) -> (Child, ChildStdin, Lines<BufReader<ChildStdout>>) {
        (self.child, self.stdin, self.lines)
    }

    pub(crate) async fn send(&mut self, at_ms: u64, request: Request) -> Result<(), Failure> {
        let mut line = serde_json::to_string(&Ask { at_ms, request })?;
        line.push('\n');
        self.stdin.write_all(line.as_bytes()).await?;
        Ok(())
    }

    /// The next line; `None` when the worker is gone.
    pub(crate) async fn line(&mut self) -> Result<Option<String>, Failure> {
        Ok(self.lines.next_line().await?)
    }

    pub(crate) async fn reply(&mut self) -> Result<Reply, Failure> {
        let line = timeout(PATIENCE * 4, self.line()).await;
        let line = line.map_err(|_| Failure::new("a worker process does not answer"))??;
        let line = line.ok_or_else(|| Failure::new("a worker process ended early"))?;
        let reply: Reply = serde_json::from_str(&line)?;
        match reply.error {
            Some(error) => Err(Failure::new(format!("a worker process met: {error}"))),
            None => Ok(reply),
        }
    }

    pub(crate) async fn ask(&mut self, request: Request) -> Result<Reply, Failure> {
        self.send(0, request).await?;
        self.reply().await
    }

    /// `SIGKILL`, and the end of the process awaited.
    pub(crate) async fn kill(&mut self) -> Result<ExitStatus, Failure> {
        self.child.start_kill()?;
        Ok(self.child.wait().await?)
    }
}
