//! G7: a holder does not give up before its deadline, and keeps its lease if there was time enough
//! without a fault in which a renewal could have succeeded.

use crate::clock::TrueClock;
use crate::history::{Guarantee::G7, Verdict, Violation};

/// A tenure that is said to have expired.
#[derive(Clone, Copy, Debug)]
pub struct Expiry {
    /// When a renewal was due.
    pub due_ms: i64,
    /// The deadline.
    pub until_ms: i64,
    /// When the last fault struck the holder or the store.
    pub fault_ms: i64,
    /// When it was said.
    pub now_ms: i64,
}

/// Whether it had to come to this.
pub fn had_to_expire(who: &str, id: &str, expiry: Expiry) -> Verdict {
    let Expiry { due_ms, until_ms, fault_ms, now_ms } = expiry;
    if now_ms + 1 < until_ms {
        return Err(Violation::new(
            G7,
            format!(
                "{who} gave up {id} as expired, though its deadline was {}",
                TrueClock::label(until_ms)
            ),
        ));
    }
    // From any instant on, a third of what is left may go by until an attempt that hangs is
    // abandoned, and a quarter of the rest until the next one starts.
    let from = due_ms.max(fault_ms);
    let left = until_ms - from;
    if left >= 1000 && left * 45 / 100 > 150 {
        return Err(Violation::new(
            G7,
            format!(
                "{who} lost {id} at {}, though nothing had gone wrong since {} and a renewal was \
                 due at {}",
                TrueClock::label(until_ms),
                TrueClock::label(fault_ms),
                TrueClock::label(due_ms)
            ),
        ));
    }
    Ok(())
}
