//! The way to the writer thread: a queue bounded by bytes, and what a caller may ask for through it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};
use tenure::store::{Commit, Committed, Touch, Touched};
use tenure::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::BACKEND;

/// Bounds of one group: large enough to spread the cost of the flush, small enough to answer soon.
const GROUP_REQUESTS: usize = 1_024;
const GROUP_BYTES: usize = 8 * 1024 * 1024;
/// How long a group waits at most for the callers of the one before it.
const PATIENCE: Duration = Duration::from_micros(250);
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
    queue: SyncSender<Queued>,
    room: Arc<Semaphore>,
}

impl WriterHandle {
    /// A queue and the end that the thread reads from.
    pub(crate) fn new() -> (Self, Receiver<Queued>) {
        let (queue, requests) = sync_channel(QUEUE_KIB + 8);
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
        if self.queue.try_send(close).is_ok() {
            let _ = closed.await;
        }
    }

    /// Lets the writer look for the next expiry again; for whoever sees other processes' commits.
    pub(crate) fn look(&self) {
        // A full queue means that the writer is about to look anyway.
        let _ = self.queue.try_send(Queued::new(Request::Look, 0, None));
    }

    async fn ask<T>(&self, bytes: usize, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let kib = u32::try_from(bytes.div_ceil(1024).clamp(1, QUEUE_KIB)).unwrap_or(u32::MAX);
        let stopped = || Error::unavailable(BACKEND, "the store was closed");
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| stopped())?;
        let (reply, answer) = oneshot::channel();
        let queued = Queued::new(request(reply), bytes, Some(room));
        match self.queue.try_send(queued) {
            Ok(()) => {}
            Err(TrySendError::Disconnected(_)) => return Err(stopped()),
            // Every queued request holds at least one unit of room, so this cannot be.
            Err(TrySendError::Full(_)) => return Err(Error::unavailable(BACKEND, "queue full")),
        }
        answer
            .await
            .unwrap_or_else(|_| Err(Error::unknown(BACKEND, "the writer stopped before answering")))
    }
}

/// Whether it pays to wait for callers to come back.
#[derive(Default)]
pub(crate) struct Patience {
    /// How many requests the last group had.
    last_group: usize,
    /// Groups that set off at once, since waiting was in vain: how many more, and of how many.
    skip: u32,
    skips: u32,
}

impl Patience {
    /// How many requests to wait for.
    fn expected(&mut self) -> usize {
        if self.skip > 0 {
            self.skip -= 1;
            return 0;
        }
        // A straggler or two are not worth it.
        self.last_group - self.last_group / 8
    }

    /// Callers that are far away do not come back in time: then it is tried ever more rarely.
    fn learn(&mut self, waited_in_vain: Option<bool>, group: usize) {
        self.last_group = group;
        match waited_in_vain {
            Some(true) => self.skips = (self.skips * 2).clamp(1, 64),
            Some(false) => self.skips = 0,
            None => return,
        }
        self.skip = self.skips;
    }
}

/// The first request and whatever else waits, within bounds, up to a request to close. Callers that were
/// just answered come back at once, as a rule: waiting a moment for about as many as there were in the
/// last group, instead of running off with the first, makes one flush of what would be two.
pub(crate) fn gather(
    first: Queued,
    requests: &Receiver<Queued>,
    patience: &mut Patience,
) -> (Vec<Queued>, Option<oneshot::Sender<()>>) {
    let mut group = Vec::with_capacity(patience.last_group);
    let mut bytes = 0;
    let expected = patience.expected();
    let mut until = None;
    let mut next = Some(first);
    let close = loop {
        match next.take() {
            Some(Queued { request: Request::Close(done), .. }) => break Some(done),
            // Every transaction ends with a look.
            Some(Queued { request: Request::Look, .. }) => {}
            Some(queued) => {
                bytes += queued.bytes;
                group.push(queued);
                if group.len() >= GROUP_REQUESTS || bytes >= GROUP_BYTES {
                    break None;
                }
            }
            None if group.len() >= expected => break None,
            None => {
                if SystemClock.uptime()
                    >= *until.get_or_insert_with(|| SystemClock.uptime() + PATIENCE)
                {
                    break None;
                }
                // The callers need the processor to come back.
                std::thread::yield_now();
            }
        }
        next = requests.try_recv().ok();
    };
    let in_vain = until.map(|_| group.len() < expected);
    patience.learn(in_vain, group.len());
    (group, close)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_callers_that_stay_away() {
        let mut patience = Patience::default();
        assert_eq!(patience.expected(), 0);
        patience.learn(None, 64);
        assert_eq!(patience.expected(), 56);
        patience.learn(Some(false), 64);
        assert_eq!(patience.expected(), 56);
        for skipped in [1, 2, 4, 8, 16, 32, 64, 64] {
            patience.learn(Some(true), 64);
            assert_eq!((0..100).take_while(|_| patience.expected() == 0).count(), skipped);
        }
        patience.learn(Some(false), 8);
        assert_eq!(patience.expected(), 7);
        patience.learn(None, 1);
        assert_eq!(patience.expected(), 1);
    }
}
