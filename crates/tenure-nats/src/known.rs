//! What this process last knew of each subject, in bounded memory.
//!
//! It saves the read before a write: a holder that renews or releases, and an acquisition behind a
//! release, know the sequence to expect. It decides nothing, because a write on stale knowledge is
//! refused by the server and begins again with a read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    young: HashMap<String, Known>,
    old: HashMap<String, Known>,
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
        let before = generations.young.get(subject).or_else(|| generations.old.get(subject));
        if before.is_none_or(|before| before.sequence < known.sequence) {
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

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn insert(&mut self, subject: String, known: Known) {
        let bytes = known.size() + subject.len();
        if self.young.len() >= SUBJECTS || self.young_bytes + bytes > BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if bytes > BYTES {
            return;
        }
        self.old.remove(&subject);
        let length = subject.len();
        self.young_bytes += bytes;
        if let Some(before) = self.young.insert(subject, known) {
            self.young_bytes -= before.size() + length;
        }
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
        let bytes: usize = generations.young.iter().map(|(s, k)| s.len() + k.size()).sum();
        assert_eq!(bytes, generations.young_bytes);
    }
}
