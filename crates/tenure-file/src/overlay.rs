//! The canonical files as one group of commits sees them, with the changes it is about to make.
//!
//! Commits of a group are decided one after another; each sees what those before it changed, though
//! nothing has been written yet. When all are decided, every object is written once, however often
//! the group changed it.

use std::collections::{BTreeMap, HashMap};

use crate::files::Files;
use crate::frame::{Frame, Op};
use crate::record::Stored;
use tenure::backend::decide::{Change, Row, Step, View};
use tenure::{Error, Key, Result};

/// One object, as it is on disk and as it shall be.
pub(crate) struct Slot {
    pub(crate) before: Option<Stored>,
    pub(crate) after: Option<Row>,
    pub(crate) changed: bool,
    /// When the change happened; for an object that is written again, when it first was.
    pub(crate) at_ms: i64,
}

pub(crate) struct Overlay<'a> {
    files: &'a Files,
    pub(crate) rows: BTreeMap<Key, Slot>,
    /// Names given (`Some` id) and names given up.
    pub(crate) names: HashMap<(String, String), Option<String>>,
}

impl<'a> Overlay<'a> {
    pub(crate) fn new(files: &'a Files) -> Self {
        Self { files, rows: BTreeMap::new(), names: HashMap::new() }
    }

    fn slot(&mut self, key: &Key) -> Result<&mut Slot> {
        if !self.rows.contains_key(key) {
            let before = self.files.read_object(key)?;
            let after = before.as_ref().map(|stored| stored.row.clone());
            let slot = Slot { before, after, changed: false, at_ms: 0 };
            self.rows.insert(key.clone(), slot);
        }
        // Just inserted if it was missing; an empty slot would say that the object is absent.
        let empty = || Slot { before: None, after: None, changed: false, at_ms: 0 };
        Ok(self.rows.entry(key.clone()).or_insert_with(empty))
    }

    fn set(&mut self, key: &Key, row: Option<Row>, at_ms: i64) -> Result<()> {
        let slot = self.slot(key)?;
        (slot.after, slot.changed, slot.at_ms) = (row, true, at_ms);
        Ok(())
    }

    fn give_up_name(&mut self, row: &Row) {
        if let Some(name) = &row.object.name {
            self.names.insert((row.object.key.kind.clone(), name.clone()), None);
        }
    }

    fn give_name(&mut self, row: &Row) {
        let key = &row.object.key;
        if let Some(name) = &row.object.name {
            self.names.insert((key.kind.clone(), name.clone()), Some(key.id.clone()));
        }
    }

    /// Takes a step into account. All that goes, names included, goes first: objects may trade names
    /// within a commit.
    pub(crate) fn apply(&mut self, step: &Step, at_ms: i64) -> Result<()> {
        for change in &step.changes {
            match change {
                Change::Remove { row, .. } => {
                    self.give_up_name(row);
                    self.set(&row.object.key, None, at_ms)?;
                }
                Change::Put { before: Some(before), .. } => self.give_up_name(before),
                Change::Put { .. } => {}
            }
        }
        for change in &step.changes {
            if let Change::Put { row, .. } = change {
                self.give_name(row);
                self.set(&row.object.key, Some(row.clone()), at_ms)?;
            }
        }
        Ok(())
    }

    /// Prolongs a life; the row as it is then.
    pub(crate) fn prolong(
        &mut self,
        key: &Key,
        expires_at_ms: i64,
        at_ms: i64,
    ) -> Result<Option<Row>> {
        let Some(mut row) = self.slot(key)?.after.clone() else { return Ok(None) };
        row.expires_at_ms = Some(expires_at_ms);
        self.set(key, Some(row.clone()), at_ms)?;
        Ok(Some(row))
    }

    /// Whether the file of a key cannot be read. It counts as absent then: history, which is being
    /// done again, has what belongs there.
    fn is_damaged(&mut self, key: &Key) -> Result<bool> {
        match self.slot(key) {
            Ok(_) => Ok(false),
            Err(Error::Corrupt { .. }) => {
                let slot = Slot { before: None, after: None, changed: false, at_ms: 0 };
                self.rows.insert(key.clone(), slot);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a frame of history into account that may have been applied already, or been followed by
    /// others: nothing newer is undone.
    pub(crate) fn redo(&mut self, frame: &Frame) -> Result<()> {
        for (op, stored) in &frame.changes {
            let row = &stored.row;
            let damaged = self.is_damaged(&row.object.key)?;
            let slot = self.slot(&row.object.key)?;
            let was = slot.after.clone();
            let revision = was.as_ref().map(|row| row.object.revision);
            match op {
                Op::Put => {
                    if let Some(was) = was.filter(|was| was.object.revision < row.object.revision) {
                        self.give_up_name(&was);
                    }
                    if revision.is_none_or(|revision| revision < row.object.revision) {
                        self.set(&row.object.key, Some(row.clone()), frame.at_ms)?;
                    }
                }
                Op::Deleted | Op::Expired => {
                    self.give_up_name(row);
                    if damaged || revision.is_some_and(|revision| revision < frame.revision) {
                        self.set(&row.object.key, None, frame.at_ms)?;
                    }
                }
                Op::Touched => {
                    let written = slot.before.as_ref().map(|before| before.written_at_ms);
                    let untouched = slot.changed || written.is_none_or(|at| at <= frame.at_ms);
                    if damaged || (revision == Some(row.object.revision) && untouched) {
                        self.set(&row.object.key, Some(row.clone()), frame.at_ms)?;
                    }
                }
            }
        }
        // Given again even if the object is there already: the crash may have come in between. A
        // name that points to an object which no longer has it counts for nothing.
        for (op, stored) in &frame.changes {
            let current = self.slot(&stored.row.object.key)?.after.clone();
            if let (Op::Put, Some(current)) = (op, current) {
                self.give_name(&current);
            }
        }
        Ok(())
    }
}

impl View for Overlay<'_> {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        Ok(self.slot(key)?.after.clone())
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        let id = match self.names.get(&(kind.to_owned(), name.to_owned())) {
            Some(id) => id.clone(),
            None => self.files.read_name(kind, name)?,
        };
        let Some(id) = id else { return Ok(None) };
        let row = self.row(&Key::new(kind, id))?;
        Ok(row.filter(|row| row.object.name.as_deref() == Some(name)))
    }
}
