//! The kinds that Tenure keeps leases, waiters and slots in. To write one of them by hand would be to lie
//! to everybody who relies on leases, so `tenure object` refuses it.

use tenure::lease::{HAND_OVER, LEASE, LeaseRecord, ORPHAN, READERS, REVOKED, SLOTS, WAITER};
use tenure::{Error, Object, Result};

/// All of them, and what does by right what somebody may want there.
const KEPT: &[(&str, &str)] = &[
    (LEASE, "`tenure run` holds a lease, `tenure lease revoke` ends one"),
    (WAITER, "`tenure run` waits in line"),
    (ORPHAN, "`tenure lease reap` removes what is left"),
    (SLOTS, "`tenure slots resize` changes the size of a group"),
    (READERS, "it goes with the leases of readers"),
    (REVOKED, "`tenure lease revoke` leaves such a note"),
    (HAND_OVER, "`tenure lease hand-over` asks for it"),
];

/// Refuses to write objects of a kind that Tenure keeps.
pub(super) fn refuse(kind: &str) -> Result<()> {
    match KEPT.iter().find(|(kept, _)| *kept == kind) {
        None => Ok(()),
        Some((_, instead)) => {
            let reason = format!(
                "Tenure itself keeps its objects, so they are not written by hand; {instead}"
            );
            Err(Error::invalid(format!("kind {kind:?}"), reason))
        }
    }
}

/// Whether an object among the leases is none: that may be removed by hand, since nothing else does.
pub(super) fn is_foreign(object: &Object) -> bool {
    object.key.kind == LEASE && serde_json::from_slice::<LeaseRecord>(&object.payload).is_err()
}
