//! Who waits in a queue, as the store tells it.

use crate::lease::inner::Inner;
use crate::lease::queue::wait_queues::RESIZED;
use crate::lease::record::{WAITER, WaiterInfo, WaiterRecord, decode, untagged};
use crate::lease::{Coordinator, Owner};
use crate::store::Query;
use crate::{Key, Result};

/// Somebody in the queue.
pub(crate) struct Waiter {
    pub(crate) key: Key,
    pub(crate) revision: u64,
    /// The revision at which it joined.
    place: u64,
    pub(crate) owner: Owner,
    pub(crate) record: WaiterRecord,
}

/// Everybody in the queue of this name, first come first. What is no record of a waiter is passed over.
pub(crate) async fn waiters(inner: &Inner, queue: &str) -> Result<Vec<Waiter>> {
    let mut waiters = Vec::new();
    for object in inner.store.list_all(&Query::new(WAITER).prefix(format!("{queue}#"))).await? {
        let Some((name, nonce)) = untagged(&object.key.id) else { continue };
        if name != queue || nonce.is_empty() || nonce == RESIZED {
            continue;
        }
        let Ok(record) = decode::<WaiterRecord>(&object, inner.backend()) else { continue };
        let Ok(owner) = Owner::from_parts(&record.holder, &record.start) else { continue };
        let (revision, place) = (object.revision, object.created_revision);
        waiters.push(Waiter { key: object.key, revision, place, owner, record });
    }
    waiters.sort_by_key(|waiter| waiter.place);
    Ok(waiters)
}

/// The first in the queue of this name; one that a hand-over can satisfy if there is any.
pub(crate) async fn find_waiter(
    inner: &Inner,
    queue: &str,
    successor: &str,
) -> Result<Option<Waiter>> {
    let called = waiters(inner, queue).await?.into_iter();
    let called = called.filter(|waiter| waiter.owner.is_called(successor));
    Ok(called.min_by_key(|waiter| waiter.record.no_hand_over))
}

impl Coordinator {
    /// The queue of this name, first come first.
    pub(crate) async fn waiters(&self, queue: &str) -> Result<Vec<WaiterInfo>> {
        let info = |waiter: Waiter| WaiterInfo {
            owner: waiter.owner,
            place: waiter.place,
            since_ms: waiter.record.since_ms,
        };
        Ok(waiters(self.inner(), queue).await?.into_iter().map(info).collect())
    }
}
