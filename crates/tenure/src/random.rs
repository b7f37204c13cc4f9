//! The only module that reads the machine's randomness.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Randomness, passed in.
pub trait Random: Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;
}

/// Randomness to share.
pub type SharedRandom = Arc<dyn Random>;

/// The machine's own randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl SystemRandom {
    /// The machine's randomness, ready to share. What it gives is fetched for many draws at once: every
    /// lease takes a nonce, and asking the system each time costs more than all else that is done for it.
    pub fn shared() -> SharedRandom {
        Arc::new(Fetched(Mutex::default()))
    }
}

/// Draws fetched from the system at once.
const FETCH: usize = 64;

/// Randomness fetched ahead. Each store has its own; one that was open when a process forked has no
/// threads in the child, so nothing is drawn twice.
#[derive(Default)]
struct Fetched(Mutex<Vec<u64>>);

impl Random for Fetched {
    #[expect(clippy::disallowed_methods, reason = "this is the source of randomness")]
    fn next_u64(&self) -> u64 {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            let mut bytes = [0; FETCH * 8];
            getrandom::fill(&mut bytes).expect("the operating system has randomness");
            let (draws, _) = bytes.as_chunks();
            left.extend(draws.iter().map(|draw| u64::from_ne_bytes(*draw)));
        }
        left.pop().unwrap_or_else(|| SystemRandom.next_u64())
    }
}

impl Random for SystemRandom {
    #[expect(clippy::disallowed_methods, reason = "this is the source of randomness")]
    fn next_u64(&self) -> u64 {
        // The kernel's source fails only before it is seeded at early boot; nothing of ours can run
        // safely without nonces then.
        getrandom::u64().expect("the operating system has randomness")
    }
}

/// A repeatable sequence from one seed (SplitMix64), for tests and simulations.
#[derive(Debug)]
pub struct SeededRandom(Mutex<u64>);

impl SeededRandom {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Random for SeededRandom {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// A number in `0..bound`; 0 when the bound is 0.
pub fn below(random: &dyn Random, bound: u64) -> u64 {
    // Multiply-shift: the bias is below bound / 2^64, far under anything we could notice.
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// A nonce of 128 bits in hexadecimal.
pub fn nonce(random: &dyn Random) -> String {
    let mut text = String::with_capacity(32);
    let _ = write!(text, "{:016x}{:016x}", random.next_u64(), random.next_u64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_ahead_is_given_once() {
        let random = SystemRandom::shared();
        let mut drawn: Vec<u64> = (0..3 * FETCH).map(|_| random.next_u64()).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 3 * FETCH, "64 random bits do not repeat");
    }

    #[test]
    fn seeded_repeats_and_below_stays_below() {
        let (a, b) = (SeededRandom::new(7), SeededRandom::new(7));
        for bound in 1..200 {
            let (x, y) = (below(&a, bound), below(&b, bound));
            assert_eq!(x, y);
            assert!(x < bound);
        }
        assert_ne!(nonce(&a), nonce(&a));
        assert_eq!(below(&a, 0), 0);
    }
}
