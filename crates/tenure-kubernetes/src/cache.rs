//! The held Leases as the reflector's watch has told of them, and what each change means to a watcher.
//!
//! Pure bookkeeping. A renewal is no event. If one write ends a tenure and begins the next, watchers get
//! an end and a beginning.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::decide::Row;
use tenure::store::{Batch, Cause, Event};
use tenure::{Object, Result};

use crate::observe::Sight;
use crate::record;
use crate::shared::row;
use crate::wire::Lease;

struct Live {
    object: Arc<Object>,
    ours: bool,
    deadline: Option<Duration>,
}

/// What is held, by the name of the Lease.
#[derive(Default)]
pub(crate) struct Cache {
    live: HashMap<String, Live>,
    timers: BTreeSet<(Duration, String)>,
    /// Everything up to this revision is in here.
    pub(crate) head: u64,
}

/// An end that has to be made sure of.
pub(crate) struct Due {
    pub(crate) name: String,
    pub(crate) revision: u64,
}

impl Cache {
    /// Takes in a Lease, and says what watchers are to be told.
    pub(crate) fn apply(&mut self, lease: &Lease, sight: Sight, id: &str) -> Result<Option<Batch>> {
        let revision = lease.revision()?;
        self.head = self.head.max(revision);
        let name = &lease.metadata.name;
        let ours = record::is_ours(lease);
        let now = row(lease, sight, id)?;
        let before = self.remove(name);
        let events = match (before, &now) {
            (None, None) => Vec::new(),
            (Some(before), None) => {
                let expired = record::ended_by_expiry(lease);
                vec![end(before, if expired { Cause::Expired } else { Cause::Deleted })]
            }
            (None, Some(row)) => vec![Event::Put(Arc::clone(&row.object))],
            (Some(before), Some(row)) => change(before, ours, row),
        };
        if let Some(row) = now {
            self.insert(name, row, ours);
        }
        Ok((!events.is_empty()).then_some(Batch { revision, events }))
    }

    /// The Lease itself was deleted.
    pub(crate) fn apply_deletion(&mut self, lease: &Lease) -> Result<Option<Batch>> {
        let revision = lease.revision()?;
        self.head = self.head.max(revision);
        let before = self.remove(&lease.metadata.name);
        let events = before.map(|before| vec![end(before, Cause::Deleted)]);
        Ok(events.map(|events| Batch { revision, events }))
    }

    /// This state of a Lease has expired and nobody has written that down.
    pub(crate) fn apply_expiry(&mut self, due: &Due) -> Option<Batch> {
        if self.live.get(&due.name)?.object.revision != due.revision {
            return None;
        }
        let before = self.remove(&due.name)?;
        Some(Batch { revision: self.head, events: vec![end(before, Cause::Expired)] })
    }

    /// When the next one may have expired.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// One that may have expired by now. Unless that is settled, it is due again at `again`.
    pub(crate) fn next_due(&mut self, now: Duration, again: Duration) -> Option<Due> {
        let (at, name) = self.timers.first().filter(|(at, _)| *at <= now)?.clone();
        self.timers.remove(&(at, name.clone()));
        let live = self.live.get_mut(&name)?;
        live.deadline = Some(again);
        self.timers.insert((again, name.clone()));
        Some(Due { name, revision: live.object.revision })
    }

    fn insert(&mut self, name: &str, row: Row, ours: bool) {
        let at = row.expires_at_ms.and_then(|ms| u64::try_from(ms).ok());
        let deadline = at.map(Duration::from_millis);
        self.timers.extend(deadline.map(|at| (at, name.to_owned())));
        self.live.insert(name.to_owned(), Live { object: row.object, ours, deadline });
    }

    fn remove(&mut self, name: &str) -> Option<Live> {
        let live = self.live.remove(name)?;
        if let Some(at) = live.deadline {
            self.timers.remove(&(at, name.to_owned()));
        }
        Some(live)
    }
}

fn end(before: Live, cause: Cause) -> Event {
    Event::Delete { key: before.object.key.clone(), cause, last: Some(before.object) }
}

fn change(before: Live, ours: bool, row: &Row) -> Vec<Event> {
    let (old, new) = (&before.object, &row.object);
    let put = Event::Put(Arc::clone(new));
    let began_again = match (before.ours, ours) {
        (true, true) => old.created_revision != new.created_revision,
        // An elector's tenure is told by what identifies it, not by numbers it does not have.
        (false, false) => old.payload != new.payload,
        _ => true,
    };
    if began_again {
        return vec![end(before, Cause::Expired), put];
    }
    let renewed = !ours || (old.version == new.version && old.token == new.token);
    if renewed { Vec::new() } else { vec![put] }
}
