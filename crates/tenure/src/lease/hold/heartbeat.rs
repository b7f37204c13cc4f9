//! A renewal that has to change something else in the same commit.

use crate::lease::hold::state::Held;
use crate::lease::hooks::{HookContext, Hooks, LeaseRef};
use crate::lease::inner::Inner;
use crate::lease::record::{LeaseRecord, encode};
use crate::store::{Commit, Expect, Put, Touched};
use crate::{Error, Result};

/// The put that starts a lease's life anew and changes nothing about it.
pub(crate) fn same_again(held: &Held) -> Put {
    let record = LeaseRecord {
        holder: held.owner.name().into(),
        start: held.owner.start().into(),
        nonce: held.nonce.to_string(),
        acquired_at_ms: held.acquired_at_ms,
        metadata: held.metadata(),
    };
    Put::new(held.key.clone(), encode(&record))
        .expect(Expect::Token(held.token))
        .ttl(held.timing.ttl)
}

/// Renews one lease together with what its hook adds.
pub(crate) async fn with_hooks(inner: &Inner, held: &Held, hooks: &dyn Hooks) -> Result<Touched> {
    let subject = LeaseRef {
        id: &held.key.id,
        nonce: &held.nonce,
        holder: &held.owner,
        token: Some(held.token),
    };
    let mut draft = HookContext { store: &inner.store, commit: Commit::new() };
    hooks.will_heartbeat(subject, &mut draft).await?;
    let commit = Commit::from(same_again(held)).and(draft.commit);
    match inner.store.commit(commit).await?.first_put() {
        Some(result) => Ok(Touched { revision: result.revision, ttl: held.timing.ttl }),
        None => Err(Error::unknown(inner.backend(), "the store did not say what it wrote")),
    }
}
