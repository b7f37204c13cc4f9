//! The clock of the embedded stores: one timeline for all processes of a host, across reboots.
//!
//! Within a boot, every process reads the same `CLOCK_BOOTTIME`, so a store needs only remember by
//! how much its own timeline is ahead of it. After a reboot (a boot id not seen before) the timeline
//! goes on from the last instant the store recorded: what was left of a life then is what is left of
//! it now, counted from first sight. Wall clocks play no part.

use std::time::Duration;

use crate::clock::{SharedClock, boot_id};

/// What a store remembers of its timeline. It is written down with every commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The boot in which `offset_ms` holds.
    pub boot_id: String,
    /// The store's time minus the host's uptime, in milliseconds.
    pub offset_ms: i64,
    /// The latest instant of the store's time that was recorded.
    pub last_ms: i64,
}

/// The timeline of one store as this process reads it.
#[derive(Clone)]
pub struct HostTime {
    clock: SharedClock,
    boot_id: String,
    offset_ms: i64,
}

impl HostTime {
    /// Takes up the timeline where the store's anchor left it. The caller holds the store's write
    /// lock and, if [`HostTime::anchor`] differs from what was stored, writes it back.
    pub fn resume(clock: SharedClock, stored: Option<&Anchor>) -> Self {
        Self::resume_in(clock, boot_id(), stored)
    }

    /// The same within a boot of the caller's choosing, for tests that reboot.
    pub fn resume_in(clock: SharedClock, boot_id: String, stored: Option<&Anchor>) -> Self {
        let uptime_ms = millis(clock.uptime());
        // Uptime never goes back within a boot. Where it has, this is another one, though it bears the
        // same name: not every system has one to tell.
        let same = |anchor: &&Anchor| {
            anchor.boot_id == boot_id && uptime_ms + anchor.offset_ms >= anchor.last_ms
        };
        let offset_ms = match stored {
            Some(anchor) if same(&anchor) => anchor.offset_ms,
            Some(anchor) => anchor.last_ms - uptime_ms,
            None => 0,
        };
        Self { clock, boot_id, offset_ms }
    }

    /// The store's time now.
    pub fn now_ms(&self) -> i64 {
        millis(self.clock.uptime()) + self.offset_ms
    }

    /// What to write down with a commit made at `now_ms`.
    pub fn anchor(&self, now_ms: i64) -> Anchor {
        Anchor { boot_id: self.boot_id.clone(), offset_ms: self.offset_ms, last_ms: now_ms }
    }

    /// The clock underneath.
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};
    use std::sync::Arc;

    #[test]
    fn a_reboot_stops_time_and_a_restart_does_not() {
        let clock = ManualClock::new();
        let first = HostTime::resume_in(Arc::new(clock.clone()), "boot-1".into(), None);
        let written = first.anchor(first.now_ms());

        clock.advance(Duration::from_secs(60));
        let restarted =
            HostTime::resume_in(Arc::new(clock.clone()), "boot-1".into(), Some(&written));
        assert_eq!(restarted.now_ms() - written.last_ms, 60_000);

        // A new boot counts its uptime from zero; the store's time goes on where it was recorded.
        let after = ManualClock::new();
        let rebooted =
            HostTime::resume_in(Arc::new(after.clone()), "boot-2".into(), Some(&written));
        assert_eq!(rebooted.now_ms(), written.last_ms);
        after.step_wall(-3_600_000);
        after.advance(Duration::from_secs(5));
        assert_eq!(rebooted.now_ms(), written.last_ms + 5_000);
        assert_eq!(after.uptime(), Duration::from_secs(3605));
    }

    #[test]
    fn uptime_that_went_back_is_another_boot_whatever_its_name() {
        let before = ManualClock::new();
        before.advance(Duration::from_secs(1_000_000));
        let first = HostTime::resume_in(Arc::new(before), "unknown-boot".into(), None);
        let written = first.anchor(first.now_ms());
        let after = ManualClock::new();
        let rebooted = HostTime::resume_in(Arc::new(after), "unknown-boot".into(), Some(&written));
        assert_eq!(rebooted.now_ms(), written.last_ms);
    }
}
