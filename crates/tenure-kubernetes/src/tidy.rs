//! Deleting Leases that nobody holds, where that is wanted.
//!
//! It happens by the way: after a release, and to what a list comes across. The deletion names uid and
//! resourceVersion, so it cannot meet a Lease that somebody has taken meanwhile. Tokens go on rising
//! without the Lease, because they are revisions of the whole cluster.

use crate::observe::Sight;
use crate::record;
use crate::shared::Shared;
use crate::wire::Lease;

/// Deletes this Lease if it has been idle for long enough, as far as we have seen. Must be called on
/// the store's own thread; does not wait for it.
pub(crate) fn idle(shared: &Shared, lease: &Lease, sight: Sight) {
    let Some(after) = shared.idle else { return };
    let age = shared.clock.uptime().saturating_sub(sight.at);
    if age < after || !record::is_idle(lease) {
        return;
    }
    let (api, lease, room) = (shared.api.clone(), lease.clone(), shared.deletions.clone());
    // Many at once would be unkind to the server; what finds no room is come across again.
    let Ok(room) = room.try_acquire_owned() else { return };
    tokio::spawn(async move {
        if let Err(failure) = api.delete(&lease).await {
            let error = failure.of_write();
            tracing::debug!(%error, lease = %lease.metadata.name, "an idle lease stays");
        }
        drop(room);
    });
}
