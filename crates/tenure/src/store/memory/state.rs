//! What the memory store holds: objects by kind and id, their names and their expiries.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::backend::decide::{Change, Now, Row, Step, View};
use crate::store::{Page, Query};
use crate::{Key, Result};

/// Objects that one page looks at, while everybody else waits: a selector that matches little is answered
/// in bounded steps.
const SCAN: usize = 5_000;

/// All of it.
#[derive(Default)]
pub(super) struct State {
    pub(super) head: u64,
    kinds: BTreeMap<String, Kind>,
    /// Expiry instants in order, and whose they are; touched objects move.
    pub(super) expiries: BTreeSet<(i64, Key)>,
}

/// The objects of one kind.
#[derive(Default)]
struct Kind {
    rows: BTreeMap<String, Row>,
    /// Names, and the ids that have them.
    names: BTreeMap<String, String>,
}

impl View for State {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        Ok(self.find(key).cloned())
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        Ok(self.kinds.get(kind).and_then(|kind| kind.rows.get(kind.names.get(name)?)).cloned())
    }
}

impl State {
    pub(super) fn find(&self, key: &Key) -> Option<&Row> {
        self.kinds.get(&key.kind)?.rows.get(&key.id)
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
        let kind = self.kinds.entry(key.kind.clone()).or_default();
        if let Some(name) = &row.object.name {
            kind.names.insert(name.clone(), key.id.clone());
        }
        let old = kind.rows.insert(key.id.clone(), row.clone());
        self.move_expiry(key, old.and_then(|old| old.expires_at_ms), row.expires_at_ms);
    }

    fn remove(&mut self, row: &Row) {
        self.remove_name(row);
        let key = &row.object.key;
        let old = self.kinds.get_mut(&key.kind).and_then(|kind| kind.rows.remove(&key.id));
        self.move_expiry(key, old.and_then(|old| old.expires_at_ms), None);
    }

    fn remove_name(&mut self, row: &Row) {
        let kind = self.kinds.get_mut(&row.object.key.kind);
        if let (Some(kind), Some(name)) = (kind, &row.object.name) {
            kind.names.remove(name);
        }
    }

    /// Starts the life of an object anew.
    pub(super) fn extend(&mut self, key: &Key, expires_at_ms: i64) {
        let kind = self.kinds.get_mut(&key.kind);
        let Some(row) = kind.and_then(|kind| kind.rows.get_mut(&key.id)) else { return };
        let old = row.expires_at_ms.replace(expires_at_ms);
        self.move_expiry(key, old, Some(expires_at_ms));
    }

    fn move_expiry(&mut self, key: &Key, from: Option<i64>, to: Option<i64>) {
        if let Some(at) = from {
            self.expiries.remove(&(at, key.clone()));
        }
        if let Some(at) = to {
            self.expiries.insert((at, key.clone()));
        }
    }

    /// Rows that have expired, earliest first.
    pub(super) fn expired(&self, now: Now, limit: usize) -> Vec<Row> {
        let due = self.expiries.iter().take_while(|(at, _)| *at <= now.store_ms).take(limit);
        due.filter_map(|(_, key)| self.find(key)).cloned().collect()
    }

    pub(super) fn page(&self, query: &Query, now: Now) -> Page {
        let mut page = Page { objects: Vec::new(), next: None, revision: self.head };
        let Some(kind) = self.kinds.get(&query.kind) else { return page };
        let mut last: Option<&String> = None;
        for (looked_at, (id, row)) in kind.candidates(query).enumerate() {
            if query.range.is_past(id) {
                break;
            }
            if page.objects.len() == query.limit || looked_at == SCAN {
                page.next = last.cloned();
                break;
            }
            last = Some(id);
            let wanted = query.range.contains(id) && query.selector.matches(&row.object.labels);
            if wanted && query.after.as_ref().is_none_or(|after| id > after) {
                page.objects.extend(row.read(now.store_ms));
            }
        }
        page
    }
}

impl Kind {
    /// What a query's page may hold, in order: the object of a name, or all from where the page starts.
    fn candidates(&self, query: &Query) -> impl Iterator<Item = (&String, &Row)> {
        let start = match query.after.as_deref() {
            Some(after) if after >= query.range.start() => Bound::Excluded(after),
            _ => Bound::Included(query.range.start()),
        };
        let named = query.name.as_ref().and_then(|name| self.names.get(name));
        let named = named.and_then(|id| self.rows.get_key_value(id));
        let all =
            query.name.is_none().then(|| self.rows.range::<str, _>((start, Bound::Unbounded)));
        named.into_iter().chain(all.into_iter().flatten())
    }
}
