//! What this process knows of the tables without asking: the counter row as it left it, and rows as
//! it wrote them, or saw them.
//!
//! It is knowledge only as long as nobody else has written the counter row, and only the server can
//! tell; so it is used for one thing alone, by [`crate::quick`], whose statement has the server
//! confirm all of it. When the life of a row is over is not known: a touch changes that without a
//! revision. It belongs to one session and goes with it.

use std::collections::HashMap;

use tenure::Key;
use tenure::backend::decide::{Change, Row, Step};

use crate::apply::Head;
use crate::quick::Seen;
use crate::tid::Xid;

/// There are two generations, each with room for so many rows and bytes; when the young one is full,
/// it becomes the old one and what was in that and not used again is forgotten. So at most 65,536
/// rows and 32 MiB.
const ROWS: usize = 32_768;
const BYTES: usize = 16 * 1024 * 1024;

/// Groups at most that do not even try after others got in between, so that several processes at work
/// on one database do not pay for an exchange that is bound to be in vain.
const CALM: u32 = 64;

/// The counter row as this session last wrote it, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) head: Head,
    /// Who wrote it: the transaction that did. Unknown while that is on its way; the session on the
    /// server knows.
    pub(crate) by: Option<Xid>,
}

#[derive(Default)]
struct Generation {
    rows: HashMap<Key, (Row, Xid)>,
    bytes: usize,
}

/// See above.
#[derive(Default)]
pub(crate) struct Known {
    left: Option<Left>,
    young: Generation,
    old: Generation,
    calm: u32,
    calm_next: u32,
}

impl Known {
    /// The counter row, if it is known and worth a try. Asked once for each group.
    pub(crate) fn left(&mut self) -> Option<Left> {
        if self.calm > 0 {
            self.calm -= 1;
            return None;
        }
        self.left
    }

    /// The row with this key and who wrote it, if it is known.
    pub(crate) fn row(&self, key: &Key) -> Option<&(Row, Xid)> {
        self.young.rows.get(key).or_else(|| self.old.rows.get(key))
    }

    /// The counter row was locked and found as it is at `revision`, written by `by`: if that was not
    /// us, what we knew is worth nothing.
    pub(crate) fn found(&mut self, revision: u64, by: Xid) {
        let ours = self.left.is_some_and(|left| {
            left.by == Some(by) && u64::try_from(left.head.revision) == Ok(revision)
        });
        if !ours {
            self.forget();
        }
    }

    /// The server did not confirm what we knew.
    pub(crate) fn refuted(&mut self) {
        self.forget();
        self.calm_next = (self.calm_next * 2).clamp(1, CALM);
        self.calm = self.calm_next;
    }

    /// A group is on its way that leaves the counter row like this, if it succeeds.
    pub(crate) fn ahead(&mut self, head: Head) {
        self.left = Some(Left { head, by: None });
    }

    /// Takes in what a group of this session has written, and what it left.
    pub(crate) fn learn(&mut self, steps: &[Step], head: Head, by: Xid) {
        self.learn_rows(steps, by);
        self.left = Some(Left { head, by: Some(by) });
    }

    /// The same for a group that was on its way and that the server confirmed; others may be, behind it.
    pub(crate) fn arrived(&mut self, steps: &[Step], head: Head, by: Xid) {
        let Some(left) = &mut self.left else { return };
        if left.head == head {
            left.by = Some(by);
        }
        self.calm_next = 0;
        self.learn_rows(steps, by);
    }

    /// Takes in rows that somebody else wrote and that this session saw.
    pub(crate) fn saw(&mut self, seen: Seen) {
        for (row, by) in seen.into_values().flatten() {
            self.put(row, by);
        }
    }

    fn learn_rows(&mut self, steps: &[Step], by: Xid) {
        for change in steps.iter().flat_map(|step| &step.changes) {
            let (Change::Put { row, .. } | Change::Remove { row, .. }) = change;
            self.remove(&row.object.key);
            if matches!(change, Change::Put { .. }) {
                self.put(row.clone(), by);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        self.young.take(key);
        self.old.take(key);
    }

    fn put(&mut self, row: Row, by: Xid) {
        let size = row.object.size();
        if self.young.rows.len() >= ROWS || self.young.bytes + size > BYTES {
            self.old = std::mem::take(&mut self.young);
        }
        if size <= BYTES {
            self.young.bytes += size;
            self.young.rows.insert(row.object.key.clone(), (row, by));
        }
    }

    /// Begins anew.
    pub(crate) fn forget(&mut self) {
        self.left = None;
        self.young = Generation::default();
        self.old = Generation::default();
    }
}

impl Generation {
    fn take(&mut self, key: &Key) -> Option<(Row, Xid)> {
        let found = self.rows.remove(key)?;
        self.bytes -= found.0.object.size();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tenure::Object;

    fn row(id: usize, payload: usize, expires_at_ms: Option<i64>) -> Row {
        let object = Object {
            key: Key::new("k", id.to_string()),
            name: None,
            labels: tenure::Labels::new(),
            payload: vec![0; payload].into(),
            version: 1,
            revision: 1,
            created_revision: 1,
            token: 1,
            created_at_ms: 0,
            updated_at_ms: 0,
            ttl: None,
            expires_in: None,
        };
        Row { object: Arc::new(object), expires_at_ms }
    }

    fn head(revision: i64) -> Head {
        Head { revision, clock_last_ms: 0, clock_offset_ms: 0, next_expiry_ms: i64::MAX }
    }

    fn wrote(known: &mut Known, row: Row) {
        let step = Step { revision: 1, changes: vec![Change::Put { row, before: None }] };
        known.learn(&[step], head(1), Xid::default());
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest_first() {
        let mut known = Known::default();
        for n in 0..3 * ROWS {
            wrote(&mut known, row(n, 0, None));
            // Written again and again, it stays.
            wrote(&mut known, row(0, 0, None));
        }
        assert!(known.young.rows.len() + known.old.rows.len() <= 2 * ROWS);
        assert!(known.row(&Key::new("k", "0")).is_some());
        assert!(known.row(&Key::new("k", "1")).is_none());
        assert!(known.row(&Key::new("k", (3 * ROWS - 1).to_string())).is_some());
        for n in 0..64 {
            wrote(&mut known, row(n, 1024 * 1024, None));
        }
        assert!(known.young.bytes <= BYTES && known.old.bytes <= BYTES);
        let bytes = |rows: &HashMap<Key, (Row, Xid)>| -> usize {
            rows.values().map(|(row, _)| row.object.size()).sum()
        };
        assert_eq!(bytes(&known.young.rows), known.young.bytes);
    }

    #[test]
    fn what_is_gone_or_in_doubt_is_not_kept() {
        let mut known = Known::default();
        wrote(&mut known, row(1, 0, Some(5)));
        assert!(known.row(&Key::new("k", "1")).is_some());
        let gone = Change::Remove { row: row(1, 0, None), cause: tenure::store::Cause::Deleted };
        known.learn(&[Step { revision: 2, changes: vec![gone] }], head(2), Xid::default());
        assert!(known.row(&Key::new("k", "1")).is_none());
        wrote(&mut known, row(1, 0, None));
        known.found(1, Xid::default());
        assert!(known.row(&Key::new("k", "1")).is_some());
        known.found(2, Xid::default());
        assert!(known.row(&Key::new("k", "1")).is_none() && known.left().is_none());
    }

    #[test]
    fn it_is_left_alone_for_longer_the_more_often_it_is_wrong() {
        let mut known = Known::default();
        for calm in [1, 2, 4, 8] {
            known.refuted();
            wrote(&mut known, row(1, 0, None));
            assert_eq!((0..100).take_while(|_| known.left().is_none()).count(), calm);
        }
        known.arrived(&[], head(1), Xid::default());
        known.refuted();
        wrote(&mut known, row(1, 0, None));
        assert!(known.left().is_none() && known.left().is_some());
    }

    #[test]
    fn what_is_under_way_is_known_when_it_arrives() {
        let mut known = Known::default();
        wrote(&mut known, row(1, 0, None));
        let put = |id| Step {
            revision: 2,
            changes: vec![Change::Put { row: row(id, 0, None), before: None }],
        };
        known.ahead(head(2));
        known.ahead(head(3));
        assert_eq!(known.left(), Some(Left { head: head(3), by: None }));
        known.arrived(&[put(2)], head(2), Xid::default());
        assert_eq!(known.left(), Some(Left { head: head(3), by: None }));
        assert!(known.row(&Key::new("k", "2")).is_some());
        known.arrived(&[put(3)], head(3), Xid::default());
        assert_eq!(known.left(), Some(Left { head: head(3), by: Some(Xid::default()) }));
        // What was refuted stays forgotten, whatever else arrives.
        known.ahead(head(4));
        known.refuted();
        known.arrived(&[put(4)], head(4), Xid::default());
        assert!(known.row(&Key::new("k", "4")).is_none());
    }
}
