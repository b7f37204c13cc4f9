//! A release, once begun, is finished, even if its caller goes away.
//!
//! From the moment a holder begins to let go, nothing renews the lease any more. A caller that is
//! cancelled then, by a timeout for instance, must not leave it behind to block others for its life.

use std::sync::Arc;

use crate::Error;
use crate::lease::end::release::{Outcome, withdraw};
use crate::lease::hold::state::Held;
use crate::lease::inner::Inner;

/// Leases that their holder has begun to let go of.
#[must_use = "dropped, it lets go in the background"]
pub(crate) struct Leaving<'a> {
    inner: &'a Arc<Inner>,
    leases: &'a [Arc<Held>],
    outcome: Outcome<'a>,
    done: bool,
}

impl<'a> Leaving<'a> {
    /// Renewals stop, and what they find out no longer counts.
    pub(crate) fn begin(
        inner: &'a Arc<Inner>,
        leases: &'a [Arc<Held>],
        outcome: Outcome<'a>,
    ) -> Self {
        for held in leases {
            held.leave();
            inner.stop_renewing(held);
        }
        Self { inner, leases, outcome, done: false }
    }

    /// It is known how it went.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (inner, leases) = (Arc::clone(self.inner), self.leases.to_vec());
        let value = match self.outcome {
            Outcome::Plain => None,
            Outcome::Ok(value) => Some(Ok(value.to_vec())),
            Outcome::Fail(error) => Some(Err(error.to_owned())),
        };
        self.inner.clean_up(async move {
            let outcome = match &value {
                None => Outcome::Plain,
                Some(Ok(value)) => Outcome::Ok(value),
                Some(Err(error)) => Outcome::Fail(error),
            };
            // What was sent before may have been applied.
            let doubt =
                Error::unknown(inner.backend(), "its caller went away while it was being released");
            if let Err(error) = withdraw(&inner, &leases, outcome, Some(doubt)).await {
                tracing::debug!(%error, "a release that was given up could not be finished");
            }
        });
    }
}
