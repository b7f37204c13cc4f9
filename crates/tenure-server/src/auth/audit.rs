//! The audit log: one line for everything that was refused, and for everything done over the head of
//! somebody else. Its lines have the target `audit` and always the same fields: `subject`, `tenant`,
//! `action`, `resource` and `peer`, as far as they are known. Never a token.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::clock::SharedClock;
use tracing::field::display;

use super::{Action, Caller};

/// Somebody may not do this.
pub(crate) fn denied(caller: &Caller, action: Action, resource: &str) {
    let (subject, tenant, peer) = (caller.subject(), caller.tenant(), caller.peer().map(display));
    tracing::warn!(target: "audit", subject, tenant, action = action.name(), resource, peer, "denied");
}

/// Somebody did this: `revoked`, `resized`, `overridden`. Or perhaps did.
fn done(caller: &Caller, notable: &Notable, what: std::fmt::Arguments<'_>) {
    let (subject, tenant, peer) = (caller.subject(), caller.tenant(), caller.peer().map(display));
    let (action, resource) = (notable.action.name(), &*notable.resource);
    tracing::info!(target: "audit", subject, tenant, action, resource, peer, "{what}");
}

/// Something that not everybody may do: with which permission, to what, and how to say that it was done.
pub(crate) struct Notable {
    pub(crate) action: Action,
    pub(crate) resource: String,
    pub(crate) what: &'static str,
}

/// Notable things that are being done. If the caller goes away, or the store does not say how it went, the
/// log says that they may have been done.
#[must_use = "dropped, it says that nobody knows"]
pub(crate) struct Noting<'a> {
    caller: &'a Caller,
    all: Vec<Notable>,
}

impl<'a> Noting<'a> {
    /// Begun, and not known to have been done.
    pub(crate) fn new(caller: &'a Caller, all: Vec<Notable>) -> Self {
        Self { caller, all }
    }

    /// It is known how it went, unless it is not.
    pub(crate) fn end<T>(mut self, how: &tenure::Result<T>) {
        match how {
            Ok(_) => self.tell(|notable| notable.what),
            Err(error) if error.is_unknown() => {}
            Err(_) => self.nothing(),
        }
    }

    /// Nothing was done.
    pub(crate) fn nothing(mut self) {
        self.all.clear();
    }

    /// It was not done: there was nothing to do it to.
    pub(crate) fn instead(mut self, what: &'static str) {
        self.tell(|_| what);
    }

    fn tell(&mut self, what: impl Fn(&Notable) -> &'static str) {
        for notable in self.all.drain(..) {
            done(self.caller, &notable, format_args!("{}", what(&notable)));
        }
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        for notable in &self.all {
            done(self.caller, notable, format_args!("perhaps {}", notable.what));
        }
    }
}

/// Failed logins that are logged within one window; the rest is counted.
const LINES: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// Failed logins. All are counted; the log gets a bounded number of lines, so that nobody can fill a disk
/// from outside.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    end: Duration,
    lines: u64,
    left_out: u64,
}

impl Failures {
    /// How many there were since the start.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// One more, of somebody who says or proves to be `subject`.
    pub(super) fn add(
        &self,
        clock: &SharedClock,
        subject: Option<&str>,
        peer: SocketAddr,
        reason: &str,
    ) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(left_out) = self.line(clock.uptime()) else { return };
        tracing::warn!(target: "audit", subject, action = "login", %peer, reason, left_out, "refused");
    }

    /// Whether there may be a line now, and how many were left out before it.
    fn line(&self, now: Duration) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= window.end {
            window.end = now + WINDOW;
            window.lines = 0;
        }
        if window.lines >= LINES {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_gets_a_bounded_number_of_lines_and_is_told_what_it_misses() {
        let failures = Failures::default();
        let now = Duration::from_secs(100);
        for _ in 0..LINES {
            assert_eq!(failures.line(now), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(failures.line(now + WINDOW / 2), None);
        }
        assert_eq!(failures.line(now + WINDOW), Some(7));
        assert_eq!(failures.line(now + WINDOW), Some(0));
    }
}
