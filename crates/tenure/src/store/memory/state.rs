//! What the memory store holds: rows by kind and id, their order, their names and their expiries.

use std::collections::BTreeSet;
use std::ops::Bound;

use foldhash::HashMap;

use super::super::decide::{Change, Now, Row, Step, View};
use super::super::{Page, Query};
use super::id::Id;
use crate::{Key, Object, Result};

/// All of it.
#[derive(Default)]
pub(super) struct State {
    pub(super) head: u64,
    kinds: HashMap<String, Kind>,
    /// Expiry instants in order; touched rows move.
    pub(super) expiries: BTreeSet<(i64, Key)>,
}

/// Rows are found by hash, so that a get costs the same in a large store; the order is kept beside
/// them and changes only when objects come and go.
#[derive(Default)]
struct Kind {
    rows: HashMap<Id, Row>,
    order: BTreeSet<Id>,
    names: HashMap<String, String>,
}

impl View for State {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        Ok(self.find(key).cloned())
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        let Some(kind) = self.kinds.get(kind) else { return Ok(None) };
        Ok(kind.names.get(name).and_then(|id| kind.rows.get(id.as_bytes())).cloned())
    }
}

impl State {
    pub(super) fn find(&self, key: &Key) -> Option<&Row> {
        self.kinds.get(&key.kind)?.rows.get(key.id.as_bytes())
    }

    pub(super) fn apply(&mut self, step: &Step) {
        // All that goes, names included, goes first: objects may trade names within a commit.
        for change in &step.changes {
            match change {
                Change::Remove { row, .. } => self.remove(row),
                Change::Put { before: Some(before), .. } => self.remove_name(before),
                Change::Put { .. } => {}
            }
        }
        for change in &step.changes {
            if let Change::Put { row, .. } = change {
                self.insert(row);
            }
        }
        self.head = step.revision;
    }

    fn insert(&mut self, row: &Row) {
        let key = &row.object.key;
        if !self.kinds.contains_key(&key.kind) {
            self.kinds.insert(key.kind.clone(), Kind::default());
        }
        let Some(kind) = self.kinds.get_mut(&key.kind) else { return };
        if let Some(name) = &row.object.name {
            kind.names.insert(name.clone(), key.id.clone());
        }
        let old = match kind.rows.get_mut(key.id.as_bytes()) {
            Some(slot) => std::mem::replace(slot, row.clone()).expires_at_ms,
            None => {
                let id = Id::new(&key.id);
                kind.order.insert(id.clone());
                kind.rows.insert(id, row.clone());
                None
            }
        };
        self.move_expiry(key, old, row.expires_at_ms);
    }

    fn remove(&mut self, row: &Row) {
        self.remove_name(row);
        let key = &row.object.key;
        let gone = self.kinds.get_mut(&key.kind).and_then(|kind| {
            kind.order.remove(key.id.as_bytes());
            kind.rows.remove(key.id.as_bytes())
        });
        self.move_expiry(key, gone.and_then(|row| row.expires_at_ms), None);
    }

    fn remove_name(&mut self, row: &Row) {
        if let (Some(kind), Some(name)) =
            (self.kinds.get_mut(&row.object.key.kind), &row.object.name)
        {
            kind.names.remove(name);
        }
    }

    pub(super) fn extend(&mut self, key: &Key, expires_at_ms: i64) {
        let row =
            self.kinds.get_mut(&key.kind).and_then(|kind| kind.rows.get_mut(key.id.as_bytes()));
        if let Some(row) = row {
            let old = row.expires_at_ms.replace(expires_at_ms);
            self.move_expiry(key, old, Some(expires_at_ms));
        }
    }

    fn move_expiry(&mut self, key: &Key, from: Option<i64>, to: Option<i64>) {
        if let Some(at) = from {
            self.expiries.remove(&(at, key.clone()));
        }
        if let Some(at) = to {
            self.expiries.insert((at, key.clone()));
        }
    }

    pub(super) fn expired(&self, now: Now, limit: usize) -> Vec<Row> {
        let due = self.expiries.iter().take_while(|(at, _)| *at <= now.store_ms).take(limit);
        due.filter_map(|(_, key)| self.find(key).cloned()).collect()
    }

    pub(super) fn page(&self, query: &Query, now: Now) -> Page {
        let mut page = Page { objects: Vec::new(), next: None, revision: self.head };
        let Some(kind) = self.kinds.get(&query.kind) else { return page };
        let start = match query.after.as_deref() {
            Some(after) if after >= query.range.start() => Bound::Excluded(after.as_bytes()),
            _ => Bound::Included(query.range.start().as_bytes()),
        };
        for id in kind.order.range::<[u8], _>((start, Bound::Unbounded)) {
            let Some(row) = kind.rows.get(id) else { continue };
            if query.range.is_past(&row.object.key.id) {
                break;
            }
            if !query.matches(&row.object) {
                continue;
            }
            let Some(object) = row.read(now.store_ms) else { continue };
            if page.objects.len() == query.limit {
                page.next = page.objects.last().map(|last| last.key.id.clone());
                break;
            }
            page.objects.push(object);
        }
        page
    }
}

/// What a reader sees of a row. The key is taken from the question, which is at hand, instead of from
/// the row, whose strings lie somewhere else.
pub(super) fn read(row: &Row, key: &Key, store_ms: impl Fn() -> i64) -> Option<Object> {
    if row.expires_at_ms.is_some() {
        return row.read(store_ms());
    }
    let object = &*row.object;
    Some(Object {
        key: key.clone(),
        name: object.name.clone(),
        labels: object.labels.clone(),
        payload: object.payload.clone(),
        version: object.version,
        revision: object.revision,
        created_revision: object.created_revision,
        token: object.token,
        created_at_ms: object.created_at_ms,
        updated_at_ms: object.updated_at_ms,
        ttl: object.ttl,
        expires_in: None,
    })
}
