//! The paper of a lease: all it takes to renew and release it anywhere.

use std::time::Duration;

use crate::lease::hold::state::NewTenure;
use crate::lease::record::LEASE;
use crate::lease::{Metadata, Owner, Timing};
use crate::store::{Capabilities, Fence, Touch};
use crate::{Error, Key};

/// A lease on paper: plain data, enough to [renew](crate::lease::Coordinator::renew_grants),
/// [release](crate::lease::Coordinator::release_grant) and
/// [hand over](crate::lease::Coordinator::hand_over_grant) a lease at a replica that has never seen it.
///
/// It is how a server holds leases for owners who are elsewhere: the server keeps nothing, the owner
/// keeps the grant and has it renewed in time. A grant is no secret and proves nothing; who may use it
/// is for the server to decide. Comes from [`crate::lease::Lease::detach`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The id of the lease object: the scope as people write it, with `#…` behind it for a shared
    /// one.
    pub id: String,
    /// The wait queue of those who want it: the scope, or the group of a slot.
    pub queue: String,
    /// Who holds it.
    pub owner: Owner,
    /// The fencing token.
    pub token: u64,
    /// Unique to this acquisition.
    pub nonce: String,
    /// The revision to renew by. One that is out of date costs a further read, no more.
    pub revision: u64,
    /// The life that each renewal asks for.
    pub ttl: Duration,
    /// Whether it leaves something to reap if it ends without a release.
    pub reapable: bool,
    /// How long the holder may still act, as of when this grant was handed out: counted from before
    /// the request to the store left, with the holder's margin taken off. A client that gets it over a
    /// network counts it from before it asked.
    pub remaining: Duration,
}

/// What a renewal by grant achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The revision to renew by next time.
    pub revision: u64,
    /// The life granted, at least the one asked for.
    pub ttl: Duration,
    /// How long the holder may act from now on, as in [`LeaseGrant::remaining`].
    pub remaining: Duration,
}

impl LeaseGrant {
    /// The lease object.
    pub fn key(&self) -> Key {
        Key::new(LEASE, self.id.clone())
    }

    /// What to put on a commit that must not apply once this lease is lost.
    pub fn fence(&self) -> Fence {
        Fence::new(self.key(), self.token)
    }

    /// The same lease after a renewal.
    #[must_use]
    pub fn renewed(mut self, renewed: &Renewed) -> Self {
        self.revision = renewed.revision;
        self.ttl = renewed.ttl;
        self.remaining = renewed.remaining;
        self
    }

    /// The times that hold for it on this store.
    pub(crate) fn timing(&self, capabilities: &Capabilities) -> Timing {
        Timing::new(capabilities.ttl.map_or(self.ttl, |ttl| ttl.grant(self.ttl)), None)
    }

    /// The touch that renews it at this revision.
    pub(crate) fn touch(&self, revision: u64, capabilities: &Capabilities) -> Touch {
        Touch { key: self.key(), revision, ttl: self.timing(capabilities).ttl }
    }

    /// As if it had been granted at this instant, and renewed by nobody. What it takes to act on it
    /// for the length of one call.
    pub(crate) fn new_tenure(&self, capabilities: &Capabilities, now: Duration) -> NewTenure {
        NewTenure {
            key: self.key(),
            owner: self.owner.clone(),
            nonce: self.nonce.as_str().into(),
            token: self.token,
            revision: self.revision,
            timing: self.timing(capabilities),
            sent: now,
            reapable: self.reapable,
            hooks: None,
            metadata: Metadata::new(),
            acquired_at_ms: 0,
        }
    }

    /// The error of a call that acts as if it were still held.
    pub(crate) fn lost(&self, current: Option<u64>) -> Error {
        Error::Lost { key: self.key(), token: self.token, current }
    }
}

impl From<&LeaseGrant> for Fence {
    fn from(grant: &LeaseGrant) -> Self {
        grant.fence()
    }
}

/// What is left for the holder of a renewal that was sent at one instant and answered by another.
/// `None` if nothing is.
pub(crate) fn remaining(timing: Timing, sent: Duration, now: Duration) -> Option<Duration> {
    timing.valid_until(sent).checked_sub(now).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_counts_from_before_the_request_left_and_leaves_a_margin() {
        let second = Duration::from_secs(1);
        let timing = Timing::new(10 * second, None);
        assert_eq!(remaining(timing, 100 * second, 102 * second), Some(7 * second));
        assert_eq!(remaining(timing, 100 * second, 109 * second), None);
        assert_eq!(remaining(timing, 100 * second, 200 * second), None);
    }
}
