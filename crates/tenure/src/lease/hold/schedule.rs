//! Which leases are to be renewed when: an ordered list, without any I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::hold::state::Held;

/// A place in the schedule: the instant, and a number to tell those of one instant apart.
pub(crate) type Slot = (Duration, u64);

/// What is due this soon is renewed along with what is due now, to share the round trip.
const TOGETHER: Duration = Duration::from_millis(50);
/// But only in the last quarter of its pause: a pause that is cut short each time is none.
const EARLY_PART: u32 = 4;

/// A lease that waits for its next renewal.
struct Waiting {
    held: Arc<Held>,
    /// From when on it may be renewed along with others.
    early: Duration,
}

/// Leases by the instant of their next renewal.
#[derive(Default)]
pub(crate) struct Schedule {
    due: BTreeMap<Slot, Waiting>,
    count: u64,
    /// Until when the renewal task sleeps; it need not be woken for anything later.
    asleep_until: Option<Duration>,
}

impl Schedule {
    /// Schedules a lease anew. Whether the worker has to be woken for it.
    pub(crate) fn put(&mut self, held: &Arc<Held>, now: Duration, at: Duration) -> bool {
        let mut state = held.state();
        if let Some(slot) = state.slot.take() {
            self.due.remove(&slot);
        }
        if state.leaving || state.loss.is_some() {
            return false;
        }
        self.count += 1;
        let slot = (at, self.count);
        state.slot = Some(slot);
        drop(state);
        let early = at - (at.saturating_sub(now) / EARLY_PART).min(TOGETHER);
        self.due.insert(slot, Waiting { held: Arc::clone(held), early });
        self.asleep_until.is_some_and(|until| at < until)
    }

    /// Takes a lease off the schedule.
    pub(crate) fn remove(&mut self, held: &Held) {
        let slot = held.state().slot.take();
        if let Some(slot) = slot {
            self.due.remove(&slot);
        }
    }

    /// Takes all that is due, with what may go along, and says how long the worker may sleep.
    pub(crate) fn take(&mut self, now: Duration) -> (Vec<Arc<Held>>, Option<Duration>) {
        let mut taken = Vec::new();
        if self.next().is_some_and(|at| at <= now) {
            let later = self.due.split_off(&(now + TOGETHER, u64::MAX));
            for (slot, waiting) in std::mem::replace(&mut self.due, later) {
                if waiting.early <= now {
                    waiting.held.state().slot = None;
                    taken.push(waiting.held);
                } else {
                    self.due.insert(slot, waiting);
                }
            }
        }
        let next = self.next();
        self.asleep_until = Some(next.unwrap_or(Duration::MAX));
        (taken, next)
    }

    fn next(&self) -> Option<Duration> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// How many leases are on it.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }
}
