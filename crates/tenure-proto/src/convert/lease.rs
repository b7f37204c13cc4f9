//! Leases, waiters and deeds.

use std::time::Duration;

use tenure::Error;
use tenure::lease::{Deed, LeaseInfo, Owner, Renewed, WaiterInfo};

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
pub fn remains_of(info: &LeaseInfo) -> v1::Remains {
    v1::Remains {
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

impl From<&Deed> for v1::Deed {
    fn from(deed: &Deed) -> Self {
        Self {
            scope: deed.id.clone(),
            token: deed.token,
            nonce: deed.nonce.clone(),
            revision: deed.revision,
            ttl_ms: ms_up(deed.ttl),
            owner: deed.owner.to_string(),
            reapable: deed.reapable,
            line: deed.line.clone(),
        }
    }
}

impl TryFrom<v1::Deed> for Deed {
    type Error = Error;

    fn try_from(deed: v1::Deed) -> Result<Self, Error> {
        let Some((name, start)) = deed.owner.split_once('#') else {
            let reason =
                "it is the one of a deed, written name#start; send the deed back as it came";
            return Err(Error::invalid(format!("owner {:?}", deed.owner), reason));
        };
        Ok(Self {
            owner: Owner::from_parts(name, start)?,
            line: if deed.line.is_empty() { deed.scope.clone() } else { deed.line },
            id: deed.scope,
            token: deed.token,
            nonce: deed.nonce,
            revision: deed.revision,
            ttl: Duration::from_millis(deed.ttl_ms),
            reapable: deed.reapable,
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
