//! What this process knows of the tables without asking: the counter row as it left it, and rows that it
//! wrote or read.
//!
//! This is true only as long as nobody else has written the counter row, which only the server can tell. So
//! only [`crate::commit::quick`] uses it, and has the server confirm all of it. Whether a life is over is not known
//! here, because a touch changes that without a revision. What is known belongs to one session and goes with
//! it.

use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tenure::Key;
use tenure::backend::decide::{Change, Row, Step};

use crate::commit::apply::Head;
use crate::commit::quick::Seen;
use crate::tid::Xid;

/// Rows that are kept take so much at most.
const BYTES: u64 = 32 * 1024 * 1024;
/// What even the smallest row counts for, which bounds their number.
const ROW_BYTES: u64 = 512;
const ROWS: usize = (BYTES / ROW_BYTES) as usize;
/// The share of the room for rows that were used more than once. The rest is for the latest.
const USED_AGAIN: f64 = 0.5;

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

/// What is kept of a row.
struct Bytes;

impl Weighter<Key, (Row, Xid)> for Bytes {
    fn weight(&self, _: &Key, (row, _): &(Row, Xid)) -> u64 {
        (row.object.size() as u64).max(ROW_BYTES)
    }
}

/// See above.
pub(crate) struct Known {
    left: Option<Left>,
    rows: Cache<Key, (Row, Xid), Bytes>,
    calm: u32,
    calm_next: u32,
}

impl Default for Known {
    fn default() -> Self {
        let options = OptionsBuilder::new()
            .weight_capacity(BYTES)
            .estimated_items_capacity(ROWS)
            .hot_allocation(USED_AGAIN)
            .build()
            .expect("both capacities are given");
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let rows = Cache::with_options(options, Bytes, hasher, lifecycle);
        Self { left: None, rows, calm: 0, calm_next: 0 }
    }
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
        self.rows.get(key)
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
            self.rows.insert(row.object.key.clone(), (row, by));
        }
    }

    fn learn_rows(&mut self, steps: &[Step], by: Xid) {
        for change in steps.iter().flat_map(|step| &step.changes) {
            match change {
                Change::Put { row, .. } => {
                    self.rows.insert(row.object.key.clone(), (row.clone(), by));
                }
                Change::Remove { row, .. } => drop(self.rows.remove(&row.object.key)),
            }
        }
    }

    /// Begins anew.
    pub(crate) fn forget(&mut self) {
        self.left = None;
        self.rows.clear();
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
    fn it_is_bounded_and_keeps_what_is_used_and_what_is_new() {
        let mut known = Known::default();
        let is_known =
            |known: &Known, id: usize| known.row(&Key::new("k", id.to_string())).is_some();
        for n in 0..3 * ROWS {
            wrote(&mut known, row(n, 0, None));
            // Written again and again, it stays.
            wrote(&mut known, row(0, 0, None));
        }
        assert!(known.rows.len() <= ROWS && known.rows.weight() <= BYTES);
        assert!(is_known(&known, 0) && is_known(&known, 3 * ROWS - 1));
        // So do the latest, and those of before that were not used again go.
        assert!((3 * ROWS - ROWS / 4..3 * ROWS).all(|id| is_known(&known, id)));
        assert!(!(ROWS..2 * ROWS).any(|id| is_known(&known, id)));
        for n in 0..64 {
            wrote(&mut known, row(n, 1024 * 1024, None));
        }
        let bytes: usize = known.rows.iter().map(|(_, (row, _))| row.object.size()).sum();
        assert!(bytes as u64 <= BYTES && known.rows.weight() <= BYTES);
        // What does not fit takes the place of what was known.
        wrote(&mut known, row(0, BYTES as usize, None));
        assert!(!is_known(&known, 0));
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
