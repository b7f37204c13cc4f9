//! The only module that reads the machine's randomness.

use std::sync::{Arc, Mutex, PoisonError};

/// Randomness, passed in.
pub trait Random: Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;

    /// 128 random bits.
    fn next_u128(&self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// 128 random bits for each, which costs less than one by one.
    fn fill(&self, into: &mut [u128]) {
        into.iter_mut().for_each(|bits| *bits = self.next_u128());
    }
}

/// Randomness to share.
pub type SharedRandom = Arc<dyn Random>;

/// The machine's own randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

impl SystemRandom {
    /// The machine's randomness, ready to share.
    pub fn shared() -> SharedRandom {
        Arc::new(Self)
    }
}

impl Random for SystemRandom {
    #[expect(clippy::disallowed_methods, reason = "this is the source of randomness")]
    fn next_u64(&self) -> u64 {
        // The kernel's source fails only before it is seeded at early boot; nothing of ours can run
        // safely without nonces then.
        getrandom::u64().expect("the operating system has randomness")
    }

    #[expect(clippy::disallowed_methods, reason = "this is the source of randomness")]
    fn next_u128(&self) -> u128 {
        // One call of the kernel instead of two: a nonce is drawn for every acquisition.
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system has randomness");
        u128::from_ne_bytes(bytes)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the source of randomness")]
    fn fill(&self, into: &mut [u128]) {
        let mut bytes = vec![[0; 16]; into.len()];
        getrandom::fill(bytes.as_flattened_mut()).expect("the operating system has randomness");
        into.iter_mut().zip(bytes).for_each(|(bits, bytes)| *bits = u128::from_ne_bytes(bytes));
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
    text(random.next_u128(), str::to_owned)
}

/// Does something with 128 bits in hexadecimal.
pub(crate) fn text<T>(bits: u128, act: impl FnOnce(&str) -> T) -> T {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (byte, pair) in bits.to_be_bytes().into_iter().zip(digits.as_chunks_mut::<2>().0) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
    // They are digits, so this is text.
    act(str::from_utf8(&digits).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_repeats_and_below_stays_below() {
        let (a, b) = (SeededRandom::new(7), SeededRandom::new(7));
        for bound in 1..200 {
            let (x, y) = (below(&a, bound), below(&b, bound));
            assert_eq!(x, y);
            assert!(x < bound);
        }
        assert_ne!(nonce(&a), nonce(&a));
        let (c, d) = (SeededRandom::new(9), SeededRandom::new(9));
        assert_eq!(nonce(&c), format!("{:016x}{:016x}", d.next_u64(), d.next_u64()));
        assert_ne!(nonce(&SystemRandom), nonce(&SystemRandom));
        assert_eq!(below(&a, 0), 0);
    }
}
