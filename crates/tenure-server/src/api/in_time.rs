//! Requests that have room to be worked on, and an answer in time.
//!
//! What the store is asked in one call it answers in time by itself: no call of this server may take
//! longer than a request. This is for what takes several of them.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure::Error;
use tenure::lease::Wait;

use super::{AcquireTerms, View};
use crate::Fault;

/// Work on a request that stays where it is: it is large, and handed on by value it would be kept once
/// for each hand. So it comes pinned, in a box or in place.
pub trait Work<T>: Future<Output = Result<T, Fault>> + Unpin {}

impl<T, W: Future<Output = Result<T, Fault>> + Unpin> Work<T> for W {}

impl View {
    /// Works on something that changes nothing, with room and in time.
    pub async fn read<T>(&self, work: impl Work<T>) -> Result<T, Fault> {
        let _room = self.api.room().request()?;
        self.in_time(work, |late| Error::unavailable("server", late)).await
    }

    /// Works on something that may have happened even if there is no answer.
    pub async fn write<T>(&self, work: impl Work<T>) -> Result<T, Fault> {
        let _room = self.api.room().request()?;
        self.in_time(work, |late| Error::unknown("server", late)).await
    }

    /// Acquires something, which takes its room itself. A wait takes as long as it takes; without one
    /// there is an answer in time.
    pub async fn acquiring<T>(&self, asked: &AcquireTerms, work: impl Work<T>) -> Result<T, Fault> {
        match asked.wait {
            // Giving up keeps what may have been acquired: the same owner can ask again and gets it.
            Wait::No if asked.may_ask_again() => {
                self.in_time(work, |late| Error::unknown("server", late)).await
            }
            // Giving up releases it.
            Wait::No => self.in_time(work, |late| Error::unavailable("server", late)).await,
            Wait::For(_) | Wait::Forever => work.await,
        }
    }

    /// Opens a stream, which has its room already. It may last, but has to begin in time.
    pub(super) async fn opening<T>(
        &self,
        work: impl Future<Output = tenure::Result<T>>,
    ) -> Result<T, Fault> {
        let work = pin!(async { Ok(work.await?) });
        self.in_time(work, |late| Error::unavailable("server", late)).await
    }

    async fn in_time<T>(&self, work: impl Work<T>, late: fn(String) -> Error) -> Result<T, Fault> {
        let limit = self.api.room().limits().request_timeout;
        match within(limit, work).await {
            Some(done) => done,
            None => Err(late(format!("the request was not done within {limit:?}")).into()),
        }
    }
}

/// What is done at once needs no timer.
async fn within<T>(limit: Duration, mut work: impl Future<Output = T> + Unpin) -> Option<T> {
    if let Poll::Ready(done) = futures::poll!(&mut work) {
        return Some(done);
    }
    tokio::time::timeout(limit, work).await.ok()
}
