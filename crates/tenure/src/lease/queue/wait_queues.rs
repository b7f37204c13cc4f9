//! All queues in which this process waits, and what news means for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::Owner;
use crate::lease::queue::wait_queue::{ListedWaiter, Next, WaitQueue};
use crate::lease::queue::wakeup::Wakeup;
use crate::lease::record::{LEASE, LeaseRecord, WAITER, decode, tagged, untagged};
use crate::store::{Batch, Event};
use crate::{Error, Object};

/// The nonce of the note that a group of slots was resized: those who wait should try.
pub(crate) const RESIZED: &str = "resized";
/// The queue of those who read or write a scope is tagged with this.
pub(crate) const SHARED: &str = "shared";

/// Somebody who waits on behalf of an owner that may be served elsewhere.
struct Resuming {
    owner: Owner,
    served: Arc<Notify>,
}

/// The queues, by name.
#[derive(Default)]
pub(crate) struct WaitQueues {
    queues: BTreeMap<Arc<str>, WaitQueue>,
    timers: BTreeSet<(Duration, Arc<str>)>,
    at: BTreeMap<Arc<str>, Duration>,
    /// WaitQueues whose waiters in other processes have to be listed.
    unsynced: BTreeSet<Arc<str>>,
    listings: u64,
    /// Waiters of ours that want to hear if their owner gets what they wait for, by queue and nonce.
    resuming: BTreeMap<(Arc<str>, Arc<str>), Resuming>,
    /// Waiters of ours, in all queues.
    pub(crate) waiting: usize,
    /// News arrives, so that queues can be joined.
    pub(crate) open: bool,
    /// The store refuses to tell news, so that no queue can be joined.
    pub(crate) refused: Option<Error>,
    /// Somebody works for the queues.
    pub(crate) running: bool,
}

impl WaitQueues {
    /// A waiter of ours is about to join.
    pub(crate) fn announce(
        &mut self,
        name: &Arc<str>,
        nonce: &Arc<str>,
        now: Duration,
    ) -> Arc<Wakeup> {
        self.waiting += 1;
        self.listings += 1;
        let listing = self.listings;
        let new = || WaitQueue::new(now, listing);
        let queue = self.queues.entry(Arc::clone(name)).or_insert_with(new);
        queue.announce(nonce)
    }

    /// A waiter of ours wants to hear if its owner gets what it waits for, by another request.
    pub(crate) fn resumes(
        &mut self,
        name: &Arc<str>,
        nonce: &Arc<str>,
        owner: &Owner,
    ) -> Arc<Notify> {
        let served = Arc::<Notify>::default();
        let key = (Arc::clone(name), Arc::clone(nonce));
        self.resuming.insert(key, Resuming { owner: owner.clone(), served: Arc::clone(&served) });
        served
    }

    /// A waiter of ours has joined: at this place, or locally where the store keeps no queue.
    pub(crate) fn enter(&mut self, name: &Arc<str>, nonce: &Arc<str>, place: Option<u64>) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        match place {
            Some(place) => queue.enter(nonce, place),
            None => queue.enter_locally(nonce),
        }
        if !queue.synced {
            self.unsynced.insert(Arc::clone(name));
        }
    }

    /// A waiter of ours is gone; each says so once.
    pub(crate) fn leave(&mut self, name: &Arc<str>, nonce: &Arc<str>) {
        self.resuming.remove(&(Arc::clone(name), Arc::clone(nonce)));
        self.waiting = self.waiting.saturating_sub(1);
        let Some(queue) = self.queues.get_mut(name) else { return };
        if queue.leave(nonce) {
            self.queues.remove(name);
            self.unsynced.remove(name);
            self.set_timer(name, None);
        }
    }

    /// One queue.
    pub(crate) fn get(&mut self, name: &str) -> Option<&mut WaitQueue> {
        self.queues.get_mut(name)
    }

    /// Lets a queue do what it wants at this instant, and sets its timer. Whether the worker of the
    /// queues has to be woken.
    pub(crate) fn step(&mut self, name: &Arc<str>, now: Duration) -> bool {
        let Some(queue) = self.queues.get_mut(name) else { return false };
        let timer = match queue.next(now) {
            Next::At(at) => Some(at),
            Next::Wait => None,
        };
        self.set_timer(name, timer) || self.unsynced.contains(name)
    }

    fn set_timer(&mut self, name: &Arc<str>, at: Option<Duration>) -> bool {
        if self.at.get(name).copied() == at {
            return false;
        }
        let first = self.next_timer();
        if let Some(old) = self.at.remove(name) {
            self.timers.remove(&(old, Arc::clone(name)));
        }
        let Some(at) = at else { return false };
        self.at.insert(Arc::clone(name), at);
        self.timers.insert((at, Arc::clone(name)));
        first.is_none_or(|first| at < first)
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Steps every queue whose timer is due.
    pub(crate) fn run_timers(&mut self, now: Duration) {
        while let Some((_, name)) = self.timers.first().filter(|(at, _)| *at <= now).cloned() {
            self.set_timer(&name, None);
            self.step(&name, now);
        }
    }

    /// WaitQueues that have to be listed; each is handed out once.
    pub(crate) fn take_unsynced(&mut self) -> Vec<(Arc<str>, u64)> {
        let names = std::mem::take(&mut self.unsynced);
        let listing = |name: Arc<str>| self.queues.get(&name).map(|queue| (name, queue.listing));
        names.into_iter().filter_map(listing).collect()
    }

    /// A listing failed: it has to be repeated.
    pub(crate) fn sync_again(&mut self, name: &Arc<str>) {
        if self.queues.contains_key(name) {
            self.unsynced.insert(Arc::clone(name));
        }
    }

    /// News was or may have been missed: everything has to be listed again.
    pub(crate) fn forget(&mut self, now: Duration) {
        for (name, queue) in &mut self.queues {
            queue.forget(now);
            self.listings += 1;
            queue.listing = self.listings;
            self.unsynced.insert(Arc::clone(name));
        }
    }

    /// Nobody of ours waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Calls every waiter of ours at once: a mistake that is planted.
    pub(crate) fn call_all(&mut self) {
        self.queues.values_mut().for_each(WaitQueue::call_all);
    }

    /// Takes in what happened, and lets the queues concerned act on it. `recheck` is when a queue
    /// that is known to be busy looks again even if it hears nothing.
    pub(crate) fn hear(&mut self, batch: &Batch, now: Duration, recheck: Duration) {
        for event in &batch.events {
            let key = event.key();
            match key.kind.as_str() {
                LEASE => self.hear_lease(event, batch.revision, now, recheck),
                WAITER => self.hear_waiter(event, batch.revision, now),
                _ => {}
            }
        }
    }

    fn hear_lease(&mut self, event: &Event, revision: u64, now: Duration, recheck: Duration) {
        let id = event.key().id.as_str();
        let ended = matches!(event, Event::Delete { .. });
        // A lease is waited for under its own id, under its namespace (a slot's), or in the queue
        // that readers and writers of a scope share.
        let group = id.split_once('/').map(|(group, _)| group.to_owned());
        let shared = untagged(id).map(|(scope, _)| tagged(scope, SHARED));
        for name in [Some(id.to_owned()), group, shared].into_iter().flatten() {
            let Some((name, _)) = self.queues.get_key_value(name.as_str()) else { continue };
            let name = Arc::clone(name);
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            if ended {
                queue.heard_free(now, revision);
            } else if *name == *id {
                queue.busy(recheck);
            }
            if let Event::Put(object) = event {
                self.hear_holder(&name, object);
            }
            self.step(&name, now);
        }
    }

    fn hear_holder(&self, name: &Arc<str>, lease: &Object) {
        let from = (Arc::clone(name), Arc::from(""));
        let mut here = self.resuming.range(from..).take_while(|((queue, _), _)| queue == name);
        let Some(first) = here.next() else { return };
        let Ok(record) = decode::<LeaseRecord>(lease, "") else { return };
        for (_, Resuming { owner, served }) in std::iter::once(first).chain(here) {
            if *record.holder == *owner.name() && *record.start == *owner.start() {
                served.notify_one();
            }
        }
    }

    fn hear_waiter(&mut self, event: &Event, revision: u64, now: Duration) {
        let Some((name, nonce)) = untagged(&event.key().id) else { return };
        let Some((name, _)) = self.queues.get_key_value(name) else { return };
        let name = Arc::clone(name);
        let Some(queue) = self.queues.get_mut(&name) else { return };
        match (event, nonce) {
            (Event::Put(object), "") => queue.heard_marker(object.revision),
            (Event::Delete { .. }, "") => {}
            (_, RESIZED) => queue.heard_free(now, revision),
            (Event::Put(object), nonce) => {
                queue.heard_waiter(&ListedWaiter::read(nonce, object), revision);
            }
            (Event::Delete { last, .. }, nonce) => {
                let place = last.as_ref().map(|object| object.created_revision);
                queue.heard_gone(nonce, place, revision, now);
            }
        }
        self.step(&name, now);
    }
}
