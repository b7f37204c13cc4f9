//! The rows a group of commits is about: as the database has them, with what the commits before in
//! the group did laid over. Only the final state of each row is written.

use std::collections::{BTreeSet, HashMap};

use tenure::backend::decide::{Change, Now, Row, Step, View, decide};
use tenure::store::{Commit, Committed};
use tenure::{Key, Result};

use crate::tid::Tid;

#[derive(Default)]
struct Slot {
    stored: Option<(Row, Tid)>,
    now: Option<Row>,
}

/// A [`View`] of exactly the rows that were loaded for a group.
#[derive(Default)]
pub(crate) struct Overlay {
    rows: HashMap<Key, Slot>,
    /// Kind and name to id, for the names the group is about.
    names: HashMap<(String, String), String>,
    /// In the order in which touches lock, too.
    changed: BTreeSet<Key>,
}

/// What becomes of a row.
pub(crate) enum Fate<'a> {
    /// It goes.
    Remove(Tid),
    /// It is new.
    Insert(&'a Row),
    /// It takes the place of what is there.
    Replace {
        /// What it becomes.
        row: &'a Row,
        /// Where it is.
        place: Tid,
        /// It has a name to give up first: names may be traded in a group.
        rename: bool,
    },
}

impl Overlay {
    /// Takes in a row as it is stored.
    pub(crate) fn load(&mut self, row: Row, place: Tid) {
        let key = row.object.key.clone();
        if let Some(name) = &row.object.name {
            self.names.insert((key.kind.clone(), name.clone()), key.id.clone());
        }
        self.rows.insert(key, Slot { stored: Some((row.clone(), place)), now: Some(row) });
    }

    /// The rows with these keys as they are now.
    pub(crate) fn rows(&self, keys: &[Key]) -> Vec<Row> {
        keys.iter().filter_map(|key| self.rows.get(key)?.now.clone()).collect()
    }

    /// Decides a commit against what those before it left, and lays it over if it applies. `head` is
    /// the last revision drawn.
    pub(crate) fn commit(
        &mut self,
        commit: &Commit,
        now: Now,
        head: &mut u64,
        steps: &mut Vec<Step>,
    ) -> Result<Committed> {
        let decision = decide(self, commit, now, *head)?;
        for step in decision.steps {
            *head = step.revision;
            self.apply(&step);
            steps.push(step);
        }
        for (key, expires_at_ms) in decision.refreshed {
            self.extend(&key, expires_at_ms);
        }
        Ok(decision.committed)
    }

    /// Lays a step over.
    pub(crate) fn apply(&mut self, step: &Step) {
        // All that goes, names included, goes first: objects may trade names within a commit.
        for change in &step.changes {
            match change {
                Change::Remove { row, .. } => {
                    self.free_name(row);
                    self.set(&row.object.key, None);
                }
                Change::Put { before: Some(before), .. } => self.free_name(before),
                Change::Put { .. } => {}
            }
        }
        for change in &step.changes {
            if let Change::Put { row, .. } = change {
                let key = &row.object.key;
                if let Some(name) = &row.object.name {
                    self.names.insert((key.kind.clone(), name.clone()), key.id.clone());
                }
                self.set(key, Some(row.clone()));
            }
        }
    }

    /// Gives a row a new expiry and nothing else.
    fn extend(&mut self, key: &Key, expires_at_ms: i64) {
        if let Some(mut row) = self.rows.get(key).and_then(|slot| slot.now.clone()) {
            row.expires_at_ms = Some(expires_at_ms);
            self.set(key, Some(row));
        }
    }

    fn set(&mut self, key: &Key, row: Option<Row>) {
        match self.rows.get_mut(key) {
            Some(slot) => slot.now = row,
            None => {
                self.rows.insert(key.clone(), Slot { stored: None, now: row });
            }
        }
        if !self.changed.contains(key) {
            self.changed.insert(key.clone());
        }
    }

    fn free_name(&mut self, row: &Row) {
        if let Some(name) = &row.object.name {
            self.names.remove(&(row.object.key.kind.clone(), name.clone()));
        }
    }

    /// What must be written, each row once, in order of key.
    pub(crate) fn fates(&self) -> impl Iterator<Item = Fate<'_>> {
        self.changed.iter().filter_map(|key| {
            let slot = self.rows.get(key)?;
            match (&slot.stored, &slot.now) {
                // Came and went within the group.
                (None, None) => None,
                (Some((_, place)), None) => Some(Fate::Remove(*place)),
                (None, Some(row)) => Some(Fate::Insert(row)),
                (Some((stored, place)), Some(row)) => {
                    let name = &stored.object.name;
                    let rename = name.is_some() && *name != row.object.name;
                    Some(Fate::Replace { row, place: *place, rename })
                }
            }
        })
    }
}

impl View for Overlay {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        Ok(self.rows.get(key).and_then(|slot| slot.now.clone()))
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        let Some(id) = self.names.get(&(kind.to_owned(), name.to_owned())) else { return Ok(None) };
        self.row(&Key::new(kind, id.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::store::{Expect, Put};

    const NOW: Now = Now { store_ms: 1_000, wall_ms: 0 };

    fn key(id: &str) -> Key {
        Key::new("k", id)
    }

    fn commit(overlay: &mut Overlay, head: &mut u64, commit: impl Into<Commit>) -> Result<()> {
        overlay.commit(&commit.into(), NOW, head, &mut Vec::new()).map(|_| ())
    }

    #[test]
    fn the_next_commit_of_a_group_sees_the_one_before() {
        let (mut overlay, mut head) = (Overlay::default(), 10);
        let put = |id: &str, expect| Put::new(key(id), "x").expect(expect);
        commit(&mut overlay, &mut head, put("a", Expect::Absent).name("n")).unwrap();
        assert!(
            commit(&mut overlay, &mut head, put("a", Expect::Absent)).unwrap_err().is_conflict()
        );
        assert!(commit(&mut overlay, &mut head, put("b", Expect::Any).name("n")).is_err());
        commit(&mut overlay, &mut head, put("a", Expect::Version(1)).name("m")).unwrap();
        commit(&mut overlay, &mut head, put("b", Expect::Any).name("n")).unwrap();
        commit(&mut overlay, &mut head, Commit::new().delete(key("b"), Expect::Exists)).unwrap();
        // Four commits applied; one row is left to write, at its final state.
        assert_eq!(head, 14);
        let fates: Vec<_> = overlay.fates().collect();
        let [Fate::Insert(row)] = fates.as_slice() else { panic!() };
        assert_eq!((row.object.version, row.object.revision), (2, 12));
    }

    #[test]
    fn traded_names_are_given_up_first() {
        let (mut source, mut head) = (Overlay::default(), 0);
        let named = |id: &str, name: &str| Put::new(key(id), "x").name(name);
        commit(&mut source, &mut head, named("a", "1")).unwrap();
        commit(&mut source, &mut head, named("b", "2")).unwrap();
        let mut overlay = Overlay::default();
        for row in source.rows(&[key("a"), key("b")]) {
            overlay.load(row, Tid::default());
        }
        let trade = Commit::new().put(named("a", "2")).put(named("b", "1"));
        commit(&mut overlay, &mut head, trade).unwrap();
        assert!(overlay.fates().all(|fate| matches!(fate, Fate::Replace { rename: true, .. })));
        overlay.extend(&key("a"), 5);
        assert_eq!(overlay.rows(&[key("a")])[0].expires_at_ms, Some(5));
    }
}
