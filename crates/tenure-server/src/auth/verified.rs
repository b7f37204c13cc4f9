//! Signed tokens whose signature was checked before.
//!
//! To check an elliptic signature takes about as long as everything else about a small request. A client
//! shows the same token with every request, so who it is for is remembered by the token's SHA-256: until
//! the token is over, and only for the keys that it was checked with.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Caller;
use super::keys::KeySet;
use super::tokens::Sum;

/// So many are remembered at most.
const MOST: usize = 10_000;

#[derive(Default)]
pub(super) struct Verified {
    known: Mutex<HashMap<Sum, Known>>,
}

struct Known {
    caller: Caller,
    keys: Arc<KeySet>,
    until: Duration,
}

impl Verified {
    /// Whom a token is for, and the keys it was checked with.
    pub(super) fn find(&self, sum: &Sum) -> Option<(Caller, Arc<KeySet>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(sum).map(|known| (known.caller.clone(), Arc::clone(&known.keys)))
    }

    /// Remembers whom a token is for.
    pub(super) fn keep(
        &self,
        sum: Sum,
        caller: &Caller,
        keys: Arc<KeySet>,
        now: Duration,
        until: Duration,
    ) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, known| now < known.until);
        }
        // So many at once are nobody's clients; beginning anew costs each of them one check.
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(sum, Known { caller: caller.clone(), keys, until });
    }

    /// It is over, or the keys have changed.
    pub(super) fn forget(&self, sum: &Sum) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_remembered_and_those_that_are_over_go_first() {
        let (verified, keys) = (Verified::default(), Arc::new(KeySet::secret(&[7; 32]).unwrap()));
        let sum = |number: usize| {
            let mut sum = [0; 32];
            sum[..8].copy_from_slice(&number.to_be_bytes());
            sum
        };
        let (now, later) = (Duration::from_secs(10), Duration::from_secs(20));
        let keep = |number: usize, until| {
            verified.keep(sum(number), &Caller::anybody(), Arc::clone(&keys), now, until);
        };
        keep(0, later);
        (1..MOST).for_each(|number| keep(number, now));
        keep(MOST, later);
        assert!(verified.find(&sum(0)).is_some() && verified.find(&sum(MOST)).is_some());
        assert_eq!(verified.known.lock().unwrap().len(), 2);
        (0..=MOST).for_each(|number| keep(number, later));
        assert!(verified.known.lock().unwrap().len() <= MOST);
        verified.forget(&sum(MOST));
        assert!(verified.find(&sum(MOST)).is_none());
    }
}
