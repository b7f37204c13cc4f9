//! What a loop knows of the term it runs in.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::SharedClock;
use crate::lease::Lease;
use crate::store::Commit;

/// One term of work: from acquiring the lease to letting go of it. Cheap to clone.
#[derive(Clone)]
pub struct Term {
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) over: watch::Receiver<bool>,
    pub(super) clock: SharedClock,
}

impl Term {
    /// Whether the loop has to stop: it was told to, or the lease is no longer valid. Asked before
    /// each step, it costs nothing.
    pub fn is_over(&self) -> bool {
        *self.over.borrow() || self.lease.as_ref().is_some_and(|lease| !lease.is_valid())
    }

    /// Resolves when the loop has to stop.
    pub async fn over(&self) {
        let mut over = self.over.clone();
        // An error means that the gate itself is gone, which is the end of the term, too.
        let told = async {
            let _ = over.wait_for(|over| *over).await;
        };
        match &self.lease {
            Some(lease) => tokio::select! {
                biased;
                () = told => {}
                _ = lease.lost() => {}
            },
            None => told.await,
        }
    }

    /// Sleeps, but not past the end of the term. Whether the term still goes on.
    pub async fn sleep(&self, duration: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.over() => false,
            () = self.clock.sleep(duration) => true,
        }
    }

    /// Runs a future until the term ends, and drops it then.
    pub async fn run<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.over() => None,
            output = work => Some(output),
        }
    }

    /// The lease of this term; `None` in a gate that runs ungated.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_deref()
    }

    /// The fencing token; `None` in a gate that runs ungated.
    pub fn token(&self) -> Option<u64> {
        self.lease().map(Lease::token)
    }

    /// The same commit, made to apply only while this term's lease is held. Ungated, as it is.
    #[must_use]
    pub fn fence(&self, commit: impl Into<Commit>) -> Commit {
        let commit = commit.into();
        match self.lease() {
            Some(lease) => commit.fenced_by(lease),
            None => commit,
        }
    }
}
