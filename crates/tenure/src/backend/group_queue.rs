//! A bounded queue whose requests are worked off in groups, for backends where one flush serves many.
//!
//! Callers wait for room in the queue and then for their answer ([`GroupQueue::ask`]). A worker waits
//! until enough requests are there and takes as many as make a good group ([`GroupQueue::take`]). The
//! worker may be a task ([`GroupQueue::ready`]) or a thread of its own ([`GroupQueue::wait`]); several
//! tasks may share a queue. How many requests are worth waiting for is up to the backend. Callers wake
//! the worker once, when there are that many, and not with every request.
//!
//! - The queue holds at most 64 MiB, and 16,384 requests however small.
//! - Every request is answered, or its caller is told that the outcome is unknown.
//! - A request whose caller is gone is not given to the worker.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::clock::{Clock as _, SystemClock};
use crate::{Error, Result};

/// Requests take room in units of this many bytes.
const UNIT_BYTES: usize = 1024;
/// Even the smallest request takes so many units, which bounds the count.
const MIN_UNITS: usize = 4;
/// The room that there is.
const UNITS: usize = 64 * 1024;

/// How large a group may be. A single request may have more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Requests of a group.
    pub requests: usize,
    /// Bytes of these requests.
    pub bytes: usize,
}

/// A request and the way back to its caller.
#[derive(Debug)]
pub struct Queued<T, R> {
    /// What the caller asks for.
    pub request: T,
    /// What the caller said it takes.
    pub bytes: usize,
    reply: oneshot::Sender<R>,
    _room: OwnedSemaphorePermit,
}

impl<T, R> Queued<T, R> {
    /// Answers the caller, if it still waits.
    pub fn answer(self, answer: R) {
        let _ = self.reply.send(answer);
    }

    /// Whether the caller gave up waiting.
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

#[derive(Debug)]
struct State<T, R> {
    waiting: VecDeque<Queued<T, R>>,
    /// How many requests the worker is to be woken for.
    wanted: usize,
    /// How many the last group had.
    last_group: usize,
    /// The worker was nudged, and has not looked yet.
    nudged: bool,
    closed: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct GroupQueue<T, R> {
    backend: &'static str,
    state: Mutex<State<T, R>>,
    bell: Notify,
    room: Arc<Semaphore>,
}

impl<T, R> GroupQueue<T, R> {
    /// An empty queue. Errors name the backend.
    pub fn new(backend: &'static str) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            wanted: 1,
            last_group: 0,
            nudged: false,
            closed: false,
        };
        Self {
            backend,
            state: Mutex::new(state),
            bell: Notify::new(),
            room: Arc::new(Semaphore::new(UNITS)),
        }
    }

    /// Waits for room, joins the queue, waits for the answer.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the queue is closed, [`Error::Unknown`] if the worker ended with the
    /// request in its hands.
    pub async fn ask(&self, request: T, bytes: usize) -> Result<R> {
        let units = (bytes / UNIT_BYTES).clamp(MIN_UNITS, UNITS) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(units).await;
        let room = room.map_err(|_| self.is_closed())?;
        let (reply, answer) = oneshot::channel();
        let enough = {
            let mut state = self.state();
            if state.closed {
                return Err(self.is_closed());
            }
            state.waiting.push_back(Queued { request, bytes, reply, _room: room });
            state.waiting.len() >= state.wanted
        };
        if enough {
            self.bell.notify_one();
        }
        answer.await.map_err(|_| Error::unknown(self.backend, "the store stopped while it worked"))
    }

    fn is_closed(&self) -> Error {
        Error::unavailable(self.backend, "the store is closed")
    }

    fn state(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests the last group had. As a rule, as many callers are about to come back.
    pub fn last_group(&self) -> usize {
        self.state().last_group
    }

    /// Takes the requests that came first, within bounds.
    pub fn take(&self, most: Most) -> Vec<Queued<T, R>> {
        let mut state = self.state();
        let mut taken = Vec::with_capacity(state.waiting.len().min(most.requests));
        let (mut bytes, mut abandoned) = (0, Vec::new());
        while taken.len() < most.requests
            && let Some(next) = state.waiting.pop_front()
        {
            if next.is_abandoned() {
                abandoned.push(next);
                continue;
            }
            bytes += next.bytes;
            if bytes > most.bytes && !taken.is_empty() {
                state.waiting.push_front(next);
                break;
            }
            taken.push(next);
        }
        if !taken.is_empty() {
            state.last_group = taken.len();
        }
        let more = !state.waiting.is_empty();
        drop(state);
        if more {
            self.bell.notify_one();
        }
        taken
    }

    /// Resolves when so many requests wait, or when the queue is closed; false once it is closed and
    /// empty. Nothing is lost if this is dropped before it resolves.
    pub async fn ready(&self, count: usize) -> bool {
        loop {
            if let Some(ready) = self.look(count) {
                return ready;
            }
            self.bell.notified().await;
        }
    }

    /// The same for a worker that is a thread. It also ends after this time, or by
    /// [`GroupQueue::nudge`].
    pub fn wait(&self, count: usize, within: Duration) -> bool {
        let until = SystemClock.uptime().saturating_add(within);
        loop {
            if let Some(ready) = self.look(count) {
                return ready;
            }
            if self.state().nudged || !self.sleep(until) {
                return true;
            }
        }
    }

    /// Whether the worker can go on; `None` if it should wait.
    fn look(&self, count: usize) -> Option<bool> {
        let mut state = self.state();
        if state.closed && state.waiting.is_empty() {
            drop(state);
            // Passed on to the other workers.
            self.bell.notify_one();
            return Some(false);
        }
        if state.closed || state.waiting.len() >= count {
            return Some(true);
        }
        state.wanted = count;
        None
    }

    /// Sleeps until the bell rings; false if it has not by then.
    fn sleep(&self, until: Duration) -> bool {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut rung = pin!(self.bell.notified());
        loop {
            if rung.as_mut().poll(&mut context) == Poll::Ready(()) {
                return true;
            }
            let left = until.saturating_sub(SystemClock.uptime());
            if left.is_zero() {
                return false;
            }
            thread::park_timeout(left);
        }
    }

    /// Wakes a worker that is a thread, though there is no request.
    pub fn nudge(&self) {
        self.state().nudged = true;
        self.bell.notify_one();
    }

    /// Whether the worker was nudged since this was last asked.
    pub fn was_nudged(&self) -> bool {
        std::mem::take(&mut self.state().nudged)
    }

    /// Takes no more requests; those that wait are still worked off.
    pub fn close(&self) {
        self.room.close();
        self.state().closed = true;
        self.bell.notify_one();
    }

    /// Closes the queue and drops what waits, because no worker is left.
    pub fn abandon(&self) {
        self.close();
        // Callers are told after the lock is free again.
        let left = std::mem::take(&mut self.state().waiting);
        drop(left);
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    const MOST: Most = Most { requests: 3, bytes: 100 };
    /// A test that has to wait so long has failed.
    const LONG: Duration = Duration::from_secs(60);

    type Numbers = Arc<GroupQueue<usize, usize>>;

    fn numbers() -> Numbers {
        Arc::new(GroupQueue::new("test"))
    }

    async fn ask(queue: &Numbers, number: usize, bytes: usize) -> JoinHandle<Result<usize>> {
        let queue = Arc::clone(queue);
        let caller = tokio::spawn(async move { queue.ask(number, bytes).await });
        yield_now().await;
        caller
    }

    fn answer(group: Vec<Queued<usize, usize>>) -> Vec<usize> {
        let numbers = group.iter().map(|queued| queued.request).collect();
        for queued in group {
            let number = queued.request;
            queued.answer(number);
        }
        numbers
    }

    fn quickly<T>(work: impl FnOnce() -> T) -> T {
        let begun = SystemClock.uptime();
        let done = work();
        assert!(SystemClock.uptime() - begun < LONG / 2, "nobody was woken");
        done
    }

    #[tokio::test]
    async fn groups_are_bounded_and_abandoned_requests_are_passed_over() {
        let queue = numbers();
        let mut callers = Vec::new();
        for (number, bytes) in [(0, 40), (1, 70), (2, 10), (3, 10), (4, 10), (5, 1000)] {
            callers.push(ask(&queue, number, bytes).await);
        }
        callers[2].abort();
        yield_now().await;
        for expected in [vec![0], vec![1, 3, 4], vec![5]] {
            assert!(queue.ready(1).await);
            assert_eq!(answer(queue.take(MOST)), expected);
            assert_eq!(queue.last_group(), expected.len());
        }
        assert!(queue.take(MOST).is_empty() && queue.last_group() == 1);
        assert_eq!(callers.remove(0).await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn callers_wait_for_room() {
        let queue = numbers();
        let first = ask(&queue, 0, UNITS * UNIT_BYTES * 2).await;
        let second = ask(&queue, 1, 1).await;
        assert_eq!(queue.len(), 1);
        answer(queue.take(MOST));
        assert_eq!(first.await.unwrap().unwrap(), 0);
        assert!(queue.ready(1).await);
        assert_eq!(answer(queue.take(MOST)), [1]);
        assert_eq!(second.await.unwrap().unwrap(), 1);
        // Small ones are bounded by their count.
        for number in 0..UNITS / MIN_UNITS + 1 {
            ask(&queue, number, 1).await;
        }
        assert_eq!(queue.len(), UNITS / MIN_UNITS);
    }

    #[tokio::test]
    async fn a_task_is_ready_when_so_many_wait() {
        let queue = numbers();
        let mut ready = Box::pin(queue.ready(2));
        assert!(poll!(&mut ready).is_pending());
        ask(&queue, 0, 1).await;
        assert!(poll!(&mut ready).is_pending());
        ask(&queue, 1, 1).await;
        assert!(ready.await);
        // One who is told and does not look leaves it to the next.
        let mut dropped = Box::pin(queue.ready(3));
        assert!(poll!(&mut dropped).is_pending());
        ask(&queue, 2, 1).await;
        drop(dropped);
        assert!(queue.ready(3).await);
    }

    #[tokio::test]
    async fn tasks_that_share_a_queue_all_learn_that_it_is_closed() {
        let queue = numbers();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.ready(1).await })
            })
            .collect();
        yield_now().await;
        queue.close();
        for task in tasks {
            assert!(!task.await.unwrap());
        }
        assert!(matches!(queue.ask(1, 1).await, Err(Error::Unavailable { .. })));
    }

    #[tokio::test]
    async fn what_waits_is_worked_off_after_closing_however_little_it_is() {
        let queue = numbers();
        let caller = ask(&queue, 7, 1).await;
        queue.close();
        assert!(queue.ready(100).await && queue.wait(100, LONG));
        assert_eq!(answer(queue.take(MOST)), [7]);
        assert_eq!(caller.await.unwrap().unwrap(), 7);
        assert!(!queue.ready(1).await && !queue.wait(1, LONG));
    }

    #[tokio::test]
    async fn those_whom_nobody_answers_are_in_doubt() {
        let queue = numbers();
        let (taken, waiting) = (ask(&queue, 0, 1).await, ask(&queue, 1, 1).await);
        drop(queue.take(Most { requests: 1, ..MOST }));
        assert!(matches!(taken.await.unwrap(), Err(Error::Unknown { .. })));
        queue.abandon();
        assert!(matches!(waiting.await.unwrap(), Err(Error::Unknown { .. })));
        assert!(!queue.ready(1).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_thread_is_woken_by_the_last_of_those_it_waits_for() {
        let queue = numbers();
        let worker = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let woken = quickly(|| queue.wait(3, LONG));
                (woken, answer(queue.take(MOST)).len())
            }
        });
        let callers = futures::future::join_all((0..3).map(|number| ask(&queue, number, 1))).await;
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
        assert_eq!(worker.join().unwrap(), (true, 3));
        assert!(queue.wait(1, Duration::from_millis(1)) && queue.is_empty());
    }

    #[test]
    fn a_thread_is_woken_by_a_nudge_and_by_the_end() {
        let queue = GroupQueue::<usize, usize>::new("test");
        thread::scope(|scope| {
            scope.spawn(|| {
                while queue.state().wanted != 5 {
                    thread::yield_now();
                }
                queue.nudge();
            });
            quickly(|| assert!(queue.wait(5, LONG)));
            assert!(queue.was_nudged() && !queue.was_nudged());
            scope.spawn(|| {
                while queue.state().wanted != 6 {
                    thread::yield_now();
                }
                queue.close();
            });
            quickly(|| assert!(!queue.wait(6, LONG)));
        });
    }
}
