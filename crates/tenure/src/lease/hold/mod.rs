//! Holding a lease: what is known of a tenure, the handle a program has, and renewing it in time.
//!
//! [`renew`] is the one place where renewals are sent and sent again; [`timing`] says when, and
//! [`schedule`] in which order. A tenure that ends tells its [`lease::Lease`] and its observers once.

#[cfg(test)]
mod asleep_tests;
pub(crate) mod heartbeat;
#[cfg(test)]
mod hold_tests;
pub(crate) mod lease;
pub(crate) mod observer;
pub(crate) mod renew;
pub(crate) mod schedule;
pub(crate) mod state;
pub(crate) mod timing;

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::flaws::{Flaw, planted};
use crate::lease::Loss;
use crate::lease::hold::schedule::Schedule;
use crate::lease::hold::state::Held;
use crate::lease::inner::Inner;
use crate::lease::metrics::EndLabels;
use crate::store::Fence;

/// The beginning and the end of a tenure, and what is due in between.
impl Inner {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews this lease at that instant.
    pub(crate) fn renew_at(&self, held: &Arc<Held>, at: Duration) {
        if self.schedule().put(held, self.clock.uptime(), at) {
            self.wake.notify_one();
        }
    }

    /// Stops renewing.
    pub(crate) fn stop_renewing(&self, held: &Held) {
        self.schedule().remove(held);
    }

    /// All that is to be renewed now, and when the next one is.
    pub(crate) fn take_due(&self, now: Duration) -> (Vec<Arc<Held>>, Option<Duration>) {
        self.schedule().take(now)
    }

    /// Leases on the schedule.
    pub(crate) fn scheduled(&self) -> usize {
        self.schedule().len()
    }

    /// A tenure begins.
    pub(crate) fn began(&self, held: &Arc<Held>, sent: Duration) {
        self.metrics.acquired.inc();
        self.metrics.held.inc();
        tracing::info!(
            lease = %held.key.id, holder = %held.owner, token = held.token, "acquired"
        );
        self.renew_at(held, held.timing.due(sent));
    }

    /// Ends a tenure, once.
    pub(crate) fn end(&self, held: &Held, loss: Loss) {
        self.stop_renewing(held);
        if planted(Flaw::ChangesItsStory) {
            // Whatever it was told first, the next one who asks hears another reason.
            let mut state = held.state();
            state.loss = state.loss.take().map(|_| Loss::Released);
        }
        if !held.lose(loss.clone()) {
            return;
        }
        self.metrics.held.dec();
        self.metrics.ended.get_or_create(&EndLabels { reason: loss.code() }).inc();
        let (lease, holder, token) = (&held.key.id, &held.owner, held.token);
        if loss.is_voluntary() {
            tracing::info!(%lease, %holder, token, "{loss}");
        } else {
            tracing::warn!(%lease, %holder, token, "lost: {loss}");
        }
    }

    /// The owner renews it elsewhere from now on: nothing has ended, and nothing is ours.
    pub(crate) fn detach(&self, held: &Held) {
        held.leave();
        self.stop_renewing(held);
        // Nobody is left to be told; this keeps a renewal that is under way from ending it again.
        if held.lose(Loss::Released) {
            self.metrics.held.dec();
            let (lease, holder) = (&held.key.id, &held.owner);
            tracing::debug!(%lease, %holder, token = held.token, "renewed elsewhere from now on");
        }
    }
}

/// What a handle and an observer both answer.
impl Inner {
    pub(crate) fn fence(&self, held: &Held) -> Fence {
        Fence::new(held.key.clone(), held.token)
    }

    pub(crate) fn remaining(&self, held: &Held) -> Duration {
        match self.loss(held) {
            Some(_) => Duration::ZERO,
            None => held.state().valid_until.saturating_sub(self.clock.uptime()),
        }
    }

    pub(crate) fn loss(&self, held: &Held) -> Option<Loss> {
        let loss = held.ended(self.clock.uptime())?;
        // The first answer is final: a reply that was on its way must not undo it.
        self.end(held, loss.clone());
        Some(held.state().loss.clone().unwrap_or(loss))
    }

    pub(crate) async fn lost(&self, held: &Held) -> Loss {
        loop {
            let changed = held.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(loss) = self.loss(held) {
                return loss;
            }
            let valid_until = held.state().valid_until;
            let end = self.clock.sleep_until(valid_until);
            tokio::select! {
                biased;
                () = changed => {}
                () = end => {}
            }
        }
    }
}
