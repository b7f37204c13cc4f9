//! Nonces for acquisitions, drawn some at a time while many are needed.
//!
//! Asking the machine for randomness is a call of the kernel, as dear as much else of an acquisition.
//! A caller that needs many draws a handful at once. What was drawn is used within moments or thrown away:
//! nonces that lie about in memory would be given out twice if this machine were copied.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::random::{Random, text};

/// Drawn at once, while the ones before were used up in time.
const HANDFUL: usize = 32;
/// How long they keep.
const FRESH: Duration = Duration::from_millis(10);

/// A source of nonces.
#[derive(Default)]
pub(crate) struct Nonces {
    drawn: Mutex<Drawn>,
}

#[derive(Default)]
struct Drawn {
    at: Duration,
    left: Vec<u128>,
}

impl Nonces {
    /// One that was never given out.
    pub(crate) fn next(&self, random: &dyn Random, now: Duration) -> Arc<str> {
        let bits = self.drawn.lock().unwrap_or_else(PoisonError::into_inner).next(random, now);
        text(bits, |text| text.into())
    }
}

impl Drawn {
    fn next(&mut self, random: &dyn Random, now: Duration) -> u128 {
        let are_fresh = now.saturating_sub(self.at) < FRESH;
        if let Some(bits) = self.left.pop().filter(|_| are_fresh) {
            return bits;
        }
        self.left.clear();
        self.at = now;
        if are_fresh {
            self.left.resize(HANDFUL, 0);
            random.fill(&mut self.left);
        }
        self.left.pop().unwrap_or_else(|| random.next_u128())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::{SeededRandom, SystemRandom};

    #[test]
    fn none_is_given_out_twice_and_none_is_kept_for_long() {
        let (nonces, mut seen) = (Nonces::default(), HashSet::new());
        let mut now = Duration::from_secs(1);
        for n in 0..1000 {
            assert!(seen.insert(nonces.next(&SystemRandom, now)));
            now += Duration::from_millis(n % 12);
            assert!(nonces.drawn.lock().unwrap().left.len() < HANDFUL);
        }
        // What has lain about is not what is given out next.
        let nonces = Nonces::default();
        nonces.next(&SystemRandom, now);
        assert!(nonces.drawn.lock().unwrap().left.is_empty());
        nonces.next(&SystemRandom, now);
        let kept = nonces.drawn.lock().unwrap().left.clone();
        assert_eq!(kept.len(), HANDFUL - 1);
        let next = nonces.next(&SystemRandom, now + FRESH);
        assert!(kept.iter().all(|bits| text(*bits, |text| *text != *next)));
        assert!(nonces.drawn.lock().unwrap().left.is_empty());
    }

    #[test]
    fn a_seed_gives_the_same_ones_again() {
        let some = || {
            let (nonces, random) = (Nonces::default(), SeededRandom::new(7));
            (0..100).map(|_| nonces.next(&random, Duration::ZERO)).collect::<Vec<_>>()
        };
        assert_eq!(some(), some());
        assert_eq!(some()[0].len(), 32);
    }
}
