//! What this process wrote or read last, as a guess at what is there.
//!
//! A commit that guesses right needs one round trip instead of two. Nothing is ever decided by a
//! guess: the transaction compares every revision it was based on, and a refusal is answered only
//! after a look. Two generations bound it: when the younger is full, the older is forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use tenure::Key;

use crate::envelope::Known;

/// Bytes of one generation, roughly.
const GENERATION: usize = 8 * 1024 * 1024;
/// Larger objects are read again rather than kept.
const LARGEST: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Cache {
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<Key, Arc<Known>, RandomState>,
    old: HashMap<Key, Arc<Known>, RandomState>,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Known>> {
        let generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.get(key).or_else(|| generations.old.get(key)).cloned()
    }

    pub(crate) fn put(&self, known: &Arc<Known>) {
        let size = known.object.size();
        let key = &known.object.key;
        if size > LARGEST {
            return self.forget(key);
        }
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.bytes + size > GENERATION {
            generations.old = std::mem::take(&mut generations.young);
            generations.bytes = 0;
        }
        generations.bytes += size;
        generations.young.insert(key.clone(), Arc::clone(known));
    }

    pub(crate) fn forget(&self, key: &Key) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.remove(key);
        generations.old.remove(key);
    }
}
