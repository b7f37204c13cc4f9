//! Which leases are to be renewed when: an ordered list, without any I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::held::Held;

/// A place in the schedule: the instant, and a number to tell those of one instant apart.
pub(crate) type Slot = (Duration, u64);

/// Leases by the instant of their next renewal.
#[derive(Default)]
pub(crate) struct Schedule {
    due: BTreeMap<Slot, Arc<Held>>,
    count: u64,
    /// Until when whoever works the schedule sleeps; nobody needs to wake it for anything later.
    asleep_until: Option<Duration>,
}

impl Schedule {
    /// Schedules a lease anew. Whether the worker has to be woken for it.
    pub(crate) fn put(&mut self, held: &Arc<Held>, at: Duration) -> bool {
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
        self.due.insert(slot, Arc::clone(held));
        self.asleep_until.is_some_and(|until| at < until)
    }

    /// Takes a lease off the schedule.
    pub(crate) fn remove(&mut self, held: &Held) {
        let slot = held.state().slot.take();
        if let Some(slot) = slot {
            self.due.remove(&slot);
        }
    }

    /// Takes all that is due by `until` and says how long the worker may sleep.
    pub(crate) fn take(&mut self, until: Duration) -> (Vec<Arc<Held>>, Option<Duration>) {
        let later = self.due.split_off(&(until, u64::MAX));
        let due = std::mem::replace(&mut self.due, later);
        for held in due.values() {
            held.state().slot = None;
        }
        let next = self.due.first_key_value().map(|((at, _), _)| *at);
        self.asleep_until = Some(next.unwrap_or(Duration::MAX));
        (due.into_values().collect(), next)
    }

    /// How many leases are on it.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }
}
