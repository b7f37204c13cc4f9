//! The process that holds through a gate: the gate acquires and lets go, its loop counts for as long as
//! the term lasts. It is ended as a service is, by `SIGTERM`.
//!
//! A loop that does not stop in time is dropped wherever it is. It tells what it was about even then.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::gate::{Gate, Patience, Term};
use tenure::lease::{Coordinator, Lease, Terms};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use super::holder::{Count, Holder, PACE, PAUSE, Said, nanos, told_to_stop};

/// A loop that does not know what became of a count ends its term, and competes again soon.
const PATIENCE: Patience = Patience {
    stop: Duration::from_secs(5),
    restart_first: Duration::from_millis(50),
    restart_max: Duration::from_millis(500),
};

impl<S> Holder<S>
where
    S: Fn(Said) -> io::Result<()> + Clone + Send + Sync + 'static,
{
    pub(super) async fn run_gated(
        self,
        coordinator: &Coordinator,
        lines: &mut UnboundedReceiver<String>,
    ) -> io::Result<()> {
        // Before anything is said: whoever hears of it may end us.
        let mut terminate = signal(SignalKind::terminate())?;
        let scope = self.hold.what.parse().map_err(io::Error::other)?;
        let terms = Terms::new().ttl(Duration::from_millis(self.hold.ttl_ms));
        let holder = self.clone();
        let gate = Gate::new(coordinator, scope).terms(terms).patience(PATIENCE);
        let gate = gate.work("count", move |term| {
            let holder = holder.clone();
            // Where nobody listens any more, the input ends as well.
            async move { drop(holder.term(&term).await) }
        });
        let ended = gate.run(async {
            tokio::select! {
                _ = terminate.recv() => {}
                () = told_to_stop(lines) => {}
            }
        });
        match ended.await {
            Ok(()) => Ok(()),
            Err(error) => (self.say)(Said::Complaint(format!("the gate met: {error}"))),
        }
    }

    /// Counts until the term is over.
    async fn term(&self, term: &Term) -> io::Result<()> {
        let Some(lease) = term.lease() else {
            return (self.say)(Said::Complaint("a term without a lease".into()));
        };
        let (id, token, at) = (lease.id().to_owned(), lease.token(), nanos(SystemClock.uptime()));
        (self.say)(Said::Acquired { lease: id, token, at, until: nanos(lease.valid_until()) })?;
        let mut telling =
            Telling { lease, holder: self, believed: Duration::ZERO, under_way: None };
        loop {
            let now = SystemClock.uptime();
            if term.is_over() {
                return Ok(());
            }
            telling.believed = now;
            telling.under_way = Some(self.attempts.load(Ordering::Relaxed) + 1);
            let counted = self.count(lease, None, false).await?;
            telling.under_way = None;
            let pace = match counted {
                Count::Done(_) => PACE,
                Count::Refused(true) if lease.is_valid() => {
                    let why = format!("token {token} was fenced off while its term went on");
                    return (self.say)(Said::Complaint(why));
                }
                Count::Refused(_) => PAUSE,
                // It may still arrive. Once the lease is let go it cannot.
                Count::Unknown => return Ok(()),
            };
            term.sleep(pace).await;
        }
    }
}

/// Tells how the term ended, when the loop has returned or was dropped. The lease is let go only after
/// that.
struct Telling<'a, S: Fn(Said) -> io::Result<()>> {
    lease: &'a Lease,
    holder: &'a Holder<S>,
    /// When it last found that the term goes on.
    believed: Duration,
    /// The count that is under way.
    under_way: Option<u64>,
}

impl<S: Fn(Said) -> io::Result<()>> Drop for Telling<'_, S> {
    fn drop(&mut self) {
        if let Some(n) = self.under_way {
            let _ = (self.holder.say)(Said::Unknown { n });
        }
        let until = self.believed.max(SystemClock.uptime().min(self.lease.valid_until()));
        let how = self.lease.loss().map_or("released", |loss| loss.code()).to_owned();
        let (lease, token, until) = (self.lease.id().to_owned(), self.lease.token(), nanos(until));
        let _ = (self.holder.say)(Said::Ended { lease, token, until, how });
    }
}
