//! Time in the simulation: one true time, which is the store's, and a clock for each process that
//! runs a little faster or slower, started at another instant and shows another wall time.
//!
//! True time is the paused time of the runtime: it moves only when nothing else can.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tenure::clock::Clock;
use tokio::time::Instant;

/// The store's uptime at the beginning of a run.
const ORIGIN: Duration = Duration::from_secs(3600);
/// The store's wall time at the beginning of a run, in 2026.
const WALL_MS: i64 = 1_780_000_000_000;
const MILLION: i128 = 1_000_000;

/// True time. The store goes by it.
#[derive(Clone, Copy, Debug)]
pub struct TrueClock {
    start: Instant,
}

impl TrueClock {
    /// Starts now; needs a runtime whose time is paused.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// True time since the beginning of the run.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Duration {
        Instant::now().duration_since(self.start)
    }

    /// Resolves at that time since the beginning of the run.
    pub async fn sleep_until(&self, time: Duration) {
        tokio::time::sleep_until(self.start + time).await;
    }

    /// The same in milliseconds of the store's clock.
    pub fn now_ms(&self) -> i64 {
        millis(ORIGIN + self.now())
    }

    /// An instant of the run on the store's clock, for people: seconds since the beginning.
    pub fn label(ms: i64) -> String {
        let ms = ms - millis(ORIGIN);
        format!("{:>4}.{:03}", ms / 1000, (ms % 1000).abs())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Clock for TrueClock {
    fn uptime(&self) -> Duration {
        ORIGIN + self.now()
    }

    fn wall_ms(&self) -> i64 {
        WALL_MS + millis(self.now())
    }

    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.start + uptime.saturating_sub(ORIGIN)))
    }
}

/// The clock of one process.
#[derive(Debug)]
pub struct ProcessClock {
    truth: TrueClock,
    /// What it showed at the beginning of the run.
    origin: Duration,
    /// How much faster than true time it runs, in millionths.
    drift: i64,
    wall_offset_ms: Mutex<i64>,
}

impl ProcessClock {
    /// A clock that showed `origin` when the run began.
    pub fn new(truth: TrueClock, origin: Duration, drift: i64, wall_offset_ms: i64) -> Arc<Self> {
        Arc::new(Self { truth, origin, drift, wall_offset_ms: Mutex::new(wall_offset_ms) })
    }

    /// Steps the wall clock, as an operator or a time daemon would.
    pub fn step_wall(&self, by_ms: i64) {
        *self.wall_offset_ms.lock().unwrap_or_else(PoisonError::into_inner) += by_ms;
    }

    /// The true instant, in milliseconds of the store's clock, at which this clock shows `uptime`;
    /// rounded up.
    pub fn true_ms(&self, uptime: Duration) -> i64 {
        let nanos = self.true_nanos(uptime);
        let ms = nanos.div_euclid(MILLION) + i128::from(nanos.rem_euclid(MILLION) > 0);
        millis(ORIGIN).saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))
    }

    /// Nanoseconds since the beginning of the run at which this clock shows `uptime`.
    fn true_nanos(&self, uptime: Duration) -> i128 {
        let local = nanos(uptime) - nanos(self.origin);
        // Rounded up: the clock must show at least `uptime` then.
        let scaled = local * MILLION;
        let rate = MILLION + i128::from(self.drift);
        scaled.div_euclid(rate) + i128::from(scaled.rem_euclid(rate) > 0)
    }
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / MILLION / 4)
}

impl Clock for ProcessClock {
    fn uptime(&self) -> Duration {
        let elapsed = nanos(self.truth.now()) * (MILLION + i128::from(self.drift)) / MILLION;
        self.origin + Duration::from_nanos(u64::try_from(elapsed).unwrap_or(0))
    }

    fn wall_ms(&self) -> i64 {
        let offset = *self.wall_offset_ms.lock().unwrap_or_else(PoisonError::into_inner);
        self.truth.wall_ms() + offset
    }

    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()> {
        let wait = u64::try_from(self.true_nanos(uptime)).unwrap_or(0);
        // The runtime's timers end at most thirty years ahead; nothing here waits that long.
        let wait = Duration::from_nanos(wait).min(Duration::from_secs(1_000_000));
        Box::pin(tokio::time::sleep_until(self.truth.start + wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleep_on_a_drifting_clock_ends_when_that_clock_says_so() {
        let truth = TrueClock::start();
        for drift in [-20_000, 0, 20_000] {
            let clock = ProcessClock::new(truth, Duration::from_secs(77), drift, 5);
            let until = clock.uptime() + Duration::from_secs(100);
            let expected = clock.true_ms(until);
            clock.sleep_until(until).await;
            assert!(clock.uptime() >= until);
            assert!(clock.uptime() < until + Duration::from_millis(3));
            assert!((truth.now_ms() - expected).abs() <= 1);
        }
    }
}
