//! What this process knows of lives that end: hints for the sweep, never a verdict.
//!
//! Another process may have prolonged or removed any of these; the sweep reads the file before it
//! concludes anything. An object that is not known here is still absent once expired; only its
//! file stays until a sweep or a commit meets it.

use std::collections::{BTreeSet, HashMap};

use tenure::Key;

/// Hints kept at most. A store with more lives at once is swept as it is looked at.
const MOST: usize = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Expiries {
    by_key: HashMap<Key, i64>,
    in_order: BTreeSet<(i64, Key)>,
}

impl Expiries {
    /// Notes when an object expires, or that it does not.
    pub(crate) fn set(&mut self, key: &Key, at_ms: Option<i64>) {
        let old = match at_ms {
            Some(_) if self.by_key.len() >= MOST && !self.by_key.contains_key(key) => return,
            Some(at_ms) => self.by_key.insert(key.clone(), at_ms),
            None => self.by_key.remove(key),
        };
        if old == at_ms {
            return;
        }
        if let Some(old) = old {
            self.in_order.remove(&(old, key.clone()));
        }
        if let Some(at_ms) = at_ms {
            self.in_order.insert((at_ms, key.clone()));
        }
    }

    /// The earliest instant at which something may expire.
    pub(crate) fn next_ms(&self) -> Option<i64> {
        self.in_order.first().map(|(at_ms, _)| *at_ms)
    }

    /// Objects that may have expired by now.
    pub(crate) fn due(&self, now_ms: i64, limit: usize) -> Vec<Key> {
        let due = self.in_order.iter().take_while(|(at_ms, _)| *at_ms <= now_ms);
        due.take(limit).map(|(_, key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_move_and_go() {
        let mut hints = Expiries::default();
        let (a, b) = (Key::new("k", "a"), Key::new("k", "b"));
        hints.set(&a, Some(10));
        hints.set(&b, Some(20));
        assert_eq!((hints.next_ms(), hints.due(20, 9)), (Some(10), vec![a.clone(), b.clone()]));
        hints.set(&a, Some(30));
        assert_eq!((hints.due(20, 9), hints.due(30, 1)), (vec![b.clone()], vec![b.clone()]));
        hints.set(&b, None);
        hints.set(&a, None);
        assert_eq!((hints.next_ms(), hints.by_key.len()), (None, 0));
    }
}
