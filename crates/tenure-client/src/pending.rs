//! One small call on its way: queued, sent, or given up. Whether it was sent decides whether its caller
//! knows what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tenure_proto::v1;
use tokio::sync::oneshot;

use crate::error::Fault;

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

pub(crate) type Reply = Result<v1::answer::Answer, Fault>;

/// A call in the queue.
pub(crate) struct Pending {
    pub(crate) call: v1::call::Call,
    pub(crate) reply: oneshot::Sender<Reply>,
    state: Arc<AtomicU8>,
}

/// What its caller keeps.
pub(crate) struct Caller {
    pub(crate) reply: oneshot::Receiver<Reply>,
    state: Arc<AtomicU8>,
}

pub(crate) fn pending(call: v1::call::Call) -> (Pending, Caller) {
    let (sender, receiver) = oneshot::channel();
    let state = Arc::new(AtomicU8::new(QUEUED));
    let caller = Caller { reply: receiver, state: Arc::clone(&state) };
    (Pending { call, reply: sender, state }, caller)
}

impl Pending {
    /// It leaves now, unless its caller has given up.
    pub(crate) fn leaves(&self) -> bool {
        let was = self.state.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire);
        was.is_ok()
    }

    /// Nobody waits for it any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == GIVEN_UP
    }
}

impl Caller {
    /// Gives up. Whether that was in time, so that it certainly never leaves.
    pub(crate) fn give_up(&self) -> bool {
        let was =
            self.state.compare_exchange(QUEUED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        was.is_ok()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // A call that nobody waits for need not be sent.
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_in_time_never_leaves_and_what_left_cannot_be_given_up() {
        let call = || v1::call::Call::Get(v1::GetRequest::default());
        let (first, caller) = pending(call());
        assert!(caller.give_up() && !first.leaves());
        let (second, caller) = pending(call());
        assert!(second.leaves() && !caller.give_up());
        let (third, caller) = pending(call());
        drop(caller);
        assert!(!third.leaves());
    }
}
