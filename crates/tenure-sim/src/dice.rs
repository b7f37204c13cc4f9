//! Chance, drawn from the seed: one sequence for each purpose, so that one more draw here does not
//! change what happens there.

use std::time::Duration;

use tenure::random::{Random, SeededRandom, below};

/// A sequence of draws.
#[derive(Debug)]
pub struct Dice(SeededRandom);

impl Dice {
    /// The sequence of this seed for this purpose.
    pub fn new(seed: u64, purpose: &str) -> Self {
        Self(SeededRandom::new(mix(seed, purpose)))
    }

    /// A number in `0..bound`.
    pub fn below(&self, bound: u64) -> u64 {
        below(&self.0, bound)
    }

    /// Whether something happens that does so this often in a thousand times.
    pub fn chance(&self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A number between these two, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// So many milliseconds, between these two.
    pub fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// Milliseconds between these two, small ones as likely as large ones.
    pub fn spread(&self, low: u64, high: u64) -> Duration {
        let mut top = high;
        while top / 2 > low && self.chance(500) {
            top /= 2;
        }
        self.millis(low, top)
    }

    /// One of these.
    pub fn pick<'a, T>(&self, all: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(all.len() as u64)).unwrap_or(0);
        &all[at]
    }
}

/// A seed for one purpose of a run.
pub fn mix(seed: u64, purpose: &str) -> u64 {
    // FNV-1a over the purpose, then one round of the generator, so that neighbours differ widely.
    let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    SeededRandom::new(seed ^ hash.rotate_left(17)).next_u64()
}
