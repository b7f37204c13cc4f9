//! When the command has to be told to stop, and when it must be gone: pure decisions.

use std::time::Duration;

/// What is left of the deadline for the last signal to take effect: a twentieth of the life, within
/// these bounds.
const MARGIN_MIN: Duration = Duration::from_millis(50);
const MARGIN_MAX: Duration = Duration::from_secs(1);
/// How long a command gets between the two signals, unless told otherwise: a quarter of the life, but
/// no more than this.
const GRACE_MAX: Duration = Duration::from_secs(10);

/// How much time each step of stopping gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Between asking (`TERM`) and forcing (`KILL`).
    pub(crate) grace: Duration,
    /// Between forcing and the deadline.
    pub(crate) margin: Duration,
}

impl Pace {
    /// The pace for a lease of this life; `None` if the grace asked for leaves no time to work.
    pub(crate) fn new(ttl: Duration, grace: Option<Duration>) -> Option<Self> {
        let grace = grace.unwrap_or_else(|| (ttl / 4).min(GRACE_MAX));
        (grace <= ttl / 2).then(|| Self { grace, margin: (ttl / 20).clamp(MARGIN_MIN, MARGIN_MAX) })
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing until this instant.
    Wait(Duration),
    /// Ask it to stop.
    Ask,
    /// Stop it.
    Force,
}

/// The command's time. Instants are those of the uptime clock, which all processes of a host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pace: Pace,
    /// The holder must not act after this.
    until: Duration,
    /// It was asked at this instant.
    asked: Option<Duration>,
    /// It is to stop, whatever the deadline says.
    stop: bool,
}

impl Schedule {
    pub(crate) fn new(pace: Pace, until: Duration) -> Self {
        Self { pace, until, asked: None, stop: false }
    }

    /// The lease was renewed. Whoever was asked to stop stops all the same.
    pub(crate) fn prolong(&mut self, until: Duration) {
        self.until = self.until.max(until);
    }

    /// The lease is gone, or the one who holds it.
    pub(crate) fn stop(&mut self) {
        self.stop = true;
    }

    /// What to do at this instant. [`Act::Ask`] is said once.
    pub(crate) fn next(&mut self, now: Duration) -> Act {
        let force_at = self.until.saturating_sub(self.pace.margin);
        if now >= force_at {
            return Act::Force;
        }
        match self.asked {
            Some(asked) => {
                let patience = asked.saturating_add(self.pace.grace).min(force_at);
                if now >= patience { Act::Force } else { Act::Wait(patience) }
            }
            None => {
                let ask_at = force_at.saturating_sub(self.pace.grace);
                if self.stop || now >= ask_at {
                    self.asked = Some(now);
                    return Act::Ask;
                }
                Act::Wait(ask_at)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn schedule() -> Schedule {
        Schedule::new(Pace { grace: seconds(5), margin: seconds(1) }, seconds(30))
    }

    #[test]
    fn it_is_asked_first_and_gone_before_the_deadline() {
        let mut schedule = schedule();
        assert_eq!(schedule.next(seconds(0)), Act::Wait(seconds(24)));
        assert_eq!(schedule.next(seconds(24)), Act::Ask);
        assert_eq!(schedule.next(seconds(24)), Act::Wait(seconds(29)));
        assert_eq!(schedule.next(seconds(29)), Act::Force);
    }

    #[test]
    fn a_renewal_gives_time_until_it_has_been_asked() {
        let mut schedule = schedule();
        schedule.prolong(seconds(40));
        schedule.prolong(seconds(35));
        assert_eq!(schedule.next(seconds(30)), Act::Wait(seconds(34)));
        assert_eq!(schedule.next(seconds(34)), Act::Ask);
        schedule.prolong(seconds(60));
        assert_eq!(schedule.next(seconds(39)), Act::Force);
    }

    #[test]
    fn a_late_riser_forces_at_once() {
        assert_eq!(schedule().next(seconds(29)), Act::Force);
        let mut stopped = schedule();
        stopped.stop();
        assert_eq!(stopped.next(seconds(26)), Act::Ask);
        assert_eq!(stopped.next(seconds(26)), Act::Wait(seconds(29)));
    }

    #[test]
    fn a_grace_that_leaves_no_time_to_work_is_refused() {
        assert_eq!(Pace::new(seconds(10), Some(seconds(6))), None);
        let pace = Pace::new(seconds(30), None).unwrap();
        assert_eq!((pace.grace, pace.margin), (Duration::from_millis(7_500), seconds(1)));
    }
}
