//! The line before the writer thread.
//!
//! Whoever joins does not wake the writer for every request: the writer says how many it waits for, and
//! is woken once, by the one that makes it so many. Its callers need the processor more than it does.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};

/// Where to join. Dropped, it lets the writer end.
pub(crate) struct Joining<T>(Arc<Line<T>>);

/// Where the writer takes from. Dropped, it turns away whoever joins.
pub(crate) struct Taking<T> {
    line: Arc<Line<T>>,
    /// Taken from the line, and next.
    taken: VecDeque<T>,
}

/// Nobody takes from the line any more.
pub(crate) struct Gone;

struct Line<T> {
    state: Mutex<State<T>>,
    enough: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// How many there must be to wake the writer; nothing while it is awake.
    wanted: Option<usize>,
    /// Somebody may still join.
    joined: bool,
    /// Somebody takes.
    taken: bool,
}

impl<T> Line<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line without anybody in it.
pub(crate) fn line<T>() -> (Joining<T>, Taking<T>) {
    let state = State { waiting: VecDeque::new(), wanted: None, joined: true, taken: true };
    let line = Arc::new(Line { state: Mutex::new(state), enough: Condvar::new() });
    (Joining(Arc::clone(&line)), Taking { line, taken: VecDeque::new() })
}

impl<T> Joining<T> {
    /// Joins. If it is `urgent`, the writer does not wait for more.
    pub(crate) fn join(&self, one: T, urgent: bool) -> Result<(), Gone> {
        let mut state = self.0.state();
        if !state.taken {
            return Err(Gone);
        }
        state.waiting.push_back(one);
        let enough = state.wanted.is_some_and(|wanted| urgent || state.waiting.len() >= wanted);
        if enough {
            state.wanted = None;
        }
        drop(state);
        if enough {
            self.0.enough.notify_one();
        }
        Ok(())
    }
}

impl<T> Drop for Joining<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.joined, state.wanted) = (false, None);
        drop(state);
        self.0.enough.notify_one();
    }
}

impl<T> Taking<T> {
    /// The next one, if it is there.
    pub(crate) fn next(&mut self) -> Option<T> {
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, &mut self.line.state().waiting);
        }
        self.taken.pop_front()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.taken.len() + self.line.state().waiting.len()
    }

    /// Waits until there are so many, but not longer than this. False if nobody can join any more and
    /// nobody is left.
    pub(crate) fn wait(&self, count: usize, within: Duration) -> bool {
        let until = SystemClock.uptime() + within;
        let count = count.saturating_sub(self.taken.len());
        let mut state = self.line.state();
        while state.waiting.len() < count && state.joined {
            let left = until.saturating_sub(SystemClock.uptime());
            if left.is_zero() {
                break;
            }
            state.wanted = Some(count);
            let waited = self.line.enough.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.wanted.take().is_none() {
                break;
            }
        }
        state.joined || !state.waiting.is_empty() || !self.taken.is_empty()
    }
}

impl<T> Taking<T> {
    /// The same without going to sleep, for a few who are back before anybody could be woken.
    pub(crate) fn wait_awake(&self, count: usize, within: Duration) {
        let until = SystemClock.uptime() + within;
        while self.len() < count && SystemClock.uptime() < until {
            // The callers need the processor to come back.
            std::thread::yield_now();
        }
    }
}

impl<T> Drop for Taking<T> {
    fn drop(&mut self) {
        let mut state = self.line.state();
        state.taken = false;
        // What is dropped may have an opinion; not under the lock.
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So long that a test which has to wait it out has failed.
    const LONG: Duration = Duration::from_secs(60);

    fn quickly(work: impl FnOnce()) {
        let begun = SystemClock.uptime();
        work();
        assert!(SystemClock.uptime() - begun < LONG / 2, "nobody was woken");
    }

    #[test]
    fn whoever_waits_for_several_is_woken_by_the_last_of_them() {
        let (joining, mut taking) = line();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|n| assert!(joining.join(n, false).is_ok())));
            quickly(|| assert!(taking.wait(3, LONG)));
        });
        assert_eq!((taking.next(), taking.len()), (Some(0), 2));
        // What is taken already counts.
        assert!(joining.join(3, false).is_ok());
        quickly(|| assert!(taking.wait(3, LONG)));
        assert_eq!([taking.next(), taking.next(), taking.next()], [Some(1), Some(2), Some(3)]);
        assert!(taking.wait(1, Duration::from_millis(1)) && taking.next().is_none());
    }

    #[test]
    fn what_is_urgent_is_not_kept_waiting() {
        let (joining, mut taking) = line();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Until the other side waits.
                while joining.0.state().wanted.is_none() {
                    std::thread::yield_now();
                }
                assert!(joining.join(1, false).is_ok());
                assert!(joining.0.state().wanted.is_some(), "woken before its time");
                assert!(joining.join(2, true).is_ok());
            });
            quickly(|| assert!(taking.wait(100, LONG)));
        });
        assert_eq!((taking.next(), taking.next()), (Some(1), Some(2)));
    }

    #[test]
    fn either_side_learns_that_the_other_is_gone() {
        let (joining, mut taking) = line();
        assert!(joining.join(1, false).is_ok());
        drop(joining);
        quickly(|| assert!(taking.wait(2, LONG), "somebody is left"));
        assert_eq!(taking.next(), Some(1));
        quickly(|| assert!(!taking.wait(1, LONG)));
        let (joining, taking) = line();
        drop(taking);
        assert!(joining.join(1, false).is_err());
    }
}
