//! The store's time: one timeline for all processes, held in the database, which no stepped clock
//! bends.
//!
//! The server's wall clock plus an offset in `tenure_meta` is the store's time. The wall clock may be
//! stepped, so every process also remembers what the store's time was at its last exchange with the
//! server, and how much of its own steady uptime has passed since. Both ends of an exchange are
//! known, so the true time lies between two bounds; an answer far outside them means that the
//! server's clock was stepped. Then the nearer bound counts, and the offset is corrected under the
//! commit lock for everybody.
//!
//! A process without a memory (it just connected) asks the others first, see [`crate::connect::first_clock`], and
//! then trusts the offset. Nobody's time goes below the latest instant that a commit recorded, so all
//! processes agree in the end, and always on the later time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::clock::SharedClock;

/// The server's clock in milliseconds. `date_part` is floating point, which is exact here and much
/// cheaper than `extract`.
pub(crate) const WALL_MS: &str = "floor(date_part('epoch', clock_timestamp()) * 1000)::bigint";

/// From when a life counts that is given without asking what time it is. By what its giver remembers, it
/// is between `earliest` and `latest`, so `now`, the store's time by the server's clock, counts if it
/// lies between them: no more is given than was asked for. Else that clock was stepped or the request was
/// long on its way, and `latest` counts: no life is cut short. A step back that is smaller than what the
/// giver does not know goes unnoticed here as in [`judge`].
pub(crate) fn start_sql(now: &str, earliest: &str, latest: &str) -> String {
    format!("case when {now} between {earliest} and {latest} then {now} else {latest} end")
}

/// Steps smaller than this are indistinguishable from jitter, and harmless.
const TOLERANCE: Duration = Duration::from_millis(100);
/// Steady clocks of two machines drift apart by less than one part in so many.
const DRIFT: u32 = 1000;

/// What the database said about time in one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The server's wall clock.
    pub(crate) wall_ms: i64,
    /// `tenure_meta.clock_offset_ms`.
    pub(crate) offset_ms: i64,
    /// `tenure_meta.clock_last_ms`.
    pub(crate) last_ms: i64,
}

/// The store's time at the instant the server looked at its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The store's time.
    pub(crate) store_ms: i64,
    /// The server's wall clock, a label for people.
    pub(crate) wall_ms: i64,
    /// The offset that makes the server's clock tell the store's time.
    pub(crate) offset_ms: i64,
    /// Whether that is not the offset in the database.
    pub(crate) stepped: bool,
}

/// An earlier exchange: the store's time was `store_ms` somewhere between the two uptimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Evidence {
    store_ms: i64,
    sent: Duration,
    received: Duration,
}

impl Evidence {
    /// The earliest and latest that the store's time can be during an exchange.
    fn bounds(&self, sent: Duration, received: Duration) -> (i64, i64) {
        let since = |later: Duration, earlier: Duration| {
            later.checked_sub(earlier).map_or_else(|| -millis(earlier - later), millis)
        };
        let earliest = self.store_ms.saturating_add(since(sent, self.received));
        let latest = self.store_ms.saturating_add(since(received, self.sent));
        (earliest, latest.saturating_add(1))
    }

    fn age(&self, at: Duration) -> Duration {
        at.saturating_sub(self.sent)
    }

    fn width(&self) -> Duration {
        self.received.saturating_sub(self.sent)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn judge(
    evidence: Option<Evidence>,
    sample: Sample,
    sent: Duration,
    received: Duration,
) -> Reading {
    let told = sample.wall_ms.saturating_add(sample.offset_ms);
    let believed = evidence.map_or(told, |evidence| {
        let (earliest, latest) = evidence.bounds(sent, received);
        let slack = millis(TOLERANCE + evidence.age(received) / DRIFT);
        if told < earliest - slack {
            earliest
        } else if told > latest.saturating_add(slack) {
            latest
        } else {
            told
        }
    });
    let store_ms = believed.max(sample.last_ms);
    let stepped = (store_ms - told).abs() > millis(TOLERANCE);
    let offset_ms = if stepped { store_ms - sample.wall_ms } else { sample.offset_ms };
    Reading { store_ms, wall_ms: sample.wall_ms, offset_ms, stepped }
}

/// A look at the server's wall clock: when it was sent for, when the answer came, and the answer.
pub(crate) type Glance = (Duration, Duration, i64);

/// Whether the server's clock was not stepped between two looks at it.
pub(crate) fn went_steadily(first: Glance, second: Glance) -> bool {
    let evidence = Evidence { store_ms: first.2, sent: first.0, received: first.1 };
    let sample = Sample { wall_ms: second.2, offset_ms: 0, last_ms: i64::MIN };
    !judge(Some(evidence), sample, second.0, second.1).stepped
}

/// This process's memory of the store's time.
pub(crate) struct Timekeeper {
    clock: SharedClock,
    evidence: Mutex<Option<Evidence>>,
}

impl Timekeeper {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self { clock, evidence: Mutex::new(None) }
    }

    /// Taken before a request for the time is sent.
    pub(crate) fn sent(&self) -> Duration {
        self.uptime()
    }

    /// This process's steady clock.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    /// The least and the most that the store's time can be by now, as far as this process remembers.
    pub(crate) fn between(&self) -> Option<(i64, i64)> {
        let now = self.clock.uptime();
        let evidence = *self.evidence.lock().unwrap_or_else(PoisonError::into_inner);
        evidence.map(|evidence| {
            let (earliest, latest) = evidence.bounds(now, now);
            let drift = millis(evidence.age(now) / DRIFT);
            (earliest - drift, latest.saturating_add(drift))
        })
    }

    /// Judges an answer that has just been received, and remembers it.
    pub(crate) fn received(&self, sent: Duration, sample: Sample) -> Reading {
        self.learn(sent, self.clock.uptime(), sample)
    }

    /// The same for one that was received at a given uptime.
    pub(crate) fn learn(&self, sent: Duration, received: Duration, sample: Sample) -> Reading {
        let mut evidence = self.evidence.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = judge(*evidence, sample, sent, received);
        let fresh = Evidence { store_ms: reading.store_ms, sent, received };
        // A quick exchange of a moment ago says more than a slow one of now.
        let keep = evidence.is_some_and(|old| {
            !reading.stepped && old.width() + old.age(received) / DRIFT < fresh.width()
        });
        if !keep {
            *evidence = Some(fresh);
        }
        reading
    }

    /// Resolves once this much time has passed.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tenure::clock::{Clock, ManualClock};

    fn sample(wall_ms: i64, offset_ms: i64) -> Sample {
        Sample { wall_ms, offset_ms, last_ms: 0 }
    }

    /// One exchange that takes `takes` after `pause`.
    fn exchange(
        keeper: &Timekeeper,
        clock: &ManualClock,
        pause: u64,
        takes: u64,
        sample: Sample,
    ) -> Reading {
        clock.advance(Duration::from_millis(pause));
        let sent = keeper.sent();
        clock.advance(Duration::from_millis(takes));
        keeper.received(sent, sample)
    }

    fn keeper() -> (Timekeeper, ManualClock) {
        let clock = ManualClock::new();
        (Timekeeper::new(Arc::new(clock.clone())), clock)
    }

    #[test]
    fn without_a_step_the_servers_clock_is_the_time() {
        let (keeper, clock) = keeper();
        let first = exchange(&keeper, &clock, 0, 2, sample(1_000_000, 500));
        assert_eq!((first.store_ms, first.stepped), (1_000_500, false));
        let next = exchange(&keeper, &clock, 10_000, 2, sample(1_010_003, 500));
        assert_eq!((next.store_ms, next.offset_ms, next.stepped), (1_010_503, 500, false));
    }

    #[test]
    fn steps_in_either_direction_are_cancelled_out() {
        for step in [-3_600_000, -5_000, 5_000, 3_600_000] {
            let (keeper, clock) = keeper();
            exchange(&keeper, &clock, 0, 2, sample(10_000_000, 0));
            let reading = exchange(&keeper, &clock, 3_000, 2, sample(10_003_002 + step, 0));
            assert!((reading.store_ms - 10_003_002).abs() <= 5, "{step}: {reading:?}");
            assert!(reading.stepped);
            // Whoever asks next with the corrected offset sees nothing unusual.
            let offset = reading.offset_ms;
            let next = exchange(&keeper, &clock, 1_000, 2, sample(10_004_005 + step, offset));
            assert!(!next.stepped, "{step}: {next:?}");
            assert!((next.store_ms - 10_004_005).abs() <= 5, "{step}: {next:?}");
        }
    }

    #[test]
    fn waiting_long_for_an_answer_is_not_a_step() {
        let (keeper, clock) = keeper();
        exchange(&keeper, &clock, 0, 2, sample(10_000_000, 0));
        let slow = exchange(&keeper, &clock, 0, 4_000, sample(10_004_000, 0));
        assert_eq!((slow.store_ms, slow.stepped), (10_004_000, false));
        // The slow exchange says little; the quick one before it still tells steps from truth.
        let reading = exchange(&keeper, &clock, 100, 2, sample(10_004_102 + 2_000, 0));
        assert!(reading.stepped, "{reading:?}");
        assert!((reading.store_ms - 10_004_102).abs() < 10, "{reading:?}");
    }

    #[test]
    fn a_newcomer_trusts_the_offset_and_nobody_goes_below_what_was_recorded() {
        let (keeper, clock) = keeper();
        let recorded = Sample { wall_ms: 1_000, offset_ms: 0, last_ms: 50_000 };
        let reading = exchange(&keeper, &clock, 0, 1, recorded);
        assert_eq!((reading.store_ms, reading.offset_ms), (50_000, 49_000));
        assert!(reading.stepped);
    }

    #[test]
    fn a_step_between_two_looks_is_noticed() {
        let at = |ms: u64| Duration::from_millis(ms);
        let first = (at(100), at(102), 5_000);
        for (wall_ms, steadily) in [(5_300, true), (5_900, false), (4_900, false), (5_350, true)] {
            assert_eq!(went_steadily(first, (at(400), at(402), wall_ms)), steadily, "{wall_ms}");
        }
        // An answer that was long on its way may be of any instant in between.
        assert!(went_steadily(first, (at(400), at(2_400), 7_000)));
    }

    #[test]
    fn drift_is_not_a_step() {
        let (keeper, clock) = keeper();
        exchange(&keeper, &clock, 0, 1, sample(0, 0));
        // An hour later, one part in two thousand ahead.
        let reading = exchange(&keeper, &clock, 3_600_000, 1, sample(3_601_800, 0));
        assert!(!reading.stepped, "{reading:?}");
        assert_eq!(clock.uptime(), Duration::from_millis(7_200_002));
    }
}
