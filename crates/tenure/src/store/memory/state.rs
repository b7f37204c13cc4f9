//! What the memory store holds: objects by kind and id, their order, their names and their expiries.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::ops::Bound;

use foldhash::HashMap;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::super::{Page, Query};
use super::id::Id;
use super::slab::{MOST, Slab};
use super::slot::Slot;
use crate::backend::decide::{Change, Now, Row, Step, View};
use crate::{Key, Result};

/// Objects that one page looks at, while everybody else waits: a selector that matches little is answered
/// in bounded steps.
const SCAN: usize = 5_000;

/// All of it.
#[derive(Default)]
pub(super) struct State {
    pub(super) head: u64,
    slots: Slab<Slot>,
    kinds: Vec<Kind>,
    /// The numbers of the kinds.
    numbers: HashMap<String, u32>,
    /// Expiry instants in order, and whose they are; touched objects move.
    pub(super) expiries: BTreeSet<(i64, u32)>,
    hash: RandomState,
}

/// Objects are found by hash, so that a get costs the same in a large store; the order is kept beside
/// that and changes only when objects come and go.
struct Kind {
    name: String,
    index: HashTable<Entry>,
    order: BTreeMap<Id, u32>,
    names: HashMap<String, u32>,
}

/// Where an object is. With part of its hash at hand, a growing index need not look at the objects.
#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    slot: u32,
}

impl Entry {
    /// What the index goes by: all its bits depend on all that is kept.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

impl View for State {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        Ok(self.find(key).map(|slot| slot.row(key.clone())))
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        let Some(kind) = self.numbers.get(kind).and_then(|&n| self.kinds.get(n as usize)) else {
            return Ok(None);
        };
        Ok(kind.names.get(name).and_then(|&slot| self.at(slot)))
    }
}

impl State {
    pub(super) fn find(&self, key: &Key) -> Option<&Slot> {
        self.slots.get(self.number(key)?)
    }

    /// Whether so many objects more can be numbered.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.slots.len() + more <= MOST
    }

    fn number(&self, key: &Key) -> Option<u32> {
        let kind = self.kinds.get(*self.numbers.get(&key.kind)? as usize)?;
        let wanted = Entry { hash: self.hash(&key.id), slot: 0 };
        let found = kind.index.find(wanted.spread(), |entry| self.is(entry, &wanted, &key.id));
        found.map(|entry| entry.slot)
    }

    fn hash(&self, id: &str) -> u32 {
        (self.hash.hash_one(id.as_bytes()) >> 32) as u32
    }

    fn is(&self, entry: &Entry, wanted: &Entry, id: &str) -> bool {
        entry.hash == wanted.hash
            && self
                .slots
                .get(entry.slot)
                .is_some_and(|slot| slot.near().id.bytes() == id.as_bytes())
    }

    /// The row in a slot whose key is not at hand.
    fn at(&self, number: u32) -> Option<Row> {
        let slot = self.slots.get(number)?;
        let kind = self.kinds.get(slot.kind as usize)?;
        Some(slot.row(Key::new(&kind.name, slot.id.text())))
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
        let kind = self.kind(&key.kind);
        let slot = Slot::new(kind, row);
        let (number, old) = match self.number(key) {
            Some(number) => {
                let place = self.slots.get_mut(number);
                (number, place.and_then(|place| std::mem::replace(place, slot).expires_at_ms))
            }
            None => (self.add(slot, &key.id), None),
        };
        if let (Some(name), Some(kind)) = (&row.object.name, self.kinds.get_mut(kind as usize)) {
            kind.names.insert(name.clone(), number);
        }
        self.move_expiry(number, old, row.expires_at_ms);
    }

    /// The number of a kind, which may be new.
    fn kind(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = u32::try_from(self.kinds.len()).unwrap_or(u32::MAX);
        self.kinds.push(Kind {
            name: name.into(),
            index: HashTable::new(),
            order: BTreeMap::new(),
            names: HashMap::default(),
        });
        self.numbers.insert(name.into(), number);
        number
    }

    fn add(&mut self, slot: Slot, id: &str) -> u32 {
        let (kind, hash) = (slot.kind, self.hash(id));
        let order = slot.id.clone();
        let number = self.slots.insert(slot);
        if let Some(kind) = self.kinds.get_mut(kind as usize) {
            let entry = Entry { hash, slot: number };
            kind.index.insert_unique(entry.spread(), entry, Entry::spread);
            kind.order.insert(order, number);
        }
        number
    }

    fn remove(&mut self, row: &Row) {
        self.remove_name(row);
        let Some(number) = self.number(&row.object.key) else { return };
        let Some(slot) = self.slots.remove(number) else { return };
        let entry = Entry { hash: self.hash(&row.object.key.id), slot: number };
        if let Some(kind) = self.kinds.get_mut(slot.kind as usize) {
            kind.order.remove(slot.id.bytes());
            let found = kind.index.find_entry(entry.spread(), |other| other.slot == number);
            if let Ok(found) = found {
                found.remove();
            }
        }
        self.move_expiry(number, slot.expires_at_ms, None);
    }

    fn remove_name(&mut self, row: &Row) {
        let Some(name) = &row.object.name else { return };
        let number = self.numbers.get(&row.object.key.kind);
        if let Some(kind) = number.and_then(|&number| self.kinds.get_mut(number as usize)) {
            kind.names.remove(name);
        }
    }

    pub(super) fn extend(&mut self, key: &Key, expires_at_ms: i64) {
        let Some(number) = self.number(key) else { return };
        if let Some(slot) = self.slots.get_mut(number) {
            let old = slot.expires_at_ms.replace(expires_at_ms);
            self.move_expiry(number, old, Some(expires_at_ms));
        }
    }

    fn move_expiry(&mut self, number: u32, from: Option<i64>, to: Option<i64>) {
        if let Some(at) = from {
            self.expiries.remove(&(at, number));
        }
        if let Some(at) = to {
            self.expiries.insert((at, number));
        }
    }

    pub(super) fn expired(&self, now: Now, limit: usize) -> Vec<Row> {
        let due = self.expiries.iter().take_while(|(at, _)| *at <= now.store_ms).take(limit);
        due.filter_map(|&(_, number)| self.at(number)).collect()
    }

    pub(super) fn page(&self, query: &Query, now: Now) -> Page {
        let mut page = Page { objects: Vec::new(), next: None, revision: self.head };
        let number = self.numbers.get(&query.kind);
        let Some(kind) = number.and_then(|&number| self.kinds.get(number as usize)) else {
            return page;
        };
        let named = query.name.as_ref().and_then(|name| kind.names.get(name));
        let all = query.name.is_none().then(|| kind.from(query));
        let candidates = named.into_iter().chain(all.into_iter().flatten());
        let mut last = None;
        let slots = candidates.filter_map(|&number| self.slots.get(number));
        for (looked_at, slot) in slots.enumerate() {
            let id = slot.id.text();
            if query.range.is_past(id) {
                break;
            }
            if page.objects.len() == query.limit || looked_at == SCAN {
                page.next = last.map(String::from);
                break;
            }
            last = Some(id);
            let wanted = query.range.contains(id) && query.selector.matches(slot.labels());
            if !wanted || query.after.as_deref().is_some_and(|after| id <= after) {
                continue;
            }
            page.objects.extend(slot.read(Key::new(&query.kind, id), || now.store_ms));
        }
        page
    }
}

impl Kind {
    /// Objects in order, from where a query's page starts.
    fn from(&self, query: &Query) -> impl Iterator<Item = &u32> {
        let start = match query.after.as_deref() {
            Some(after) if after >= query.range.start() => Bound::Excluded(after.as_bytes()),
            _ => Bound::Included(query.range.start().as_bytes()),
        };
        self.order.range::<[u8], _>((start, Bound::Unbounded)).map(|(_, number)| number)
    }
}
