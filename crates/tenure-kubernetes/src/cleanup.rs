//! Deletes Leases that nobody holds, if the user wants that.
//!
//! A release and a list trigger it. The deletion names uid and resourceVersion, so a Lease that somebody
//! has acquired meanwhile stays. Tokens go on rising without the Lease, because they are revisions of the
//! whole cluster.

use crate::observe::Sight;
use crate::record;
use crate::shared::Shared;
use crate::wire::Lease;

/// Deletes this Lease in the background if we have seen it idle for long enough. Must be called on the
/// store's runtime.
pub(crate) fn delete_if_idle(shared: &Shared, lease: &Lease, sight: Sight) {
    let Some(after) = shared.idle else { return };
    let age = shared.clock.uptime().saturating_sub(sight.at);
    if age < after || !record::is_idle(lease) {
        return;
    }
    let (api, lease, room) = (shared.api.clone(), lease.clone(), shared.deletions.clone());
    // The number of deletions at once is limited; the next list finds those that had no room.
    let Ok(room) = room.try_acquire_owned() else { return };
    tokio::spawn(async move {
        if let Err(failure) = api.delete(&lease).await {
            let error = failure.of_write();
            tracing::debug!(%error, lease = %lease.metadata.name, "an idle lease stays");
        }
        drop(room);
    });
}
