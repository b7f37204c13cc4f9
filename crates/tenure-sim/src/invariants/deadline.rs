//! G3: whoever believes to hold a lease does hold it, and stops believing before it ends.

use crate::clock::TrueClock;
use crate::history::{Guarantee::G3, Verdict, Violation};
use crate::truth::{End, Truth};

/// Whether a holder that was told nothing may be wrong: somebody revoked its lease, and it learns of
/// that with its next renewal.
pub fn is_excused(truth: &Truth, id: &str, token: u64) -> bool {
    let end = truth.tenure(id, token).and_then(|tenure| tenure.end.as_ref());
    matches!(end, Some((_, End::Revoked(_))))
}

/// A holder believes until `until_ms`; the lease is its own and lives at least as long.
pub fn covered(truth: &Truth, who: &str, id: &str, token: u64, until_ms: i64) -> Verdict {
    let wrong = |message: String| Err(Violation::new(G3, message));
    let Some(tenure) = truth.tenure(id, token) else {
        return wrong(format!("{who} believes to hold {id} with token {token}; nobody ever did"));
    };
    let until = TrueClock::label(until_ms);
    match &tenure.end {
        Some((_, End::Revoked(_))) => Ok(()),
        Some((at, end)) => wrong(format!(
            "{who} believes to hold {id} with token {token} until {until}, but that ended at {} \
             ({end:?})",
            TrueClock::label(*at)
        )),
        None if until_ms > tenure.expires_ms => wrong(format!(
            "{who} believes to hold {id} with token {token} until {until}, but its life ends at {}",
            TrueClock::label(tenure.expires_ms)
        )),
        None => Ok(()),
    }
}

/// A holder that waited for the loss was told at its deadline, not later, unless it was frozen.
pub fn told_in_time(who: &str, id: &str, until_ms: i64, woke_ms: i64, told_ms: i64) -> Verdict {
    let allowed = until_ms.max(woke_ms) + 5;
    if told_ms <= allowed {
        return Ok(());
    }
    Err(Violation::new(
        G3,
        format!(
            "{who} had to stop with {id} at {}, and was told only at {}",
            TrueClock::label(until_ms),
            TrueClock::label(told_ms)
        ),
    ))
}
