//! The state of one tenure, shared by its handle and by the task that renews it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::hold::schedule::Slot;
use crate::lease::{Hooks, Loss, Metadata, Owner, Timing};
use crate::{Error, Key};

/// One lease that was granted to us.
pub(crate) struct Held {
    /// The lease object.
    pub(crate) key: Key,
    /// On whose behalf it is held.
    pub(crate) owner: Owner,
    /// Unique to this acquisition.
    pub(crate) nonce: Arc<str>,
    /// Greater than that of every earlier holder.
    pub(crate) token: u64,
    pub(crate) timing: Timing,
    /// Whether a record for the reaper was written along with it.
    pub(crate) reapable: bool,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) acquired_at_ms: i64,
    state: Mutex<State>,
    changed: Notify,
}

/// What changes while it is held.
pub(crate) struct State {
    /// The revision to renew by.
    pub(crate) revision: u64,
    /// The local instant after which the holder must not act.
    pub(crate) valid_until: Duration,
    /// Why it ended, once it has.
    pub(crate) loss: Option<Loss>,
    /// The holder has begun to let go: renewals stop, and what they find out no longer counts.
    pub(crate) leaving: bool,
    /// Where the schedule of renewals has it.
    pub(crate) slot: Option<Slot>,
    /// Renewals that failed in a row.
    pub(crate) failures: u32,
    /// What the holder tells about itself.
    pub(crate) metadata: Metadata,
}

/// What it takes to hold something.
pub(crate) struct NewTenure {
    pub(crate) key: Key,
    pub(crate) owner: Owner,
    pub(crate) nonce: Arc<str>,
    pub(crate) token: u64,
    pub(crate) revision: u64,
    pub(crate) timing: Timing,
    /// When the request that was granted left.
    pub(crate) sent: Duration,
    pub(crate) reapable: bool,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) metadata: Metadata,
    pub(crate) acquired_at_ms: i64,
}

impl Held {
    pub(crate) fn new(new: NewTenure) -> Arc<Self> {
        let state = State {
            revision: new.revision,
            valid_until: new.timing.valid_until(new.sent),
            loss: None,
            leaving: false,
            slot: None,
            failures: 0,
            metadata: new.metadata,
        };
        Arc::new(Self {
            key: new.key,
            owner: new.owner,
            nonce: new.nonce,
            token: new.token,
            timing: new.timing,
            reapable: new.reapable,
            hooks: new.hooks,
            acquired_at_ms: new.acquired_at_ms,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metadata(&self) -> Metadata {
        self.state().metadata.clone()
    }

    /// A renewal sent at `sent` was granted. Never moves the deadline back: replies may overtake
    /// each other, and the latest promise of the store is the one that counts. Returns the deadline.
    pub(crate) fn renewed(&self, sent: Duration, revision: u64) -> Duration {
        let mut state = self.state();
        state.revision = revision;
        state.failures = 0;
        state.valid_until = state.valid_until.max(self.timing.valid_until(sent));
        state.valid_until
    }

    /// Ends the tenure, unless it has ended already. Whether this call ended it.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        let mut state = self.state();
        if state.loss.is_some() {
            return false;
        }
        state.loss = Some(loss);
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// The holder begins to let go; whether it was still held and nobody else had begun.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state();
        let first = !state.leaving;
        state.leaving = true;
        first
    }

    /// The holder keeps it after all.
    pub(crate) fn stay(&self) {
        self.state().leaving = false;
    }

    /// The reason it ended, as known at this local instant.
    pub(crate) fn ended(&self, now: Duration) -> Option<Loss> {
        let state = self.state();
        state.loss.clone().or_else(|| (now >= state.valid_until).then_some(Loss::Expired))
    }

    /// The error of a call that acts as if it were still held.
    pub(crate) fn lost(&self, loss: &Loss) -> Error {
        let current = match loss {
            Loss::Taken { token, .. } => Some(*token),
            _ => None,
        };
        Error::Lost { key: self.key.clone(), token: self.token, current }
    }

    /// Resolves when the state has changed after the call.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}
