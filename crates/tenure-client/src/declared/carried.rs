//! One lease that work is done under, held here or by a caller elsewhere.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tenure::lease::{LeaseObserver, Loss};
use tenure::store::Fence;

use super::elsewhere::Elsewhere;

/// A lease of a [`super::LeaseContext`].
#[derive(Clone)]
pub struct CarriedLease(Kind);

#[derive(Clone)]
enum Kind {
    /// Held by this process, which renews it.
    Here(LeaseObserver),
    /// Held by the caller of this process, or by its caller.
    Elsewhere(Arc<Elsewhere>),
}

impl CarriedLease {
    pub(super) fn here(observer: LeaseObserver) -> Self {
        Self(Kind::Here(observer))
    }

    pub(super) fn elsewhere(elsewhere: Elsewhere) -> Self {
        Self(Kind::Elsewhere(Arc::new(elsewhere)))
    }

    /// What is held, as people write it: its scope.
    pub fn id(&self) -> &str {
        match &self.0 {
            Kind::Here(observer) => observer.id(),
            Kind::Elsewhere(elsewhere) => elsewhere.id(),
        }
    }

    /// The fencing token.
    pub fn token(&self) -> u64 {
        match &self.0 {
            Kind::Here(observer) => observer.token(),
            Kind::Elsewhere(elsewhere) => elsewhere.token(),
        }
    }

    /// What to put on a commit that must not apply once this lease is lost.
    pub fn fence(&self) -> Fence {
        match &self.0 {
            Kind::Here(observer) => observer.fence(),
            Kind::Elsewhere(elsewhere) => elsewhere.fence(),
        }
    }

    /// Whether this process holds it, rather than its caller.
    pub fn is_held_here(&self) -> bool {
        matches!(self.0, Kind::Here(_))
    }

    /// How long it is held if no further renewal succeeds, as far as is known here. Of a lease that
    /// is held elsewhere it may be more, because nobody tells of its renewals.
    pub fn remaining(&self) -> Duration {
        match &self.0 {
            Kind::Here(observer) => observer.remaining(),
            Kind::Elsewhere(elsewhere) => elsewhere.remaining(),
        }
    }

    /// Why it is no longer held, as far as is known here.
    pub fn loss(&self) -> Option<Loss> {
        match &self.0 {
            Kind::Here(observer) => observer.loss(),
            Kind::Elsewhere(elsewhere) => elsewhere.loss(),
        }
    }

    /// Resolves when it is known here that it is no longer held.
    pub fn lost(&self) -> BoxFuture<'static, Loss> {
        match self.0.clone() {
            Kind::Here(observer) => Box::pin(async move { observer.lost().await }),
            Kind::Elsewhere(elsewhere) => Box::pin(elsewhere.lost()),
        }
    }
}

impl From<&CarriedLease> for Fence {
    fn from(lease: &CarriedLease) -> Self {
        lease.fence()
    }
}

impl fmt::Debug for CarriedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarriedLease")
            .field("id", &self.id())
            .field("token", &self.token())
            .field("held_here", &self.is_held_here())
            .finish_non_exhaustive()
    }
}
