//! Leases, waiters and deeds.

use tenure::lease::{LeaseInfo, WaiterInfo};

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

/// Somebody who waits.
pub fn waiter_of(info: &WaiterInfo) -> v1::Waiter {
    v1::Waiter { owner: info.owner.to_string(), place: info.place, since_ms: info.since_ms }
}
