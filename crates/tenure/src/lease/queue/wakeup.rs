//! What one waiting task sleeps on, and what it is told.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// What a waiting task sleeps on.
#[derive(Default)]
pub(crate) struct Wakeup {
    state: AtomicU8,
    notify: Notify,
}

/// What a waiting task is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// It is your turn: try.
    Try,
    /// Your place in the queue is gone: passed by, or granted what you wait for by a hand-over. Look.
    Gone,
}

const WAITING: u8 = 0;
const CALLED: u8 = 1;
const GONE: u8 = 2;

impl Wakeup {
    pub(crate) fn call(&self) {
        // A place that is gone stays gone.
        let _ = self.state.compare_exchange(WAITING, CALLED, Ordering::AcqRel, Ordering::Acquire);
        self.notify.notify_one();
    }

    pub(crate) fn gone(&self) {
        self.state.store(GONE, Ordering::Release);
        self.notify.notify_one();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    pub(crate) fn wait_again(&self) {
        let _ = self.state.compare_exchange(CALLED, WAITING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Resolves when there is something to do.
    pub(crate) async fn woken(&self) -> Wake {
        loop {
            match self.state.load(Ordering::Acquire) {
                CALLED => return Wake::Try,
                GONE => return Wake::Gone,
                _ => self.notify.notified().await,
            }
        }
    }
}
