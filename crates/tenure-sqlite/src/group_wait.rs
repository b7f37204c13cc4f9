//! Whether it pays to wait for more callers before a group begins.
//!
//! As a rule, callers that were just answered come back at once. If a group begins with the first of them, the
//! others wait for a flush of their own; if it waits a moment, one flush serves all. Where a flush takes long, it
//! pays to wait for all callers. Else those that the last group answered and those that waited meanwhile
//! alternate, each time with half of what could go together.

use std::time::Duration;

/// What is waited for the callers of the last group.
pub(crate) const MOMENT: Duration = Duration::from_micros(100);
/// A flush takes long if callers behind a server come back sooner.
const LONG: Duration = Duration::from_millis(1);
/// What is waited at most, whatever a flush takes.
const MOST: Duration = Duration::from_millis(5);
/// So few callers are not worth more than a moment.
const FEW: usize = 8;

/// What was learnt from the groups so far.
#[derive(Default)]
pub(crate) struct GroupWait {
    /// How many requests the last group had.
    group: usize,
    /// How many waited while it was worked on.
    waiting: usize,
    /// What a flush takes, about.
    flush: Duration,
    /// Groups that set off at once, since waiting was in vain: how many more, and of how many.
    skip: u32,
    skips: u32,
}

impl GroupWait {
    /// How many requests to wait for, and how long.
    pub(crate) fn expected(&mut self) -> (usize, Duration) {
        if self.skip > 0 {
            self.skip -= 1;
            return (0, Duration::ZERO);
        }
        let callers = self.group + self.waiting;
        let (expected, within) = match self.flush >= LONG && callers >= FEW {
            true => (callers, self.flush),
            false => (self.group, MOMENT),
        };
        // A straggler or two are not worth it.
        (expected - expected / 8, within)
    }

    /// Callers that are far away do not come back in time: then it is tried ever more rarely.
    pub(crate) fn waited(&mut self, in_vain: bool) {
        self.skips = if in_vain { (self.skips * 2).clamp(1, 64) } else { 0 };
        self.skip = self.skips;
    }

    /// A group is about to be answered, while so many wait already.
    pub(crate) fn answers(&mut self, group: usize, waiting: usize) {
        (self.group, self.waiting) = (group, waiting);
    }

    /// A flush took so long.
    pub(crate) fn flushed(&mut self, took: Duration) {
        // Now and then the log is copied into the file: that is no flush.
        self.flush = (self.flush * 7 + took.min(MOST)) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_callers_that_stay_away() {
        let mut patience = GroupWait::default();
        assert_eq!(patience.expected().0, 0);
        patience.answers(64, 0);
        assert_eq!(patience.expected(), (56, MOMENT));
        patience.waited(false);
        assert_eq!(patience.expected().0, 56);
        for skipped in [1, 2, 4, 8, 16, 32, 64, 64] {
            patience.waited(true);
            assert_eq!((0..100).take_while(|_| patience.expected().0 == 0).count(), skipped);
        }
        patience.waited(false);
        patience.answers(8, 0);
        assert_eq!(patience.expected().0, 7);
        patience.answers(1, 0);
        assert_eq!(patience.expected().0, 1);
    }

    #[test]
    fn a_long_flush_is_worth_waiting_for_all_but_not_for_a_few() {
        let mut patience = GroupWait::default();
        patience.answers(32, 32);
        assert_eq!(patience.expected(), (28, MOMENT));
        (0..100).for_each(|_| patience.flushed(Duration::from_secs(1)));
        let (expected, within) = patience.expected();
        assert!(expected == 56 && within > MOST / 2 && within <= MOST, "{expected} {within:?}");
        patience.answers(2, 2);
        assert_eq!(patience.expected(), (2, MOMENT));
        (0..100).for_each(|_| patience.flushed(LONG / 2));
        patience.answers(32, 32);
        assert_eq!(patience.expected(), (28, MOMENT));
    }
}
