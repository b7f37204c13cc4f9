//! What this process last knew of each subject, in bounded memory.
//!
//! The cache saves the read before a write: a renewal, a release and an acquisition after a release
//! know the sequence to expect. It decides nothing. A write that rests on a stale entry is refused by
//! the server, and begins again with a read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use crate::stored::Known;

/// What all entries may take, in bytes.
const BYTES: u64 = 32 * 1024 * 1024;
/// How many that is likely to be.
const SUBJECTS: usize = 32_768;
/// What an entry takes besides its subject and its object.
const ENTRY_BYTES: usize = 256;

#[derive(Clone)]
struct EntryBytes;

impl Weighter<String, Known> for EntryBytes {
    fn weight(&self, subject: &String, known: &Known) -> u64 {
        let object = known.object.as_ref().map_or(0, |object| object.size());
        (ENTRY_BYTES + subject.len() + object) as u64
    }
}

/// The last known state of each subject.
pub(crate) struct SubjectCache {
    entries: Mutex<Cache<String, Known, EntryBytes>>,
}

impl SubjectCache {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::new(Cache::with_weighter(SUBJECTS, BYTES, EntryBytes)) }
    }

    pub(crate) fn get(&self, subject: &str) -> Option<Known> {
        self.lock().get(subject).cloned()
    }

    /// Keeps the state at a sequence, unless a later one is known.
    pub(crate) fn update(&self, subject: &str, known: Known) {
        update(&mut self.lock(), subject, known);
    }

    /// The same for a write of somebody else. It is kept only if the subject was known already, or if
    /// there is no object to keep.
    pub(crate) fn update_from_watch(&self, subject: &str, known: Known) {
        let mut entries = self.lock();
        if known.object.is_none() || entries.contains_key(subject) {
            update(&mut entries, subject, known);
        }
    }

    /// The server said otherwise.
    pub(crate) fn remove(&self, subject: &str) {
        self.lock().remove(subject);
    }

    /// The bucket is not the one that all this was known of.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Cache<String, Known, EntryBytes>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn update(entries: &mut Cache<String, Known, EntryBytes>, subject: &str, known: Known) {
    if entries.peek(subject).is_none_or(|before| before.sequence < known.sequence) {
        entries.insert(subject.to_owned(), known);
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
        let cache = SubjectCache::new();
        cache.update("a", at(7));
        cache.update("a", at(5));
        assert_eq!(cache.get("a").map(|known| known.sequence), Some(7));
        cache.remove("a");
        cache.update("a", at(3));
        assert_eq!(cache.get("a").map(|known| known.sequence), Some(3));
        let most = BYTES / ENTRY_BYTES as u64;
        for n in 0..most * 2 {
            cache.update_from_watch(&format!("s{n}"), at(n + 1));
            // What is used stays.
            assert!(cache.get("a").is_some());
        }
        assert!(cache.lock().len() as u64 <= most);
        for n in 0..64 {
            let object = tenure::Object {
                key: tenure::Key::new("k", "i"),
                name: None,
                labels: Default::default(),
                payload: vec![0; BYTES as usize / 16].into(),
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
            let known = Known { sequence: n + 1_000_000, object, ..Known::NOTHING };
            let subject = format!("s{}", n % 20);
            cache.update(&subject, known);
            assert_eq!(cache.get(&subject).map(|known| known.sequence), Some(n + 1_000_000));
        }
        let entries = cache.lock();
        assert!(entries.weight() <= BYTES);
        let bytes: u64 = entries.iter().map(|(s, k)| EntryBytes.weight(s, k)).sum();
        assert_eq!(bytes, entries.weight());
    }

    #[test]
    fn writes_of_others_are_kept_only_where_they_are_of_use() {
        let cache = SubjectCache::new();
        cache.update_from_watch("gone", at(3));
        assert!(cache.get("gone").is_some());
        cache.update("known", at(1));
        cache.update_from_watch("known", at(2));
        assert_eq!(cache.get("known").map(|known| known.sequence), Some(2));
    }
}
