//! Objects that this process wrote or read last.
//!
//! A commit that knows the present version of an object needs one round trip instead of two. An outdated
//! one does no harm: the transaction compares every revision it is based on, and a refusal is told only
//! after a read. The cache is bounded by bytes.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync;
use tenure::Key;

use crate::stored::Stored;

/// Bytes of all objects together, roughly.
const CAPACITY: u64 = 16 * 1024 * 1024;
/// Larger objects are read again rather than kept.
const LARGEST: usize = 64 * 1024;
/// So few that each of the cache's parts has room for several of the largest.
const ESTIMATED_OBJECTS: usize = 2048;

pub(crate) struct Cache(sync::Cache<Key, Arc<Stored>, ObjectBytes>);

#[derive(Clone)]
struct ObjectBytes;

impl Weighter<Key, Arc<Stored>> for ObjectBytes {
    fn weight(&self, _: &Key, stored: &Arc<Stored>) -> u64 {
        stored.object.size() as u64
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self(sync::Cache::with_weighter(ESTIMATED_OBJECTS, CAPACITY, ObjectBytes))
    }
}

impl Cache {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        self.0.get(key)
    }

    pub(crate) fn put(&self, stored: &Arc<Stored>) {
        let key = &stored.object.key;
        if stored.object.size() > LARGEST {
            self.forget(key);
        } else {
            self.0.insert(key.clone(), Arc::clone(stored));
        }
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenure::{Labels, Object};

    use super::*;

    fn stored(id: &str, payload: usize) -> Arc<Stored> {
        let object = Object {
            key: Key::new("k", id),
            name: None,
            labels: Labels::new(),
            payload: Bytes::from(vec![0; payload]),
            version: 1,
            revision: 1,
            created_revision: 1,
            token: 1,
            created_at_ms: 0,
            updated_at_ms: 0,
            ttl: None,
            expires_in: None,
        };
        let object = Arc::new(object);
        Arc::new(Stored { object, modified: 1, lease: 0, life: 0, skipped: 0, since: None })
    }

    #[test]
    fn what_is_replaced_takes_no_room() {
        let cache = Cache::default();
        cache.put(&stored("kept", 1));
        for _ in 0..2 * CAPACITY / LARGEST as u64 * 2 {
            cache.put(&stored("written again and again", LARGEST / 2));
        }
        assert!(cache.get(&Key::new("k", "kept")).is_some());
    }

    #[test]
    fn it_holds_so_many_bytes_and_no_large_objects() {
        let cache = Cache::default();
        for n in 0..2 * CAPACITY / LARGEST as u64 {
            cache.put(&stored(&n.to_string(), LARGEST / 2));
        }
        assert!(cache.0.len() > 100 && cache.0.weight() <= CAPACITY);
        cache.put(&stored("grown", 1));
        cache.put(&stored("grown", LARGEST));
        assert!(cache.get(&Key::new("k", "grown")).is_none());
    }
}
