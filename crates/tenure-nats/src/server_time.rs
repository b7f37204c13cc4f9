//! What is known of the server's clock.
//!
//! Expiry is the server's business: an object is there until the server removes it. Only to say how
//! much of a life is left, and to recognise answers that came too late to be trusted, the server's
//! clock must be known. It is read from the server itself and carried on by this machine's steady
//! clock; no wall clock of this machine is ever compared with it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::clock::SharedClock;

/// A reading that differs from the present one by more than this means that a clock was stepped.
const STEP_NS: i128 = 250_000_000;
/// How long a reading is good for; steady clocks drift far less than [`STEP_NS`] meanwhile.
const GOOD_FOR: Duration = Duration::from_secs(60);

/// The server's clock, seen from here.
pub(crate) struct ServerTime {
    clock: SharedClock,
    reading: Mutex<Option<Reading>>,
}

#[derive(Clone, Copy)]
struct Reading {
    /// The server's clock is at most this much ahead of our uptime.
    ahead_ns: i128,
    taken: Duration,
}

impl ServerTime {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self { clock, reading: Mutex::new(None) }
    }

    /// Steady time of this machine.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    /// The steady clock itself.
    pub(crate) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// The server said `server_ns` in answer to a question asked at `asked`.
    pub(crate) fn learn(&self, asked: Duration, server_ns: i128) {
        // It was read after we asked, so this is the most that it can be ahead.
        let ahead_ns = server_ns - nanos(asked);
        let taken = self.uptime();
        let mut reading = self.lock();
        // A slightly better bound is not taken: what is said to be left of a life never grows.
        let ahead_ns = match *reading {
            Some(now) if ahead_ns <= now.ahead_ns && now.ahead_ns - ahead_ns < STEP_NS => {
                now.ahead_ns
            }
            _ => ahead_ns,
        };
        *reading = Some(Reading { ahead_ns, taken });
    }

    /// Whether the server should be asked again before the next answer depends on it.
    pub(crate) fn is_stale(&self) -> bool {
        let now = self.uptime();
        self.lock().is_none_or(|reading| now.saturating_sub(reading.taken) > GOOD_FOR)
    }

    /// The steady instant of this machine before which the server's clock cannot have reached
    /// `server_ns`; zero if nothing is known.
    pub(crate) fn not_before(&self, server_ns: i128) -> Duration {
        let reading = *self.lock();
        let here = reading.map_or(0, |reading| server_ns - reading.ahead_ns);
        Duration::from_nanos(u64::try_from(here.max(0)).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}

/// A timestamp as the server writes it, in nanoseconds since 1970.
pub(crate) fn parse(text: &str) -> Option<i128> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_nanosecond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tenure::clock::{Clock, ManualClock};

    #[test]
    fn what_is_left_is_never_too_much_and_never_grows() {
        let clock = ManualClock::new();
        let time = ServerTime::new(Arc::new(clock.clone()));
        assert!(time.is_stale());
        assert_eq!(time.not_before(1), Duration::ZERO);
        let asked = clock.uptime();
        let server = 1_780_000_000_000_000_000_i128;
        clock.advance(Duration::from_millis(30));
        time.learn(asked, server + 20_000_000);
        // The server may have read its clock at once: then 20 ms of network went by before.
        assert_eq!(time.not_before(server + 20_000_000), asked);
        let expiry = server + 1_000_000_000;
        let before = time.not_before(expiry);
        time.learn(clock.uptime(), server + 25_000_000);
        assert_eq!(time.not_before(expiry), before);
        // A stepped clock is believed.
        time.learn(clock.uptime(), server - 3_600_000_000_000);
        assert!(time.not_before(expiry) > before + Duration::from_secs(3599));
        clock.advance(Duration::from_secs(61));
        assert!(time.is_stale());
    }

    #[test]
    fn timestamps_are_read_to_the_nanosecond() {
        assert_eq!(parse("1970-01-01T00:00:01.000000002Z"), Some(1_000_000_002));
        assert_eq!(parse("yesterday"), None);
    }
}
