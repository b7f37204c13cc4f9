//! A renewal that has to change something else in the same commit.

use super::agent::Agent;
use super::held::Held;
use super::hooks::{Draft, Hooks, Subject};
use super::record::{LeaseRecord, encode};
use crate::store::{Commit, Expect, Put, Touched, WriteResult, Written};
use crate::{Error, Result};

/// The put that starts a lease's life anew and changes nothing about it.
pub(crate) fn same_again(agent: &Agent, held: &Held) -> Put {
    let record = LeaseRecord {
        holder: agent.owner.name().into(),
        start: agent.owner.start().into(),
        nonce: held.nonce.to_string(),
        acquired_at_ms: held.acquired_at_ms,
        metadata: held.metadata(),
    };
    Put::new(held.key.clone(), encode(&record))
        .expect(Expect::Token(held.token))
        .ttl(held.timing.ttl)
}

/// Renews one lease together with what its hook adds.
pub(crate) async fn with_hooks(agent: &Agent, held: &Held, hooks: &dyn Hooks) -> Result<Touched> {
    let subject = Subject {
        id: &held.key.id,
        nonce: &held.nonce,
        holder: &agent.owner,
        token: Some(held.token),
    };
    let mut draft = Draft { store: &agent.store, commit: Commit::new() };
    hooks.will_heartbeat(subject, &mut draft).await?;
    let mut commit = draft.commit;
    commit.writes.insert(0, crate::store::Write::Put(same_again(agent, held)));
    let committed = agent.store.commit(commit).await?;
    match committed.writes.first() {
        Some(Written::Put(WriteResult { revision, .. }))
        | Some(Written::Unchanged(WriteResult { revision, .. })) => {
            Ok(Touched { revision: *revision, ttl: held.timing.ttl })
        }
        _ => Err(Error::unknown(agent.backend(), "the store did not say what it wrote")),
    }
}
