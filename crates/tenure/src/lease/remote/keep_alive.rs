//! Liveness by proxy: the replica that hears from an owner keeps its lease alive.

use std::time::Duration;

use crate::lease::acquire::claim::read;
use crate::lease::coordinator::lease_put;
use crate::lease::inner::Inner;
use crate::lease::record::lease_key;
use crate::lease::{Metadata, Owner, Scope};
use crate::store::{Expect, WriteResult};
use crate::{Error, Result};

/// Others may hear from the same owner at the same moment.
const ATTEMPTS: u32 = 8;

/// Acquires a lease for an owner, or starts its life anew. What the owner has keeps its nonce, whoever
/// acquired it: every proxy writes the same record, so that an unchanged one costs no event, and a
/// handle of the owner's own finds its lease again. A new tenure draws a new one.
pub(crate) async fn keep_alive(
    inner: &Inner,
    scope: &Scope,
    owner: &Owner,
    ttl: Duration,
    metadata: Metadata,
) -> Result<WriteResult> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let current = read(inner, &lease_key(scope)).await?;
        let (expect, nonce, since) = match &current {
            Some(info) if info.holder == *owner => {
                (Expect::Revision(info.revision), info.nonce.as_str().into(), info.acquired_at_ms)
            }
            Some(info) => {
                return Err(Error::Held {
                    scope: scope.to_string(),
                    holder: Some(info.holder.to_string()),
                    token: info.token,
                    expires_in: info.expires_in.unwrap_or_default(),
                });
            }
            None => (Expect::Absent, inner.nonce(), inner.clock.wall_ms()),
        };
        let put = lease_put(scope, owner, &nonce, since, metadata.clone(), ttl);
        match inner.store.commit(put.expect(expect)).await {
            Ok(committed) => {
                return committed.first_put().ok_or_else(|| {
                    Error::unknown(inner.backend(), "the store did not say what it wrote")
                });
            }
            Err(error) if error.is_conflict() || error.is_not_found() => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::unavailable(inner.backend(), "others were quicker")))
}
