//! A bounded queue before a group of workers: callers wait for room, a worker takes all that waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};
use tenure::{Error, Result};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::BACKEND;
use crate::shared::closed;

/// What waits takes up room in units of this many bytes.
const UNIT_BYTES: usize = 1024;
/// Even the smallest request takes so many units, so room also bounds the count.
const MIN_UNITS: usize = 4;
/// 64 MiB, or 16,384 small requests.
const UNITS: usize = 64 * 1024;

/// How long a group waits at most for the callers of the one before it.
const PATIENCE: Duration = Duration::from_micros(250);

/// Fewer than this many are not worth two groups.
pub(crate) const WORTH_HALVING: usize = 16;

/// A request and where its answer goes.
pub(crate) struct Waiting<T, R> {
    pub(crate) request: T,
    pub(crate) bytes: usize,
    reply: oneshot::Sender<R>,
    _room: OwnedSemaphorePermit,
}

impl<T, R> Waiting<T, R> {
    /// Answers the caller, if it still waits.
    pub(crate) fn answer(self, answer: R) {
        let _ = self.reply.send(answer);
    }

    /// Whether the caller gave up waiting. A request that nobody waits for is not begun.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// How much a worker takes at once.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

/// How a worker that can have two groups under way takes the next one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Course {
    /// Requests of the group that is under way. The next one sets off when nearly as many wait.
    pub(crate) under_way: usize,
    /// Make two groups of what waits, one to be worked on while the other is on its way.
    pub(crate) halves: bool,
}

impl Course {
    fn wanted(self) -> usize {
        match self.under_way {
            0 => 1,
            requests => (requests - requests / 4).max(WORTH_HALVING / 2),
        }
    }
}

struct Line<T, R> {
    waiting: VecDeque<Waiting<T, R>>,
    /// The worker is to be woken for no fewer.
    wanted: usize,
}

pub(crate) struct Queue<T, R> {
    line: Mutex<Line<T, R>>,
    bell: Notify,
    room: Arc<Semaphore>,
    /// How many requests the last group had.
    last_group: AtomicUsize,
}

impl<T, R> Queue<T, R> {
    pub(crate) fn new() -> Self {
        Self {
            line: Mutex::new(Line { waiting: VecDeque::new(), wanted: 1 }),
            bell: Notify::new(),
            room: Arc::new(Semaphore::new(UNITS)),
            last_group: AtomicUsize::new(0),
        }
    }

    /// Waits for room, joins the queue, waits for the answer.
    pub(crate) async fn ask(&self, request: T, bytes: usize) -> Result<R> {
        let units = (bytes / UNIT_BYTES).clamp(MIN_UNITS, UNITS);
        let room = Arc::clone(&self.room).acquire_many_owned(units as u32);
        let room = room.await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let entry = Waiting { request, bytes, reply, _room: room };
        let enough = {
            let mut line = self.line();
            line.waiting.push_back(entry);
            line.waiting.len() >= line.wanted
        };
        if enough {
            self.bell.notify_one();
        }
        // A worker that ends without an answer leaves the caller in doubt.
        answer.await.map_err(|_| Error::unknown(BACKEND, "the store stopped while it worked"))
    }

    /// Everything that waits, within bounds and at least one; `None` once closed and empty. Nothing
    /// is lost if this is dropped before it is ready.
    pub(crate) async fn take(&self, most: Most, course: Course) -> Option<Vec<Waiting<T, R>>> {
        loop {
            if course.under_way == 0 && self.len() > 0 {
                self.settle().await;
            }
            let taken = self.take_waiting(most, course);
            if !taken.is_empty() {
                return Some(taken);
            }
            if self.room.is_closed() && self.len() == 0 {
                // Passed on to the other workers.
                self.bell.notify_one();
                return None;
            }
            self.bell.notified().await;
        }
    }

    /// Callers that were just answered come back at once, as a rule. Waiting a moment for them,
    /// instead of running off with the first, makes one group of what would be two.
    async fn settle(&self) {
        let expected = self.last_group.load(Ordering::Relaxed);
        let until = SystemClock.uptime() + PATIENCE;
        while self.len() < expected && SystemClock.uptime() < until {
            // The callers need the processor to come back.
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<T, R>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> usize {
        self.line().waiting.len()
    }

    fn take_waiting(&self, most: Most, course: Course) -> Vec<Waiting<T, R>> {
        let mut line = self.line();
        line.wanted = if self.room.is_closed() { 1 } else { course.wanted() };
        let waiting = line.waiting.len();
        if waiting < line.wanted {
            return Vec::new();
        }
        let split = course.halves && course.under_way == 0 && waiting >= WORTH_HALVING;
        let requests = if split { waiting.div_ceil(2).min(most.requests) } else { most.requests };
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < requests
            && let Some(next) = line.waiting.front()
        {
            bytes += next.bytes;
            if bytes > most.bytes && !taken.is_empty() {
                break;
            }
            taken.extend(line.waiting.pop_front().filter(|entry| !entry.is_abandoned()));
        }
        if !line.waiting.is_empty() {
            self.bell.notify_one();
        }
        if !taken.is_empty() {
            self.last_group.store(taken.len(), Ordering::Relaxed);
        }
        taken
    }

    /// Takes no more requests; what waits is still worked off.
    pub(crate) fn close(&self) {
        self.room.close();
        self.bell.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most { requests: 3, bytes: 100 };

    #[tokio::test]
    async fn groups_are_bounded_and_abandoned_requests_are_passed_over() {
        let queue = Arc::new(Queue::<u32, u32>::new());
        let ask = |n: u32, bytes: usize| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.ask(n, bytes).await })
        };
        let mut callers = Vec::new();
        for (n, bytes) in [(0, 40), (1, 70), (2, 10), (3, 10), (4, 10), (5, 1000)] {
            callers.push(ask(n, bytes));
            tokio::task::yield_now().await;
        }
        callers[2].abort();
        tokio::task::yield_now().await;
        let mut groups: Vec<Vec<u32>> = Vec::new();
        while groups.concat().len() < 5 {
            let group = queue.take(MOST, Course::default()).await.unwrap();
            groups.push(group.iter().map(|entry| entry.request).collect::<Vec<_>>());
            group.into_iter().for_each(|entry| {
                let n = entry.request;
                entry.answer(n);
            });
        }
        assert_eq!(groups, [vec![0], vec![1, 3, 4], vec![5]]);
        queue.close();
        assert!(queue.take(MOST, Course::default()).await.is_none());
        assert!(queue.ask(9, 1).await.is_err());
        assert_eq!(callers.remove(0).await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn what_waits_is_halved_and_the_other_half_follows() {
        const MOST: Most = Most { requests: 512, bytes: 1 << 20 };
        let queue = Arc::new(Queue::<usize, usize>::new());
        let ask = |n: usize| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.ask(n, 1).await })
        };
        let mut callers: Vec<_> = (0..20).map(ask).collect();
        tokio::task::yield_now().await;
        let halves = |under_way| Course { under_way, halves: true };
        let first = queue.take(MOST, halves(0)).await.unwrap();
        let second = queue.take(MOST, halves(first.len())).await.unwrap();
        assert_eq!((first.len(), second.len()), (10, 10));
        // With ten under way nobody sets off for seven.
        callers.extend((0..7).map(ask));
        tokio::task::yield_now().await;
        let mut third = Box::pin(queue.take(MOST, halves(second.len())));
        assert!(futures::poll!(&mut third).is_pending());
        callers.push(ask(7));
        tokio::task::yield_now().await;
        let third = third.await.unwrap();
        assert_eq!(third.len(), 8);
        for entry in first.into_iter().chain(second).chain(third) {
            let n = entry.request;
            entry.answer(n);
        }
        // Once closed, what waits goes however little it is.
        callers.push(ask(1));
        tokio::task::yield_now().await;
        queue.close();
        let last = queue.take(MOST, halves(10)).await.unwrap();
        assert_eq!(last.len(), 1);
        last.into_iter().for_each(|entry| entry.answer(1));
        assert!(queue.take(MOST, halves(10)).await.is_none());
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
    }
}
