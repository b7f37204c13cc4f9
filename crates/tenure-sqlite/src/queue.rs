//! The way to the writer thread: a queue bounded by bytes, and what a caller may ask for through it.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Commit, Committed, Touch, Touched};
use tenure::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::BACKEND;
use crate::line::{Gone, Joining, Taking, line};
use crate::patience::{MOMENT, Patience};

/// Bounds of one group: large enough to spread the cost of the flush, small enough to answer soon.
const GROUP_REQUESTS: usize = 1_024;
pub(crate) const GROUP_BYTES: usize = 8 * 1024 * 1024;
/// For so few callers the writer does not go to sleep while it waits: to be woken would take longer.
const AWAKE: usize = 16;
/// Bound of the queue, in KiB of requests.
const QUEUE_KIB: usize = 64 * 1024;

pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// What one caller will be told, known once its group is on disk.
pub(crate) type Answer<T> = Option<Result<T>>;
pub(crate) type TouchedEach = Vec<Result<Touched>>;

pub(crate) enum Request {
    Commit {
        commit: Commit,
        reply: Reply<Committed>,
        answer: Answer<Committed>,
    },
    Touch {
        touches: Vec<Touch>,
        reply: Reply<TouchedEach>,
        answer: Answer<TouchedEach>,
    },
    /// Another process may have written something that expires sooner.
    Look,
    Close(oneshot::Sender<()>),
}

impl Request {
    /// Whether it brings SQL of the caller's own.
    pub(crate) fn has_sql(&self) -> bool {
        matches!(self, Self::Commit { commit, .. } if !commit.attachments.is_empty())
    }

    /// Tells the caller. One that gave up no longer listens; that is its right.
    pub(crate) fn answer(self, failure: Option<&Error>) {
        match self {
            Self::Commit { reply, answer, .. } => tell(reply, answer, failure),
            Self::Touch { reply, answer, .. } => tell(reply, answer, failure),
            Self::Look => {}
            Self::Close(done) => drop(done),
        }
    }
}

fn tell<T>(reply: Reply<T>, answer: Answer<T>, failure: Option<&Error>) {
    let unreached = || Err(Error::unavailable(BACKEND, "the writer skipped a request"));
    let answer = match failure {
        Some(error) => Err(error.clone()),
        None => answer.unwrap_or_else(unreached),
    };
    let _ = reply.send(answer);
}

pub(crate) struct Queued {
    pub(crate) request: Request,
    /// It has its answer, and its transaction is gone because of it.
    pub(crate) broke: bool,
    bytes: usize,
    _room: Option<OwnedSemaphorePermit>,
}

impl Queued {
    fn new(request: Request, bytes: usize, room: Option<OwnedSemaphorePermit>) -> Self {
        Self { request, broke: false, bytes, _room: room }
    }
}

/// The way to the writer thread.
pub(crate) struct WriterHandle {
    queue: Joining<Queued>,
    room: Arc<Semaphore>,
}

impl WriterHandle {
    /// A queue and the end that the thread reads from.
    pub(crate) fn new() -> (Self, Taking<Queued>) {
        let (queue, requests) = line();
        (Self { queue, room: Arc::new(Semaphore::new(QUEUE_KIB)) }, requests)
    }

    pub(crate) async fn commit(&self, commit: Commit) -> Result<Committed> {
        let bytes = commit.size();
        self.ask(bytes, |reply| Request::Commit { commit, reply, answer: None }).await
    }

    pub(crate) async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let bytes = 128 * touches.len();
        self.ask(bytes, |reply| Request::Touch { touches, reply, answer: None }).await
    }

    pub(crate) async fn close(&self) {
        // New requests are refused from here on; those in the queue are still answered.
        self.room.close();
        let (done, closed) = oneshot::channel();
        let close = Queued::new(Request::Close(done), 0, None);
        if self.queue.join(close, true).is_ok() {
            let _ = closed.await;
        }
    }

    /// Lets the writer look for the next expiry again; for whoever sees other processes' commits.
    pub(crate) fn look(&self) {
        let _ = self.queue.join(Queued::new(Request::Look, 0, None), false);
    }

    async fn ask<T>(&self, bytes: usize, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let kib = u32::try_from(bytes.div_ceil(1024).clamp(1, QUEUE_KIB)).unwrap_or(u32::MAX);
        let stopped = || Error::unavailable(BACKEND, "the store was closed");
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| stopped())?;
        let (reply, answer) = oneshot::channel();
        let queued = Queued::new(request(reply), bytes, Some(room));
        // Every queued request holds at least one unit of room, so the line has a bound.
        self.queue.join(queued, false).map_err(|Gone| stopped())?;
        answer
            .await
            .unwrap_or_else(|_| Err(Error::unknown(BACKEND, "the writer stopped before answering")))
    }
}

/// What the writer does next.
pub(crate) enum Next {
    /// These, in one transaction, and then perhaps to close.
    Group(Vec<Queued>, Option<oneshot::Sender<()>>),
    /// Nobody asks for anything; there may be something to tidy up.
    Nothing,
    /// To look for what expires.
    Look,
    /// Nobody is left.
    End,
}

/// Waits for requests, and takes what there is, within bounds, up to a request to close. See [`Patience`].
pub(crate) fn gather(
    requests: &mut Taking<Queued>,
    patience: &mut Patience,
    idle: Duration,
) -> Next {
    if !requests.wait(1, idle) {
        return Next::End;
    }
    if requests.len() == 0 {
        return Next::Nothing;
    }
    let (expected, within) = patience.expected();
    if requests.len() < expected {
        if expected <= AWAKE && within <= MOMENT {
            requests.wait_awake(expected, within);
        } else {
            requests.wait(expected, within);
        }
        patience.waited(requests.len() < expected);
    }
    let (mut group, mut bytes) = (Vec::with_capacity(requests.len().min(GROUP_REQUESTS)), 0);
    while group.len() < GROUP_REQUESTS
        && bytes < GROUP_BYTES
        && let Some(queued) = requests.next()
    {
        match queued.request {
            Request::Close(done) => return Next::Group(group, Some(done)),
            // Every transaction ends with a look.
            Request::Look => {}
            _ => {
                bytes += queued.bytes;
                group.push(queued);
            }
        }
    }
    if group.is_empty() { Next::Look } else { Next::Group(group, None) }
}
