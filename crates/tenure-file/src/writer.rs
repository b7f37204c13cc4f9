//! The thread that commits: it takes all commits that are waiting and writes them as one group, with
//! one lock and one flush of history, each with its own outcome.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use crate::BACKEND;
use crate::inner::Inner;
use crate::pump::Pump;
use tenure::store::{Commit, Committed};
use tenure::{Error, Result};

/// Commits that may wait; more have to wait to be let in.
const QUEUE: usize = 1024;
/// Commits in one group.
const GROUP: usize = 256;
/// Bytes in one group, roughly: of requests, and of what history says of them.
pub(crate) const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Expired objects removed on the way, so that nobody has to wait for a long sweep.
const SWEEP_ON_THE_WAY: usize = 32;
/// Expired objects removed by one step of a sweep.
const SWEEP: usize = 256;

/// Work for the thread.
pub(crate) enum Job {
    Commit { commit: Commit, answer: oneshot::Sender<Result<Committed>> },
    Sweep,
}

/// Starts the thread. It ends when the sender is dropped, after what was accepted.
pub(crate) fn start(
    inner: Arc<Inner>,
    pump: Arc<Pump>,
) -> Result<(mpsc::Sender<Job>, JoinHandle<()>)> {
    let (sender, jobs) = mpsc::channel(QUEUE);
    let thread = std::thread::Builder::new()
        .name("tenure-file".into())
        .spawn(move || run(&inner, &pump, jobs))
        .map_err(|error| Error::unavailable(BACKEND, format!("no thread to write: {error}")))?;
    Ok((sender, thread))
}

fn run(inner: &Inner, pump: &Pump, mut jobs: mpsc::Receiver<Job>) {
    if let Err(error) = inner.files.remove_temp_files() {
        tracing::warn!(%error, "temp files of a crash stay for now");
    }
    while let Some(first) = jobs.blocking_recv() {
        let mut group = Waiting::default();
        group.add(first);
        while !group.is_full() {
            let Ok(job) = jobs.try_recv() else { break };
            group.add(job);
        }
        group.run(inner, pump);
    }
}

#[derive(Default)]
struct Waiting {
    commits: Vec<Commit>,
    answers: Vec<oneshot::Sender<Result<Committed>>>,
    bytes: usize,
    sweep: bool,
}

impl Waiting {
    fn add(&mut self, job: Job) {
        match job {
            Job::Sweep => self.sweep = true,
            Job::Commit { commit, answer } => {
                self.bytes += commit.size();
                self.commits.push(commit);
                self.answers.push(answer);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.commits.len() >= GROUP || self.bytes >= GROUP_BYTES
    }

    fn run(self, inner: &Inner, pump: &Pump) {
        let sweep = if self.sweep { SWEEP } else { SWEEP_ON_THE_WAY };
        let (mut commits, mut answers) = (&self.commits[..], self.answers.into_iter());
        let mut swept = loop {
            let group = inner.commit_group(commits, sweep);
            commits = commits.get(group.answers.len()..).unwrap_or_default();
            for (result, answer) in group.answers.into_iter().zip(&mut answers) {
                // Nobody waits any more for a commit that was abandoned.
                let _ = answer.send(result);
            }
            pump.tell(group.news);
            if commits.is_empty() {
                break group.swept;
            }
        };
        while self.sweep && swept == SWEEP {
            let more = inner.commit_group(&[], SWEEP);
            swept = more.swept;
            pump.tell(more.news);
        }
    }
}
