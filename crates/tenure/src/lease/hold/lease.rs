//! The handle of a lease that is held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::flaws::{Flaw, planted};
use crate::lease::end::handover;
use crate::lease::end::release::{self, Outcome};
use crate::lease::hold::heartbeat;
use crate::lease::hold::renew;
use crate::lease::hold::state::Held;
use crate::lease::inner::Inner;
use crate::lease::{LeaseGrant, LeaseObserver, Loss, Metadata, Owner};
use crate::store::Fence;
use crate::{Error, Result};

/// A lease that is held, and renewed in the background for as long as this handle lives.
///
/// Dropping the handle releases the lease as a best effort: in the background, without telling how
/// it went. Release it yourself where that matters, and only after the work it guards has stopped.
#[must_use = "a lease is released when its handle is dropped"]
pub struct Lease {
    held: Arc<Held>,
    inner: Arc<Inner>,
    queue: Arc<str>,
}

impl Lease {
    pub(crate) fn new(inner: &Arc<Inner>, held: Arc<Held>, queue: &Arc<str>) -> Self {
        Self { held, inner: Arc::clone(inner), queue: Arc::clone(queue) }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The queue of those who wait for it.
    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    /// What is held, as people write it.
    pub fn id(&self) -> &str {
        &self.held.key.id
    }

    /// Unique to this acquisition, for ever.
    pub fn lease_key(&self) -> String {
        crate::lease::record::tagged(self.id(), &self.held.nonce)
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        &self.held.owner
    }

    /// The fencing token: greater than that of every earlier holder of this scope.
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// What to put on a commit that must not apply once this lease is lost.
    pub fn fence(&self) -> Fence {
        self.inner.fence(&self.held)
    }

    /// Lets somebody else see whether it is held.
    pub fn observer(&self) -> LeaseObserver {
        LeaseObserver::new(&self.inner, &self.held)
    }

    /// The life that each renewal grants.
    pub fn ttl(&self) -> Duration {
        self.held.timing.ttl
    }

    /// The instant, on the uptime of the store's [`crate::clock::Clock`], after which the holder
    /// must not act. Moves on with every renewal.
    pub fn valid_until(&self) -> Duration {
        self.held.state().valid_until
    }

    /// How long the holder may still act if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining(&self.held)
    }

    /// Whether the holder may act now. Asks this machine's clock only, so it is right even if
    /// everything else hangs. It cannot be right about the next instant: fence what matters.
    pub fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// Why it is no longer held; `None` while it is.
    pub fn loss(&self) -> Option<Loss> {
        self.inner.loss(&self.held)
    }

    /// Resolves when the lease is no longer held, with the reason.
    pub async fn lost(&self) -> Loss {
        self.inner.lost(&self.held).await
    }

    /// Runs a future while the lease is held, and drops it at the instant the lease is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// # use tenure::{lease::{Coordinator, Terms}, store::memory::MemoryStore};
    /// # let coordinator = Coordinator::new(MemoryStore::new().into_store())?;
    /// let lease = coordinator.acquire(&"billing.nightly/close".parse()?, &Terms::new()).await?;
    /// match lease.run(async { /* close the books */ 42 }).await {
    ///     Ok(done) => assert_eq!(done, 42),
    ///     Err(loss) => eprintln!("interrupted: {loss}"),
    /// }
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> std::result::Result<F::Output, Loss> {
        tokio::select! {
            biased;
            loss = self.lost() => Err(loss),
            output = work => Ok(output),
        }
    }

    /// Renews it now, besides the renewals that happen anyway.
    pub async fn renew(&self) -> Result<()> {
        let mut results = renew::renew_now(&self.inner, vec![Arc::clone(&self.held)]).await;
        results.pop().unwrap_or(Ok(()))
    }

    /// Tells everybody something else about the holder, for instance a new address.
    pub async fn proclaim(&self, metadata: Metadata) -> Result<()> {
        if let Some(loss) = self.loss() {
            return Err(self.held.lost(&loss));
        }
        let before = std::mem::replace(&mut self.held.state().metadata, metadata);
        let sent = self.inner.clock.uptime();
        match self.inner.store.commit(heartbeat::same_again(&self.held)).await {
            Ok(committed) => {
                if let Some(result) = committed.first_put() {
                    self.held.renewed(sent, result.revision);
                }
                Ok(())
            }
            Err(error) => {
                if !error.is_unknown() {
                    self.held.state().metadata = before;
                }
                Err(error)
            }
        }
    }

    /// Lets go, after the work has stopped. Hooks are not asked.
    ///
    /// Once begun it is finished: if this future is dropped halfway, in the background. The same goes
    /// for the other ways to let go.
    pub async fn release(self) -> Result<()> {
        release::release(&self.inner, &[Arc::clone(&self.held)], Outcome::Plain).await
    }

    /// Releases without giving up the handle: what a gate does where that mistake is planted.
    pub(crate) async fn release_in_place(&self) {
        let _ = self
            .inner
            .store
            .commit(
                crate::store::Commit::new()
                    .delete(self.held.key.clone(), crate::store::Expect::Token(self.held.token)),
            )
            .await;
    }

    /// Lets go with a value, which the hook gets to see in the same commit.
    pub async fn release_ok(self, value: &[u8]) -> Result<()> {
        release::release(&self.inner, &[Arc::clone(&self.held)], Outcome::Ok(value)).await
    }

    /// Lets go with an error, which the hook gets to see in the same commit.
    pub async fn release_fail(self, error: &str) -> Result<()> {
        release::release(&self.inner, &[Arc::clone(&self.held)], Outcome::Fail(error)).await
    }

    /// Stops renewing it here and hands out its grant, with which it is renewed and released through
    /// any [`crate::lease::Coordinator`] on the same store. It is not released. Hooks stay behind: a client
    /// that has the grant changes the lease alone.
    pub fn detach(self) -> LeaseGrant {
        let remaining = self.remaining();
        self.inner.detach(&self.held);
        LeaseGrant {
            id: self.held.key.id.clone(),
            queue: self.queue.to_string(),
            owner: self.held.owner.clone(),
            token: self.held.token,
            nonce: self.held.nonce.to_string(),
            revision: self.held.state().revision,
            ttl: self.held.timing.ttl,
            reapable: self.held.reapable,
            remaining,
        }
    }

    /// Passes the lease on to somebody who waits for it, by name or by `name#nonce`, after the work
    /// has stopped. One commit: there is no instant without a holder and none with two.
    ///
    /// # Errors
    /// With [`Error::Invalid`] if no such waiter is in the queue. The handle comes back then, still held.
    /// If the outcome stays [`Error::Unknown`], the lease is let go: it may be passed on at any moment.
    pub async fn hand_over(self, successor: &str) -> std::result::Result<(), (Self, Error)> {
        match handover::hand_over(&self.inner, &self.held, &self.queue, successor).await {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (inner, held) = (Arc::clone(&self.inner), Arc::clone(&self.held));
        if let Some(loss) = held.ended(inner.clock.uptime()) {
            return inner.end(&held, loss);
        }
        if planted(Flaw::KeepsWhatIsDropped) {
            return inner.stop_renewing(&held);
        }
        if !held.leave() {
            // A release that has begun sees to the rest.
            return;
        }
        self.inner.clean_up(async move {
            if let Err(error) = release::release(&inner, &[held], Outcome::Plain).await {
                tracing::debug!(%error, "a dropped lease stays until it expires");
            }
        });
    }
}

impl From<&Lease> for Fence {
    fn from(lease: &Lease) -> Self {
        lease.fence()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.id())
            .field("token", &self.token())
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}
