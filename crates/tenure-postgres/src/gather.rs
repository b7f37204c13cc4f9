//! When a group sets off, and with how many of the requests that wait.

use std::time::Duration;

use tenure::backend::group_queue::{GroupQueue, Most, Queued};
use tenure::clock::{Clock as _, SystemClock};

/// How long a group waits at most for the callers of the one before it.
const PATIENCE: Duration = Duration::from_micros(250);

/// Fewer than this many are not worth two groups.
pub(crate) const WORTH_HALVING: usize = 16;

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

    /// How many of those that wait make a group.
    fn share(self, waiting: usize) -> usize {
        let split = self.halves && self.under_way == 0 && waiting >= WORTH_HALVING;
        if split { waiting.div_ceil(2) } else { usize::MAX }
    }
}

/// The next group; `None` once the queue is closed and empty. Nothing is lost if this is dropped before
/// it is ready.
pub(crate) async fn gather<T, R>(
    queue: &GroupQueue<T, R>,
    most: Most,
    course: Course,
) -> Option<Vec<Queued<T, R>>> {
    while queue.ready(course.wanted()).await {
        if course.under_way == 0 {
            settle(queue).await;
        }
        let requests = most.requests.min(course.share(queue.len()));
        let group = queue.take(Most { requests, ..most });
        if !group.is_empty() {
            return Some(group);
        }
    }
    None
}

/// Callers that were just answered come back at once, as a rule. Waiting a moment for them, instead of
/// running off with the first, makes one group of what would be two.
async fn settle<T, R>(queue: &GroupQueue<T, R>) {
    let expected = queue.last_group();
    let until = SystemClock.uptime() + PATIENCE;
    while queue.len() < expected && SystemClock.uptime() < until {
        // The callers need the processor to come back.
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_halved_and_the_other_half_follows() {
        const MOST: Most = Most { requests: 512, bytes: 1 << 20 };
        let queue = Arc::new(GroupQueue::<usize, usize>::new("test"));
        let ask = |n: usize| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.ask(n, 1).await })
        };
        let mut callers: Vec<_> = (0..20).map(ask).collect();
        tokio::task::yield_now().await;
        let halves = |under_way| Course { under_way, halves: true };
        let first = gather(&queue, MOST, halves(0)).await.unwrap();
        let second = gather(&queue, MOST, halves(first.len())).await.unwrap();
        assert_eq!((first.len(), second.len()), (10, 10));
        // With ten under way nobody sets off for seven.
        callers.extend((0..7).map(ask));
        tokio::task::yield_now().await;
        let mut third = Box::pin(gather(&queue, MOST, halves(second.len())));
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
        let last = gather(&queue, MOST, halves(10)).await.unwrap();
        assert_eq!(last.len(), 1);
        last.into_iter().for_each(|entry| entry.answer(1));
        assert!(gather(&queue, MOST, halves(10)).await.is_none());
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
    }
}
