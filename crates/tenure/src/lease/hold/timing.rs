//! The arithmetic of a tenure, as pure functions of instants on the holder's own steady clock.
//!
//! An instant is an uptime of [`crate::clock::Clock`]. Nothing here knows a wall clock, nothing here
//! compares two machines.

use std::time::Duration;

/// The margin is a tenth of the life: a holder's clock may run that much slower than the store's.
const MARGIN_PART: u32 = 10;
/// No clock drifts by this much in any life we grant, and a longer one would only waste it.
const MARGIN_MAX: Duration = Duration::from_secs(5);
/// An attempt that takes longer than this has met a store that hangs.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// The first retry of a renewal comes this soon; each further one waits twice as long.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// With less than this left, another attempt cannot be answered in time.
const TOO_LATE: Duration = Duration::from_millis(10);

/// How long one lease lives and how often it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The life granted by the store with each renewal.
    pub ttl: Duration,
    /// How long after a renewal was sent the next one is due.
    pub renew_every: Duration,
}

impl Timing {
    /// A life of `ttl`, renewed three times within it unless told otherwise.
    pub fn new(ttl: Duration, renew_every: Option<Duration>) -> Self {
        let latest = ttl.saturating_sub(margin(ttl)) / 2;
        Self { ttl, renew_every: renew_every.unwrap_or(ttl / 3).min(latest) }
    }

    /// The instant after which the holder must not act, if what it sent at `sent` was granted.
    /// Counted from before the request left: the store's count began later, so it ends later.
    pub fn valid_until(&self, sent: Duration) -> Duration {
        (sent + self.ttl).saturating_sub(margin(self.ttl))
    }

    /// When the renewal after the one sent at `sent` is due.
    pub fn due(&self, sent: Duration) -> Duration {
        sent + self.renew_every
    }
}

/// By how much the holder stops before its life ends.
pub(crate) fn margin(ttl: Duration) -> Duration {
    (ttl / MARGIN_PART).min(MARGIN_MAX)
}

/// How long one attempt to renew may take, so that there is time for others before the deadline.
pub(crate) fn attempt_timeout(now: Duration, valid_until: Duration) -> Duration {
    (valid_until.saturating_sub(now) / 3).clamp(TOO_LATE, ATTEMPT_MAX)
}

/// When to try again after `failures` failed attempts; `jitter` is below one in thousandths. The
/// deadline itself once nothing can be achieved before it.
pub(crate) fn retry_at(
    now: Duration,
    valid_until: Duration,
    failures: u32,
    jitter: u32,
) -> Duration {
    let left = valid_until.saturating_sub(now);
    if left <= TOO_LATE {
        return valid_until;
    }
    let backoff = RETRY_FIRST * 2_u32.saturating_pow(failures.saturating_sub(1).min(10));
    let pause = backoff.min(left / 4);
    now + pause - pause * jitter.min(1000) / 4000
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_holder_stops_before_the_store_could_have_given_the_lease_away() {
        let timing = Timing::new(30 * SECOND, None);
        assert_eq!(timing.due(100 * SECOND), 110 * SECOND);
        assert_eq!(timing.valid_until(100 * SECOND), 127 * SECOND);
        let hour = Timing::new(3600 * SECOND, None);
        assert_eq!(hour.valid_until(Duration::ZERO), 3595 * SECOND);
    }

    #[test]
    fn renewals_leave_room_for_one_that_fails() {
        for ttl_ms in [2, 10, 1_000, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let lazy = Timing::new(ttl, Some(ttl * 2));
            assert!(lazy.due(SECOND) + lazy.renew_every <= lazy.valid_until(SECOND), "{ttl:?}");
        }
    }

    #[test]
    fn retries_go_on_until_the_deadline_and_never_past_it() {
        let until = 10 * SECOND;
        let (mut now, mut attempts) = (Duration::ZERO, 0);
        while now < until {
            attempts += 1;
            now += attempt_timeout(now, until).min(until - now);
            if now < until {
                let next = retry_at(now, until, attempts, 500);
                assert!(next > now && next <= until, "{now:?} {next:?}");
                now = next;
            }
        }
        assert!((4..50).contains(&attempts), "{attempts}");
    }
}
