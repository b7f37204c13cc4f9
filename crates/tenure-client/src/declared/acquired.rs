//! A declared lease that is held.

use tenure::Result;
use tenure::lease::Lease;

use super::carried::CarriedLease;
use super::context::{Closing, Deadline, LeaseContext};
use super::ended::Ended;

/// A declared lease that is held, and renewed for as long as this lives. Dropped, it is let go of in the
/// background; release it yourself where that matters, and only after the work has stopped.
#[must_use = "a lease is released when its handle is dropped"]
pub struct Acquired {
    context: LeaseContext,
    /// Dropped before the lease: the work in its context must stop first.
    closing: Closing,
    lease: Lease,
}

impl Acquired {
    pub(super) fn new(lease: Lease, deadline: Option<Deadline>) -> Self {
        let own = CarriedLease::here(lease.observer());
        let context = LeaseContext::new(LeaseContext::current(), [own], deadline);
        Self { closing: context.until_dropped(), context, lease }
    }

    /// The lease itself.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What work under it runs in, and passes on.
    pub fn context(&self) -> &LeaseContext {
        &self.context
    }

    /// Does work under it, which is dropped when the lease is lost or its deadline comes.
    pub async fn run<F: Future>(
        &self,
        work: impl FnOnce(LeaseContext) -> F,
    ) -> std::result::Result<F::Output, Ended> {
        let work = self.context.within(|| work(self.context.clone()));
        self.context.run(work).await
    }

    /// Lets go, after the work has stopped.
    pub async fn release(self) -> Result<()> {
        drop(self.closing);
        self.lease.release().await
    }

    /// Lets go with a value, which hooks get to see in the same commit.
    pub async fn release_ok(self, value: &[u8]) -> Result<()> {
        drop(self.closing);
        self.lease.release_ok(value).await
    }

    /// Lets go with an error, which hooks get to see in the same commit.
    pub async fn release_fail(self, error: &str) -> Result<()> {
        drop(self.closing);
        self.lease.release_fail(error).await
    }
}

impl std::fmt::Debug for Acquired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquired").field("lease", &self.lease).finish_non_exhaustive()
    }
}
