//! Reaping: what is left to do for a lease that ended without a release.
//!
//! The lease itself vanishes at its expiry, so a reapable one writes a second, lasting record in the
//! commit that acquires it, under its own nonce. The release takes that record along. Whoever finds
//! it without its lease removes it in the commit that runs the hook; since a record can be removed
//! only once, the hook takes effect once per lease, however many coordinators reap.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Owner;
use super::agent::Agent;
use super::hooks::{Draft, ReapHook, is_worth_asking_again};
use super::record::{LEASE, LeaseInfo, LeaseRecord, REMAINS, RemainsRecord, decode};
use crate::store::{Commit, Delete, Expect, Query, Write};
use crate::{Error, Object, Result};

/// A hook that meets a conflict is asked again, so often.
const ATTEMPTS: u32 = 5;

/// Reaps all that is left under a prefix.
pub(crate) async fn reap(agent: &Agent, prefix: &str, hook: &dyn ReapHook) -> Result<usize> {
    let mut reaped = 0;
    let mut query = Query::new(REMAINS).prefix(prefix);
    loop {
        // Remains first, leases after: a lease that is missing from the later list has ended.
        let page = agent.store.list(&query).await?;
        let live = live(agent, &page.objects).await?;
        for object in page.objects {
            let remains: RemainsRecord = decode(&object, agent.backend())?;
            if !live.contains(&remains.record.nonce) {
                reaped += usize::from(reap_one(agent, &object, &remains, hook).await?);
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(reaped),
        }
    }
}

/// The nonces of those that still live, among the leases whose remains these are.
async fn live(agent: &Agent, remains: &[Object]) -> Result<BTreeSet<String>> {
    let (Some(first), Some(last)) = (remains.first(), remains.last()) else {
        return Ok(BTreeSet::new());
    };
    let lease_of = |object: &Object| -> Result<String> {
        Ok(decode::<RemainsRecord>(object, agent.backend())?.lease)
    };
    // Ids of remains are those of their leases and a tag, so both lists are in the same order.
    let (from, to) = (lease_of(first)?, lease_of(last)?);
    let query = Query::new(LEASE).from(from).until(format!("{to}\u{1}"));
    let mut nonces = BTreeSet::new();
    for object in agent.store.list_all(&query).await? {
        nonces.insert(decode::<LeaseRecord>(&object, agent.backend())?.nonce);
    }
    Ok(nonces)
}

async fn reap_one(
    agent: &Agent,
    object: &Object,
    remains: &RemainsRecord,
    hook: &dyn ReapHook,
) -> Result<bool> {
    let record = &remains.record;
    let info = LeaseInfo {
        id: remains.lease.clone(),
        holder: Owner::from_parts(&record.holder, &record.start)?,
        token: object.token,
        nonce: record.nonce.clone(),
        acquired_at_ms: record.acquired_at_ms,
        ttl: Duration::ZERO,
        expires_in: None,
        metadata: record.metadata.clone(),
        revision: object.revision,
    };
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let mut draft = Draft { store: &agent.store, commit: Commit::new() };
        hook.will_reap(&info, &mut draft).await?;
        let mut commit = draft.commit;
        let expect = Expect::Revision(object.revision);
        let removal = Delete { key: object.key.clone(), expect };
        commit.writes.insert(0, Write::Delete(removal));
        match agent.store.commit(commit).await {
            Ok(_) => {
                tracing::info!(lease = %info.id, holder = %info.holder, "reaped");
                return Ok(true);
            }
            // Somebody else has reaped it.
            Err(Error::NotFound { key } | Error::Conflict { key, .. }) if key == object.key => {
                return Ok(false);
            }
            Err(error) if error.is_unknown() => {
                if agent.store.get(&object.key).await?.is_none() {
                    // By us or by another; either way it is done, and counted once at most.
                    return Ok(true);
                }
                last = Some(error);
            }
            Err(error) if is_worth_asking_again(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::unavailable(agent.backend(), "it could not be reaped")))
}
