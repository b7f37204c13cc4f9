//! The one retry helper: read, change, write if unchanged, and start over if another writer was faster.
//!
//! The store itself never retries a stale write, because only the caller knows how to merge. This
//! helper re-runs the caller's merge on the newest state, a few times, with jitter, and counts.

use std::time::Duration;

use super::{Expect, Put, Store, WriteResult};
use crate::random::below;
use crate::{Error, Key, Object, Result};

/// How often and how patiently to retry a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    attempts: u32,
    delay: Duration,
}

impl RetryPolicy {
    /// Between 3 and 5 attempts in all: fewer gives up on ordinary contention, more hides a design
    /// in which writers should not meet. Numbers outside are moved to the nearest end.
    pub fn attempts(attempts: u32) -> Self {
        Self { attempts: attempts.clamp(3, 5), ..Self::default() }
    }

    /// The mean pause before the second attempt; it doubles with each further one, and each is
    /// spread between nothing and twice its mean.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay.min(Duration::from_secs(1));
        self
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 5, delay: Duration::from_millis(5) }
    }
}

impl Store {
    /// Reads an object, lets `change` say what to write, and writes it if nobody else did meanwhile;
    /// otherwise reads again and asks `change` again. `change` may run several times, so it must
    /// not do anything but compute.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the attempts are used up (a gRPC handler answers `ABORTED`),
    /// [`Error::NotFound`] when the object is gone, and whatever `change` returns.
    pub async fn update_with_retry(
        &self,
        key: &Key,
        policy: RetryPolicy,
        mut change: impl FnMut(&Object) -> Result<Put>,
    ) -> Result<WriteResult> {
        for attempt in 1.. {
            let object =
                self.get(key).await?.ok_or_else(|| Error::NotFound { key: key.clone() })?;
            let put = change(&object)?;
            match self.put_if(put, Expect::Revision(object.revision)).await {
                Ok(result) => return Ok(result),
                Err(error @ Error::Conflict { .. }) if attempt >= policy.attempts => {
                    self.metrics.exhausted(&key.kind);
                    tracing::warn!(%key, attempt, %error, "update gave up after conflicts");
                    return Err(error);
                }
                Err(error @ Error::Conflict { .. }) => {
                    self.metrics.retried(&key.kind);
                    tracing::debug!(%key, attempt, %error, "update conflicted; reading again");
                    self.pause(policy.delay * 2u32.pow(attempt - 1)).await;
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn pause(&self, mean: Duration) {
        let spread = u64::try_from(mean.as_micros()).unwrap_or(u64::MAX).saturating_mul(2);
        let jitter = below(self.random.as_ref(), spread.saturating_add(1));
        self.clock.sleep(Duration::from_micros(jitter)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use futures::FutureExt as _;

    use super::*;
    use crate::clock::ManualClock;
    use crate::random::SeededRandom;
    use crate::store::memory::MemoryStore;

    /// How many milliseconds an update pauses in all that meets two conflicts.
    async fn pauses(seed: u64) -> u64 {
        let clock = ManualClock::new();
        let store = MemoryStore::new()
            .into_store()
            .with_clock(Arc::new(clock.clone()), Arc::new(SeededRandom::new(seed)));
        let key = Key::new("order", "1");
        store.commit(Put::new(key.clone(), "0")).await.unwrap();
        let update = tokio::spawn(async move {
            let (rival, mut turn) = (store.clone(), 0);
            let policy = RetryPolicy::default().delay(Duration::from_millis(100));
            let change = |object: &Object| {
                turn += 1;
                if turn <= 2 {
                    let theirs = Put::new(object.key.clone(), format!("rival {turn}"));
                    rival.commit(theirs).now_or_never().expect("memory keeps nobody waiting")?;
                }
                Ok(Put::new(object.key.clone(), "mine"))
            };
            store.update_with_retry(&key, policy, change).await
        });
        let mut waited = 0;
        loop {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            if update.is_finished() {
                update.await.unwrap().unwrap();
                return waited;
            }
            clock.advance(Duration::from_millis(1));
            waited += 1;
            assert!(waited <= 1_000, "it pauses for ever");
        }
    }

    #[tokio::test]
    async fn rivals_pause_for_different_times_that_grow_and_have_a_limit() {
        let mut all = HashSet::new();
        for seed in 0..10 {
            let waited = pauses(seed).await;
            // Means of 100 and 200 ms, each spread up to twice that.
            assert!(waited <= 601, "{waited} ms");
            all.insert(waited);
        }
        assert!(all.len() >= 8, "rivals stay in step: {all:?}");
        assert!(all.iter().any(|waited| *waited > 201), "the second pause is no longer: {all:?}");
    }
}
