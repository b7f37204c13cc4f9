//! Whether the callers that wait become one group or two, sent one behind the other.
//!
//! Two groups keep the server and the callers busy at the same time, but each costs a statement and a flush of
//! its own. A fast disk makes that worth it, a slow one does not. So both are measured: after several
//! intervals of the better way comes one of the other, and the better one stays.

use std::time::Duration;

use crate::gather::WORTH_HALVING;

/// A spell lasts so long at least, and so many groups.
const SPELL: Duration = Duration::from_millis(40);
const GROUPS: u32 = 8;
/// The other way must be better by this factor: a busy machine makes for luck.
const BETTER: f64 = 1.1;
/// Spells of what is better between two spells of the other: few at first, then ever more.
const PATIENCE_MIN: u32 = 2;
const PATIENCE_MAX: u32 = 32;

/// The way that commits go, and how well that went.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    halves: bool,
    /// This spell: since when, how many groups and commits.
    begun: Option<Duration>,
    groups: u32,
    commits: usize,
    /// Commits a second in the last spell of the way that is preferred, while the other is tried.
    to_beat: Option<f64>,
    /// Spells until the other is tried, and how many there were to be.
    left: u32,
    patience: u32,
}

impl Pace {
    /// Whether to make two groups of what waits.
    pub(crate) fn halves(&self) -> bool {
        self.halves
    }

    /// A group of so many commits is done. `others` are under way or wait.
    pub(crate) fn done(&mut self, now: Duration, commits: usize, others: usize) {
        if commits + others < WORTH_HALVING {
            // Too few to be halved: nothing is learnt from them.
            self.begun = None;
            return;
        }
        let Some(begun) = self.begun else { return self.begin(now) };
        self.groups += 1;
        self.commits += commits;
        let took = now.saturating_sub(begun);
        if self.groups >= GROUPS && took >= SPELL {
            self.judge(self.commits as f64 / took.as_secs_f64());
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Duration) {
        (self.begun, self.groups, self.commits) = (Some(now), 0, 0);
    }

    fn judge(&mut self, rate: f64) {
        if let Some(to_beat) = self.to_beat.take() {
            if rate > to_beat * BETTER {
                self.patience = PATIENCE_MIN;
            } else {
                self.halves = !self.halves;
                self.patience = (self.patience * 2).clamp(PATIENCE_MIN, PATIENCE_MAX);
            }
            self.left = self.patience;
        } else if self.left > 0 {
            self.left -= 1;
        } else {
            self.to_beat = Some(rate);
            self.halves = !self.halves;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of a thousand groups were halves, if a group of either kind takes so long.
    fn halves(pace: &mut Pace, now: &mut Duration, whole_ms: u64, half_ms: u64) -> usize {
        let mut halves = 0;
        for _ in 0..1000 {
            let (took, commits) = if pace.halves() { (half_ms, 32) } else { (whole_ms, 64) };
            halves += usize::from(pace.halves());
            *now += Duration::from_millis(took);
            pace.done(*now, commits, 64 - commits);
        }
        halves
    }

    #[test]
    fn the_better_way_is_found_and_found_again() {
        let (mut pace, mut now) = (Pace::default(), Duration::ZERO);
        assert!(halves(&mut pace, &mut now, 10, 4) > 900);
        assert!(halves(&mut pace, &mut now, 10, 8) < 500);
        assert!(halves(&mut pace, &mut now, 10, 8) < 100);
        assert!(halves(&mut pace, &mut now, 10, 4) > 500);
    }

    #[test]
    fn few_callers_are_left_alone() {
        let (mut pace, mut now) = (Pace::default(), Duration::ZERO);
        for _ in 0..1000 {
            now += Duration::from_millis(10);
            pace.done(now, 2, 1);
            assert!(!pace.halves());
        }
    }
}
