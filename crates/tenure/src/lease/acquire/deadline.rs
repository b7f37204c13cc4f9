//! Waiting for something until a deadline, with a timer only from when one is needed.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::lease::Terms;
use crate::lease::inner::Inner;

/// How long somebody waits.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    deadline: Option<Duration>,
    /// What is waited for comes forward before the deadline, ready or not: then is early enough to
    /// set a timer. Most that is waited for is ready by then.
    comes_forward: bool,
}

impl Deadline {
    /// As these terms say, counted from now.
    pub(crate) fn of(terms: &Terms, now: Duration) -> Self {
        Self { deadline: terms.wait.deadline(now), comes_forward: false }
    }

    /// The same for a first try, which is nothing but calls of the store. Each of them ends in time.
    pub(crate) fn for_a_try(self, inner: &Inner, terms: &Terms, now: Duration) -> Self {
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_sub(now));
        // A hook may do as it likes.
        let comes_forward = terms.hooks.is_none() && inner.store.timeout() <= left;
        Self { comes_forward, ..self }
    }

    /// Waits; `None` when the deadline came first.
    pub(crate) async fn wait<T>(
        self,
        inner: &Inner,
        mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Option<T> {
        let Some(deadline) = self.deadline else { return Some(work.await) };
        let mut comes_forward = self.comes_forward;
        let mut timer: Option<BoxFuture<'static, ()>> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            if std::mem::take(&mut comes_forward) {
                return Poll::Pending;
            }
            let timer = timer.get_or_insert_with(|| inner.clock.sleep_until(deadline));
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use super::*;
    use crate::lease::Coordinator;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn a_deadline_counts_whether_or_not_a_timer_was_set_at_once() {
        let [soon, later] = [10, 50].map(Duration::from_millis);
        let store = MemoryStore::new().into_store().with_timeout(soon);
        let coordinator = Coordinator::new(store).unwrap();
        let inner = coordinator.inner();
        let now = inner.clock.uptime();
        let terms = Terms::new().wait(later);
        let at_once = Deadline::of(&terms, now);
        let for_a_try = at_once.for_a_try(inner, &terms, now);
        assert!(for_a_try.comes_forward && !at_once.comes_forward);
        for deadline in [at_once, for_a_try] {
            assert_eq!(deadline.wait(inner, pin!(async { 7 })).await, Some(7));
            let work = async {
                tokio::task::yield_now().await;
                pending::<()>().await;
            };
            assert_eq!(deadline.wait(inner, pin!(work)).await, None);
            assert!(inner.clock.uptime() >= now + later);
        }
        // A call that may take longer than the wait is not relied upon.
        let terms = Terms::new().wait(soon / 2);
        let now = inner.clock.uptime();
        let short = Deadline::of(&terms, now).for_a_try(inner, &terms, now);
        assert_eq!(short.wait(inner, pin!(pending::<()>())).await, None);
    }
}
