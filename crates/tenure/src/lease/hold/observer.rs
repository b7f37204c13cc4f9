//! Seeing from elsewhere whether a lease is held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::Loss;
use crate::lease::hold::state::Held;
use crate::lease::inner::Inner;
use crate::store::Fence;

/// Sees whether a lease is held, and cannot let go of it. Cheap to clone; for code that works under a
/// lease whose handle is with somebody else. Comes from [`crate::lease::Lease::observer`].
///
/// It holds nothing: when the handle is gone and the lease let go of, it has ended for its observers too.
#[derive(Clone)]
pub struct LeaseObserver {
    inner: Arc<Inner>,
    held: Arc<Held>,
}

impl LeaseObserver {
    pub(crate) fn new(inner: &Arc<Inner>, held: &Arc<Held>) -> Self {
        Self { inner: Arc::clone(inner), held: Arc::clone(held) }
    }

    /// What is held, as people write it.
    pub fn id(&self) -> &str {
        &self.held.key.id
    }

    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// What to put on a commit that must not apply once this lease is lost.
    pub fn fence(&self) -> Fence {
        self.inner.fence(&self.held)
    }

    /// How long the holder may still act if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining(&self.held)
    }

    /// Why it is no longer held; `None` while it is.
    pub fn loss(&self) -> Option<Loss> {
        self.inner.loss(&self.held)
    }

    /// Resolves when the lease is no longer held, with the reason.
    pub async fn lost(&self) -> Loss {
        self.inner.lost(&self.held).await
    }
}

impl fmt::Debug for LeaseObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseObserver")
            .field("id", &self.id())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::lease::{Coordinator, Loss, Terms};
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn an_observer_sees_what_the_handle_sees_and_outlives_it() {
        let coordinator = Coordinator::new(MemoryStore::new().into_store()).unwrap();
        let terms = Terms::new().ttl(Duration::from_secs(60));
        let lease = coordinator.acquire(&"a/k".parse().unwrap(), &terms).await.unwrap();
        let (kept, released) = (lease.observer(), lease.observer());
        assert_eq!((kept.id(), kept.token(), kept.fence()), ("a/k", lease.token(), lease.fence()));
        assert!(kept.loss().is_none() && kept.remaining() > Duration::from_secs(30));
        let waiting = tokio::spawn(async move { kept.lost().await });
        lease.release().await.unwrap();
        assert_eq!(waiting.await.unwrap(), Loss::Released);
        assert_eq!((released.loss(), released.remaining()), (Some(Loss::Released), Duration::ZERO));
    }
}
