//! The only module that reads the machine's clocks.
//!
//! Two readings, never mixed: [`Clock::uptime`] counts steadily, also while the machine sleeps, and
//! decides everything; [`Clock::wall_ms`] is a label for people and decides nothing. A stepped wall
//! clock therefore neither ends nor prolongs anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

/// Time, passed in.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed instant. Never goes back, counts suspended time, ignores clock steps.
    fn uptime(&self) -> Duration;
    /// Milliseconds since 1970 as this machine's people see it.
    fn wall_ms(&self) -> i64;
    /// Resolves once `uptime` has reached this instant.
    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()>;

    /// Resolves once `uptime` has advanced by `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.uptime().saturating_add(duration))
    }
}

/// A clock to share.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's own clock: `CLOCK_BOOTTIME` and the system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clock, ready to share.
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn uptime(&self) -> Duration {
        // Not `Instant`: on Linux that stops while the machine is suspended, and a lease does not.
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn wall_ms(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A machine that thinks it is before 1970 gets a label of 0, nothing worse.
        since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // The runtime's timer stands still while the machine is suspended, so look again.
            while let Some(left) = uptime.checked_sub(Self.uptime()).filter(|left| !left.is_zero())
            {
                tokio::time::sleep(left).await;
            }
        })
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A name for the present boot of this host: `uptime` values are comparable only within one.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown-boot".to_owned(), |id| id.trim().to_owned())
}

/// A clock that moves only when told, for tests and simulations.
#[derive(Clone, Debug)]
pub struct ManualClock {
    uptime: watch::Sender<Duration>,
    wall_ms: Arc<Mutex<i64>>,
}

impl ManualClock {
    /// Starts one hour after "boot", at a wall time in 2026.
    pub fn new() -> Self {
        let (uptime, _) = watch::channel(Duration::from_secs(3600));
        Self { uptime, wall_ms: Arc::new(Mutex::new(1_780_000_000_000)) }
    }

    /// Lets time pass, on both readings.
    pub fn advance(&self, by: Duration) {
        self.step_wall(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
        self.uptime.send_modify(|now| *now += by);
    }

    /// Steps the wall clock alone, as an operator or a time daemon would.
    pub fn step_wall(&self, by_ms: i64) {
        *self.wall_ms.lock().unwrap_or_else(PoisonError::into_inner) += by_ms;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn uptime(&self) -> Duration {
        *self.uptime.borrow()
    }

    fn wall_ms(&self) -> i64 {
        *self.wall_ms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()> {
        let mut changes = self.uptime.subscribe();
        Box::pin(async move {
            // The sender lives as long as any clone of the clock; without one, time stands still.
            if changes.wait_for(|now| *now >= uptime).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_uptime_never_goes_back() {
        let clock = SystemClock;
        let mut last = clock.uptime();
        for _ in 0..1000 {
            let now = clock.uptime();
            assert!(now >= last);
            last = now;
        }
    }

    #[tokio::test]
    async fn manual_sleep_ends_exactly_when_advanced_far_enough() {
        let clock = ManualClock::new();
        let mut sleep = clock.sleep(Duration::from_secs(10));
        clock.advance(Duration::from_secs(9));
        assert!(futures::poll!(&mut sleep).is_pending());
        clock.step_wall(1_000_000);
        assert!(futures::poll!(&mut sleep).is_pending());
        clock.advance(Duration::from_secs(1));
        sleep.await;
    }
}
