//! When this process first saw each Lease as it is now: what expiry is judged by.
//!
//! A holder's clock is of no concern here. What was seen in this very state on our own steady clock,
//! and has not changed for as long as it may live, has not been renewed for that long. A newcomer
//! therefore waits one full duration. The state is told by uid and resourceVersion: any write to the
//! Lease starts the count anew, which can make us wait longer and never shorter.
//!
//! It also remembers Leases as they were last read or written here, so that the next write of a
//! holder needs no read before it; the resourceVersion decides whether the memory was right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wire::Lease;

/// Leases remembered at most. Beyond that those unchanged for longest are forgotten and count as
/// newly seen the next time.
const MAX: usize = 100_000;

struct Seen {
    uid: String,
    revision: u64,
    at: Duration,
    /// Which tenure of the Lease, and the revision at which it was first seen.
    transitions: i32,
    first: u64,
    /// The state before, and since when it had been seen: a list may still tell of it.
    before: Option<(u64, Duration)>,
    lease: Option<Arc<Lease>>,
}

/// Since when a Lease has been seen as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// On our clock.
    pub(crate) at: Duration,
    /// The revision at which the present tenure was first seen.
    pub(crate) first: u64,
}

/// What was seen, by name.
#[derive(Default)]
pub(crate) struct Observations {
    seen: Mutex<HashMap<String, Seen>>,
}

impl Observations {
    fn seen(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes notice of a Lease in this state. `now` must not be before the answer that told of it
    /// arrived. Returns since when it has been seen like this.
    pub(crate) fn observe(&self, lease: &Lease, revision: u64, now: Duration) -> Sight {
        self.note(lease, revision, now, None)
    }

    /// The same, and remembers it for the next write.
    pub(crate) fn remember(&self, lease: &Arc<Lease>, revision: u64, now: Duration) -> Sight {
        self.note(lease, revision, now, Some(lease))
    }

    fn note(
        &self,
        lease: &Lease,
        revision: u64,
        now: Duration,
        keep: Option<&Arc<Lease>>,
    ) -> Sight {
        let transitions = lease.spec.lease_transitions.unwrap_or_default();
        let (mut first, mut before) = (revision, None);
        let mut seen = self.seen();
        if let Some(known) = seen.get_mut(&lease.metadata.name) {
            let same_object = known.uid == lease.uid();
            if same_object && known.revision == revision {
                if let Some(lease) = keep {
                    known.lease = Some(Arc::clone(lease));
                }
                return Sight { at: known.at, first: known.first };
            }
            if same_object && known.transitions == transitions {
                first = known.first.min(revision);
            }
            // Old news that comes late: what is known is newer.
            if same_object && known.revision > revision {
                let at = known.before.filter(|(before, _)| *before == revision);
                return Sight { at: at.map_or(now, |(_, at)| at), first };
            }
            before = same_object.then_some((known.revision, known.at));
        }
        make_room(&mut seen);
        let (uid, lease_kept) = (lease.uid().to_owned(), keep.map(Arc::clone));
        let entry = Seen { uid, revision, at: now, transitions, first, before, lease: lease_kept };
        seen.insert(lease.metadata.name.clone(), entry);
        Sight { at: now, first }
    }

    /// The Lease of this name as it was last read or written here, and since when.
    pub(crate) fn remembered(&self, name: &str) -> Option<(Arc<Lease>, Sight)> {
        let seen = self.seen();
        let known = seen.get(name)?;
        let sight = Sight { at: known.at, first: known.first };
        Some((Arc::clone(known.lease.as_ref()?), sight))
    }

    /// The Lease of this name may have changed: the next write reads it first.
    pub(crate) fn forget_body(&self, name: &str) {
        if let Some(known) = self.seen().get_mut(name) {
            known.lease = None;
        }
    }

    /// There is no Lease of this name.
    pub(crate) fn forget(&self, name: &str) {
        self.seen().remove(name);
    }
}

fn make_room(seen: &mut HashMap<String, Seen>) {
    if seen.len() < MAX {
        return;
    }
    let mut times: Vec<Duration> = seen.values().map(|known| known.at).collect();
    let middle = times.len() / 4;
    let (_, oldest_kept, _) = times.select_nth_unstable(middle);
    let oldest_kept = *oldest_kept;
    seen.retain(|_, known| known.at > oldest_kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(uid: &str, revision: u64) -> Lease {
        let mut lease = Lease::new("x");
        lease.metadata.uid = Some(uid.into());
        lease.metadata.resource_version = Some(revision.to_string());
        lease
    }

    fn sight(seconds: u64, first: u64) -> Sight {
        Sight { at: at(seconds), first }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_state_counts_from_its_first_sight_whoever_told_of_it() {
        let seen = Observations::default();
        assert_eq!(seen.observe(&lease("u", 5), 5, at(10)), sight(10, 5));
        assert_eq!(seen.observe(&lease("u", 5), 5, at(20)), sight(10, 5));
        assert_eq!(seen.observe(&lease("u", 6), 6, at(21)), sight(21, 5));
        // Late news of the state before neither counts as old nor replaces what is known.
        assert_eq!(seen.observe(&lease("u", 5), 5, at(22)), sight(10, 5));
        assert_eq!(seen.observe(&lease("u", 4), 4, at(22)), sight(22, 4));
        assert_eq!(seen.observe(&lease("u", 6), 6, at(23)), sight(21, 5));
        // Another tenure, and another object of the same name.
        let mut next = lease("u", 7);
        next.spec.lease_transitions = Some(1);
        assert_eq!(seen.observe(&next, 7, at(24)), sight(24, 7));
        assert_eq!(seen.observe(&lease("v", 8), 8, at(25)), sight(25, 8));
    }

    #[test]
    fn what_was_written_is_remembered_until_something_else_is_seen() {
        let seen = Observations::default();
        let written = Arc::new(lease("u", 5));
        seen.remember(&written, 5, at(1));
        assert_eq!(seen.remembered("x"), Some((Arc::clone(&written), sight(1, 5))));
        seen.observe(&lease("u", 6), 6, at(2));
        assert_eq!(seen.remembered("x"), None);
        seen.forget("x");
        assert_eq!(seen.observe(&lease("u", 6), 6, at(3)), sight(3, 6));
    }
}
