//! Leases, waiters and grants.

use std::time::Duration;

use tenure::Error;
use tenure::lease::{LeaseGrant, LeaseInfo, Owner, Renewed, WaiterInfo};

use super::{ms_down, ms_up};
use crate::v1;

/// A lease as people and programs see it.
pub fn lease_of(info: &LeaseInfo) -> v1::Lease {
    v1::Lease {
        scope: info.id.clone(),
        holder: info.holder.to_string(),
        token: info.token,
        revision: info.revision,
        acquired_at_ms: info.acquired_at_ms,
        ttl_ms: ms_up(info.ttl),
        expires_in_ms: info.expires_in.map(ms_down),
        metadata: info.metadata.clone(),
    }
}

/// What is left to reap of a lease.
pub fn orphan_of(info: &LeaseInfo) -> v1::Orphan {
    v1::Orphan {
        scope: info.id.clone(),
        holder: info.holder.to_string(),
        token: info.token,
        nonce: info.nonce.clone(),
        revision: info.revision,
        acquired_at_ms: info.acquired_at_ms,
        metadata: info.metadata.clone(),
    }
}

/// Somebody who waits.
pub fn waiter_of(info: &WaiterInfo) -> v1::Waiter {
    v1::Waiter { owner: info.owner.to_string(), place: info.place, since_ms: info.since_ms }
}

impl From<&LeaseGrant> for v1::LeaseGrant {
    fn from(grant: &LeaseGrant) -> Self {
        Self {
            scope: grant.id.clone(),
            token: grant.token,
            nonce: grant.nonce.clone(),
            revision: grant.revision,
            ttl_ms: ms_up(grant.ttl),
            owner: grant.owner.to_string(),
            reapable: grant.reapable,
            queue: grant.queue.clone(),
        }
    }
}

impl TryFrom<v1::LeaseGrant> for LeaseGrant {
    type Error = Error;

    fn try_from(grant: v1::LeaseGrant) -> Result<Self, Error> {
        let Some((name, start)) = grant.owner.split_once('#') else {
            let reason =
                "it is the one of a grant, written name#start; send the grant back as it came";
            return Err(Error::invalid(format!("owner {:?}", grant.owner), reason));
        };
        Ok(Self {
            owner: Owner::from_parts(name, start)?,
            queue: if grant.queue.is_empty() { grant.scope.clone() } else { grant.queue },
            id: grant.scope,
            token: grant.token,
            nonce: grant.nonce,
            revision: grant.revision,
            ttl: Duration::from_millis(grant.ttl_ms),
            reapable: grant.reapable,
            // Known to the one who asked for it, and to nobody since.
            remaining: Duration::ZERO,
        })
    }
}

impl From<&Renewed> for v1::Renewal {
    fn from(renewed: &Renewed) -> Self {
        Self {
            revision: renewed.revision,
            ttl_ms: ms_up(renewed.ttl),
            remaining_ms: ms_down(renewed.remaining),
        }
    }
}
