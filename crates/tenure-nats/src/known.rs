//! What this process last knew of each subject, in bounded memory.
//!
//! It saves the read before a write: a holder that renews or releases, and an acquisition behind a
//! release, know the sequence to expect. It decides nothing, because a write on stale knowledge is
//! refused by the server and begins again with a read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use crate::stored::Known;

/// Subjects and bytes in each of the two generations.
const SUBJECTS: usize = 16_384;
const BYTES: usize = 16 * 1024 * 1024;

/// Two generations: what is used moves to the young one, and when that is full the old one goes.
#[derive(Default)]
pub(crate) struct Memory {
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<String, Known, RandomState>,
    old: HashMap<String, Known, RandomState>,
    young_bytes: usize,
}

impl Memory {
    /// What was last known.
    pub(crate) fn recall(&self, subject: &str) -> Option<Known> {
        let mut generations = self.lock();
        if let Some(known) = generations.young.get(subject) {
            return Some(known.clone());
        }
        let known = generations.old.remove(subject)?;
        generations.insert(subject.to_owned(), known.clone());
        Some(known)
    }

    /// Remembers the state at a sequence, unless a later one is known.
    pub(crate) fn learn(&self, subject: &str, known: Known) {
        let mut generations = self.lock();
        if let Some(before) = generations.young.get_mut(subject) {
            if before.sequence < known.sequence {
                let (more, less) = (known.size(), before.size());
                *before = known;
                generations.young_bytes += more;
                generations.young_bytes -= less;
                generations.make_room(0);
            }
        } else if generations.old.get(subject).is_none_or(|b| b.sequence < known.sequence) {
            generations.insert(subject.to_owned(), known);
        }
    }

    /// The same for news of others' writes: only what was known already, or costs next to nothing,
    /// is kept.
    pub(crate) fn hear(&self, subject: &str, known: Known) {
        let is_news = {
            let generations = self.lock();
            generations.young.contains_key(subject) || generations.old.contains_key(subject)
        };
        if is_news || known.object.is_none() {
            self.learn(subject, known);
        }
    }

    /// The server said otherwise.
    pub(crate) fn forget(&self, subject: &str) {
        let mut generations = self.lock();
        if let Some(known) = generations.young.remove(subject) {
            generations.young_bytes -= known.size() + subject.len();
        }
        generations.old.remove(subject);
    }

    /// The bucket is not the one that all this was known of.
    pub(crate) fn forget_all(&self) {
        *self.lock() = Generations::default();
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn age(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.young_bytes = 0;
    }

    fn make_room(&mut self, bytes: usize) {
        if self.young_bytes + bytes > BYTES {
            self.age();
        }
    }

    /// Adds what the young generation does not have.
    fn insert(&mut self, subject: String, known: Known) {
        let bytes = known.size() + subject.len();
        if self.young.len() >= SUBJECTS {
            self.age();
        }
        self.make_room(bytes);
        self.old.remove(&subject);
        self.young_bytes += bytes;
        self.young.insert(subject, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64) -> Known {
        Known { sequence, ..Known::NOTHING }
    }

    #[test]
    fn the_latest_is_kept_and_memory_is_bounded() {
        let memory = Memory::default();
        memory.learn("a", at(7));
        memory.learn("a", at(5));
        assert_eq!(memory.recall("a").map(|known| known.sequence), Some(7));
        memory.forget("a");
        memory.learn("a", at(3));
        assert_eq!(memory.recall("a").map(|known| known.sequence), Some(3));
        for n in 0..SUBJECTS as u64 * 3 {
            memory.hear(&format!("s{n}"), at(n + 1));
            // What is used stays.
            assert!(memory.recall("a").is_some());
        }
        let generations = memory.lock();
        assert!(generations.young.len() + generations.old.len() <= 2 * SUBJECTS);
        drop(generations);
        for n in 0..64 {
            let object = tenure::Object {
                key: tenure::Key::new("k", "i"),
                name: None,
                labels: Default::default(),
                payload: vec![0; BYTES / 8].into(),
                version: 1,
                revision: n,
                created_revision: n,
                token: n,
                created_at_ms: 0,
                updated_at_ms: 0,
                ttl: None,
                expires_in: None,
            };
            let object = Some(std::sync::Arc::new(object));
            memory.learn(
                &format!("s{}", n % 20),
                Known { sequence: n + 1_000_000, object, ..Known::NOTHING },
            );
        }
        let generations = memory.lock();
        assert!(generations.young_bytes <= BYTES);
        let bytes: usize = generations.young.iter().map(|(s, k)| s.len() + k.size()).sum();
        assert_eq!(bytes, generations.young_bytes);
    }
}
