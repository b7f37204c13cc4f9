//! The way to the writer thread, and what a caller may ask for through it.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::group_queue::{GroupQueue, Most, Queued};
use tenure::clock::{Clock as _, SystemClock};
use tenure::store::{Commit, Committed, Touch, Touched};
use tenure::{Error, Result};
use tokio::sync::watch;

use crate::error::BACKEND;
use crate::group_wait::{GroupWait, MOMENT};

/// One group: large enough to spread the cost of the flush, small enough to answer soon.
pub(crate) const MOST: Most = Most { requests: 1_024, bytes: 8 * 1024 * 1024 };
/// For so few callers the writer does not go to sleep while it waits: to be woken would take longer.
const AWAKE: usize = 16;
/// What a touch counts for in the queue.
const TOUCH_BYTES: usize = 128;

/// What a caller asks for.
pub(crate) enum Request {
    Commit(Commit),
    Touch(Vec<Touch>),
}

impl Request {
    /// Whether it brings SQL of the caller's own.
    pub(crate) fn has_sql(&self) -> bool {
        matches!(self, Self::Commit(commit) if !commit.attachments.is_empty())
    }
}

/// What came of a request of the same kind.
#[derive(Clone)]
pub(crate) enum Outcome {
    Committed(Committed),
    Touched(Vec<Result<Touched>>),
}

/// The queue before the writer thread.
pub(crate) type Requests = GroupQueue<Request, Result<Outcome>>;

/// One request of a group.
pub(crate) struct Job {
    queued: Queued<Request, Result<Outcome>>,
    /// What the caller will be told once the group is on disk.
    pub(crate) outcome: Option<Result<Outcome>>,
    /// It has its answer, and its transaction is gone because of it.
    pub(crate) broke: bool,
}

impl Job {
    fn new(queued: Queued<Request, Result<Outcome>>) -> Self {
        Self { queued, outcome: None, broke: false }
    }

    pub(crate) fn request(&self) -> &Request {
        &self.queued.request
    }

    /// Tells the caller, who may have given up.
    pub(crate) fn answer(self, failure: Option<&Error>) {
        let unreached = || Err(Error::unavailable(BACKEND, "the writer skipped a request"));
        let answer = match failure {
            Some(error) => Err(error.clone()),
            None => self.outcome.unwrap_or_else(unreached),
        };
        self.queued.answer(answer);
    }
}

/// The way to the writer thread. Dropped, it lets the thread end.
pub(crate) struct WriterHandle {
    requests: Arc<Requests>,
    /// Open while the thread runs.
    running: watch::Receiver<()>,
}

/// Held by the writer thread: however it ends, nobody waits for it any longer.
pub(crate) struct Running {
    pub(crate) requests: Arc<Requests>,
    _open: watch::Sender<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.requests.abandon();
    }
}

impl WriterHandle {
    /// A queue, and what the thread keeps of it.
    pub(crate) fn new() -> (Self, Running) {
        let requests = Arc::new(Requests::new(BACKEND));
        let (open, running) = watch::channel(());
        (Self { requests: Arc::clone(&requests), running }, Running { requests, _open: open })
    }

    pub(crate) async fn commit(&self, commit: Commit) -> Result<Committed> {
        let bytes = commit.size();
        match self.requests.ask(Request::Commit(commit), bytes).await?? {
            Outcome::Committed(committed) => Ok(committed),
            Outcome::Touched(_) => Err(Error::unknown(BACKEND, "a commit was answered as a touch")),
        }
    }

    pub(crate) async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let bytes = TOUCH_BYTES * touches.len();
        match self.requests.ask(Request::Touch(touches), bytes).await?? {
            Outcome::Touched(touched) => Ok(touched),
            Outcome::Committed(_) => {
                Err(Error::unknown(BACKEND, "a touch was answered as a commit"))
            }
        }
    }

    /// Refuses new requests, and waits until those in the queue are answered and the thread has ended.
    pub(crate) async fn close(&self) {
        self.requests.close();
        let mut running = self.running.clone();
        while running.changed().await.is_ok() {}
    }

    /// Lets the writer look for the next expiry again, because another process may have written.
    pub(crate) fn look(&self) {
        self.requests.nudge();
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.requests.close();
    }
}

/// What the writer does next.
pub(crate) enum Next {
    /// These, in one transaction if it can be.
    Group(Vec<Job>),
    /// Nobody asks for anything; there may be something to tidy up.
    Nothing,
    /// To look for what expires.
    Look,
    /// Nobody is left.
    End,
}

/// Waits for requests, and takes what there is, within bounds. See [`GroupWait`].
pub(crate) fn gather(requests: &Requests, patience: &mut GroupWait, idle: Duration) -> Next {
    if !requests.wait(1, idle) {
        return Next::End;
    }
    // Every transaction ends with a look, so it is forgotten where there is a group.
    let nudged = requests.was_nudged();
    let waiting = requests.len();
    let (expected, within) = if waiting > 0 { patience.expected() } else { Default::default() };
    if waiting < expected {
        if expected <= AWAKE && within <= MOMENT {
            wait_awake(requests, expected, within);
        } else {
            requests.wait(expected, within);
        }
        patience.waited(requests.len() < expected);
    }
    let group: Vec<_> = requests.take(MOST).into_iter().map(Job::new).collect();
    match group.is_empty() {
        false => Next::Group(group),
        true if nudged => Next::Look,
        true => Next::Nothing,
    }
}

/// Waits without going to sleep, for a few who are back before anybody could be woken.
fn wait_awake(requests: &Requests, count: usize, within: Duration) {
    let until = SystemClock.uptime() + within;
    while requests.len() < count && SystemClock.uptime() < until {
        // The callers need the processor to come back.
        std::thread::yield_now();
    }
}
