//! Waiting for something until a deadline, with a timer only from when one is needed.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;

use super::Terms;
use super::agent::Agent;

/// How long somebody waits.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    deadline: Option<Duration>,
    /// What is waited for comes forward before the deadline, ready or not: then is early enough to
    /// set a timer. Most that is waited for is ready by then.
    comes_forward: bool,
}

impl Patience {
    /// As these terms say, counted from now.
    pub(crate) fn of(terms: &Terms, now: Duration) -> Self {
        Self { deadline: terms.wait.deadline(now), comes_forward: false }
    }

    /// The same for a first try, which is nothing but calls of the store. Each of them ends in time.
    pub(crate) fn for_a_try(self, agent: &Agent, terms: &Terms, now: Duration) -> Self {
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_sub(now));
        // A hook may do as it likes.
        let comes_forward = terms.hooks.is_none() && agent.store.timeout() <= left;
        Self { comes_forward, ..self }
    }

    /// Waits; `None` when the deadline came first.
    pub(crate) async fn wait<T>(
        self,
        agent: &Agent,
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
            let timer = timer.get_or_insert_with(|| agent.clock.sleep_until(deadline));
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}
