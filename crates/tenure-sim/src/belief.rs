//! What a process believes to hold, looked at from outside without disturbing it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure::gate::Term;
use tenure::lease::{Lease, LeaseObserver, Leases, Loss};

use crate::process::Process;

/// A lease handle as it is now.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Why it is no longer held.
    pub loss: Option<Loss>,
    /// The instant, on its process's clock, after which its holder must not act.
    pub valid_until: Duration,
    /// The life that each renewal grants.
    pub ttl: Duration,
}

impl From<&Lease> for Seen {
    fn from(lease: &Lease) -> Self {
        Self { loss: lease.loss(), valid_until: lease.valid_until(), ttl: lease.ttl() }
    }
}

/// A way to look at a handle for as long as its owner keeps it.
pub type Look = Box<dyn Fn() -> Option<Seen> + Send + Sync>;

/// Looks at a lease.
pub fn lease(lease: &Arc<Lease>) -> Look {
    let weak: Weak<Lease> = Arc::downgrade(lease);
    Box::new(move || weak.upgrade().map(|lease| Seen::from(&*lease)))
}

/// Looks at one of several leases.
pub fn one_of(leases: &Arc<Leases>, at: usize) -> Look {
    let weak = Arc::downgrade(leases);
    Box::new(move || weak.upgrade()?.iter().nth(at).map(Seen::from))
}

/// Looks at the lease of a gate's term, through one of its loops.
pub fn term(term: &Arc<Term>) -> Look {
    let weak = Arc::downgrade(term);
    Box::new(move || weak.upgrade()?.lease().map(Seen::from))
}

/// Somebody was handed a lease.
pub struct Belief {
    /// Who.
    pub process: Arc<Process>,
    /// What.
    pub id: String,
    /// Under which token.
    pub token: u64,
    /// The handle.
    pub look: Look,
    /// The first reason it gave for its loss.
    pub first: Option<Loss>,
}

/// A handle that its holder is about to let go of: there is nothing to look at afterwards, but a
/// observer is still told.
pub struct Parting {
    /// Sees how it ends.
    pub observer: LeaseObserver,
    /// What was told before.
    pub before: Option<Loss>,
    /// When it began.
    pub since_ms: i64,
}

impl Parting {
    /// With this handle, now.
    pub fn with(lease: &Lease, now_ms: i64) -> Self {
        Self { observer: lease.observer(), before: lease.loss(), since_ms: now_ms }
    }
}
