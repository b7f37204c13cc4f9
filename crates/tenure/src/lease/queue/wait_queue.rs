//! One queue of waiters, as this process knows it: pure bookkeeping, no I/O.
//!
//! Where the store can keep several objects in one commit, every waiter of every process is in it,
//! in order of arrival; elsewhere only those of this process are. Either way at most one waiter of
//! this process is called at a time, and only when what it waits for may be free, so that any number
//! of waiters causes one attempt per release.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::Object;
use crate::lease::queue::wakeup::Wakeup;
use crate::lease::record::{WaiterRecord, decode};

/// A waiter of another process gets this long to act once it is its turn. Those behind it then pass
/// it by: it may be dead, and nothing but its silence would tell.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// If so many waiters of one process are silent, all of them are: it is dead. A living one may have to call
/// a few before one can use what it waits for, because some wait for more than this.
const TURNS: u32 = 4;

/// A waiter as the store keeps it.
pub(crate) struct ListedWaiter {
    nonce: String,
    place: u64,
    /// The process that waits; empty if the record does not say.
    via: String,
}

impl ListedWaiter {
    pub(crate) fn read(nonce: &str, object: &Object) -> Self {
        let via = decode::<WaiterRecord>(object, "").map(|record| record.via).unwrap_or_default();
        Self { nonce: nonce.to_owned(), place: object.created_revision, via }
    }
}

struct Waiter {
    nonce: Arc<str>,
    via: Arc<str>,
    /// Present for a waiter of this process.
    turn: Option<Arc<Wakeup>>,
}

/// Whether what the queue is for can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Perhaps; a waiter should try. Since when we think so.
    Free(Duration),
    /// No, as far as we know. Look again at this instant even if nothing is heard.
    Busy(Duration),
}

/// What a queue wants done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing before this instant.
    At(Duration),
    /// Nothing until something is heard or a called waiter has tried.
    Wait,
}

/// The waiters of one queue.
pub(crate) struct WaitQueue {
    waiters: BTreeMap<u64, Waiter>,
    /// Of this process, by nonce: with the place, once the store has given one.
    ours: BTreeMap<Arc<str>, (Arc<Wakeup>, Option<u64>)>,
    state: State,
    /// The waiter of ours who was called and has not tried yet.
    called: Option<Arc<str>>,
    /// Somebody let go since that waiter was called, so what it finds out may be old.
    freed: bool,
    /// When somebody ahead of us last left.
    left: Duration,
    /// The revision at which we last heard that somebody let go.
    ended: u64,
    /// Waiters of whom we heard that they are gone while the queue was being listed: the list may be
    /// older than that.
    gone: BTreeSet<String>,
    /// Tells listings of this queue apart from those of an earlier queue, or before news was missed.
    pub(crate) listing: u64,
    /// The revision of the marker that says there is a queue, 0 if unknown.
    marker: u64,
    /// Everything up to this revision is known.
    known: u64,
    /// The waiters of other processes are known.
    pub(crate) synced: bool,
    places: u64,
}

impl WaitQueue {
    pub(crate) fn new(now: Duration, listing: u64) -> Self {
        Self {
            waiters: BTreeMap::new(),
            ours: BTreeMap::new(),
            state: State::Free(now),
            called: None,
            freed: false,
            left: Duration::ZERO,
            ended: 0,
            gone: BTreeSet::new(),
            listing,
            marker: 0,
            known: 0,
            synced: false,
            places: 0,
        }
    }

    /// Registers a waiter of ours before its place is known, so that no news of it is missed.
    pub(crate) fn announce(&mut self, nonce: &Arc<str>) -> Arc<Wakeup> {
        let turn = Arc::<Wakeup>::default();
        self.ours.insert(Arc::clone(nonce), (Arc::clone(&turn), None));
        turn
    }

    /// The store has given a waiter of ours this place.
    pub(crate) fn enter(&mut self, nonce: &Arc<str>, place: u64) {
        self.marker = self.marker.max(place);
        let Some((turn, known)) = self.ours.get_mut(nonce) else { return };
        if turn.is_gone() {
            return;
        }
        *known = Some(place);
        let (nonce, via, turn) = (Arc::clone(nonce), Arc::from(""), Some(Arc::clone(turn)));
        self.waiters.insert(place, Waiter { nonce, via, turn });
    }

    /// A place among ours alone, where the store keeps no queue.
    pub(crate) fn enter_locally(&mut self, nonce: &Arc<str>) {
        self.places += 1;
        self.enter(nonce, self.places);
        self.synced = true;
    }

    /// A waiter of ours is gone. Whether that leaves none of ours.
    pub(crate) fn leave(&mut self, nonce: &str) -> bool {
        if let Some((_, Some(place))) = self.ours.remove(nonce) {
            self.waiters.remove(&place);
        }
        if self.called.as_deref() == Some(nonce) {
            self.called = None;
        }
        self.ours.is_empty()
    }

    /// Heard: this waiter stands at this place.
    pub(crate) fn heard_waiter(&mut self, waiter: &ListedWaiter, revision: u64) {
        if revision <= self.known {
            return;
        }
        self.marker = self.marker.max(waiter.place);
        self.insert(waiter);
    }

    fn insert(&mut self, ListedWaiter { nonce, place, via }: &ListedWaiter) {
        let (nonce, turn) = match self.ours.get_key_value(nonce.as_str()) {
            Some((ours, (turn, _))) => (Arc::clone(ours), Some(Arc::clone(turn))),
            None => (Arc::from(nonce.as_str()), None),
        };
        if let Some((_, known)) = self.ours.get_mut(&nonce) {
            *known = Some(*place);
        }
        self.waiters.insert(*place, Waiter { nonce, via: Arc::from(via.as_str()), turn });
    }

    /// Heard: this waiter is no longer in the queue.
    pub(crate) fn heard_gone(
        &mut self,
        nonce: &str,
        place: Option<u64>,
        revision: u64,
        now: Duration,
    ) {
        if revision <= self.known {
            return;
        }
        if !self.synced {
            self.gone.insert(nonce.to_owned());
        }
        let ours = self.ours.get(nonce).and_then(|(_, place)| *place);
        let place = place.or(ours).or_else(|| self.place_of(nonce));
        if let Some(place) = place {
            self.waiters.remove(&place);
        }
        // It may have left with what it waited for, which we hear of elsewhere; in any case the next
        // one gets its time from now.
        let first = self.waiters.iter().find(|(_, waiter)| waiter.turn.is_some());
        if place.is_some_and(|place| first.is_some_and(|(first, _)| place < *first)) {
            self.left = now;
        }
        if let Some((turn, _)) = self.ours.get(nonce) {
            turn.gone();
        }
    }

    fn place_of(&self, nonce: &str) -> Option<u64> {
        self.waiters.iter().find(|(_, waiter)| *waiter.nonce == *nonce).map(|(place, _)| *place)
    }

    /// Heard: the marker has this revision now.
    pub(crate) fn heard_marker(&mut self, revision: u64) {
        self.marker = self.marker.max(revision);
    }

    /// Heard: it may be free.
    pub(crate) fn heard_free(&mut self, now: Duration, revision: u64) {
        self.ended = self.ended.max(revision);
        self.freed = true;
        self.state = State::Free(now);
    }

    /// Found out by trying: it is not free, unless somebody let go while we tried.
    pub(crate) fn busy_after_try(&mut self, look_again: Duration) {
        if !self.freed {
            self.busy(look_again);
        }
    }

    /// Heard: it is not free. Look again at that instant.
    pub(crate) fn busy(&mut self, look_again: Duration) {
        self.state = State::Busy(look_again);
    }

    /// What is waited for, as it was found when the queue was listed: the revision of the lease, if
    /// somebody has it. Those with others ahead must not try on a mere guess.
    pub(crate) fn found(&mut self, held: Option<u64>, now: Duration, look_again: Duration) {
        match (held, self.state) {
            (Some(revision), _) if revision > self.ended => self.busy(look_again),
            (_, State::Free(_)) => self.state = State::Free(now),
            (_, State::Busy(_)) => {}
        }
    }

    /// The waiters as the store listed them at a revision.
    pub(crate) fn sync(&mut self, listed: &[ListedWaiter], marker: u64, revision: u64) {
        let gone = std::mem::take(&mut self.gone);
        let there: BTreeMap<u64, &ListedWaiter> = listed
            .iter()
            .filter(|waiter| !gone.contains(&waiter.nonce))
            .map(|waiter| (waiter.place, waiter))
            .collect();
        let gone: Vec<u64> = self
            .waiters
            .range(..=revision)
            .map(|(p, _)| *p)
            .filter(|p| !there.contains_key(p))
            .collect();
        for place in gone {
            if let Some(Waiter { turn: Some(turn), .. }) = self.waiters.remove(&place) {
                turn.gone();
            }
        }
        there.into_values().for_each(|waiter| self.insert(waiter));
        self.marker = self.marker.max(marker);
        self.known = revision;
        self.synced = true;
    }

    /// A waiter of ours has tried.
    pub(crate) fn tried(&mut self, nonce: &str) {
        if self.called.as_deref() == Some(nonce) {
            self.called = None;
        }
        if let Some((turn, _)) = self.ours.get(nonce) {
            turn.wait_again();
        }
    }

    /// What to do at this instant. Calls the waiter whose turn it is.
    pub(crate) fn next(&mut self, now: Duration) -> Next {
        if self.called.is_some() || !self.synced || self.ours.is_empty() {
            return Next::Wait;
        }
        let since = match self.state {
            State::Busy(look_again) if look_again > now => return Next::At(look_again),
            // Nothing was heard for long; trying is the surest way to look.
            State::Busy(look_again) => look_again,
            State::Free(since) => since,
        };
        let Some((ahead, waiter)) = self.first_of_ours() else { return Next::Wait };
        let at = since + PATIENCE * ahead;
        let at = if ahead > 0 { at.max(self.left + PATIENCE) } else { at };
        if at > now {
            return Next::At(at);
        }
        if let Some(turn) = &waiter.turn {
            turn.call();
        }
        self.called = Some(Arc::clone(&waiter.nonce));
        self.freed = false;
        Next::Wait
    }

    /// The first waiter of this process, and how many turns those of others have before it: each its own,
    /// but those of one process no more than [`TURNS`] together.
    fn first_of_ours(&self) -> Option<(u32, &Waiter)> {
        let mut turns: BTreeMap<&str, u32> = BTreeMap::new();
        let mut ahead = 0_u32;
        for waiter in self.waiters.values() {
            if waiter.turn.is_some() {
                return Some((ahead, waiter));
            }
            // One that does not say where it waits may be anywhere.
            let taken = turns.entry(&*waiter.via).or_default();
            if waiter.via.is_empty() || *taken < TURNS {
                ahead = ahead.saturating_add(1);
            }
            *taken = taken.saturating_add(1);
        }
        None
    }

    /// The nonces of those ahead of a waiter of ours, who were given their chance; at most `limit`.
    pub(crate) fn passed_by(&self, nonce: &str, limit: usize) -> Vec<Arc<str>> {
        let Some((_, Some(place))) = self.ours.get(nonce) else { return Vec::new() };
        let ahead = self.waiters.range(..place).map(|(_, waiter)| Arc::clone(&waiter.nonce));
        ahead.take(limit).collect()
    }

    /// The marker's revision if this waiter is the last one in the queue, so that the marker can go with it.
    pub(crate) fn marker_if_alone(&self, nonce: &str) -> Option<u64> {
        let alone = self.waiters.values().all(|waiter| *waiter.nonce == *nonce);
        (alone && self.synced && self.marker > 0).then_some(self.marker)
    }

    /// Nothing is certain any more: waiters of other processes must be listed again.
    pub(crate) fn forget(&mut self, now: Duration) {
        self.synced = false;
        self.known = 0;
        self.heard_free(now, 0);
    }

    /// Calls every waiter of ours at once: a mistake that is planted.
    pub(crate) fn call_all(&mut self) {
        self.ours.values().for_each(|(turn, _)| turn.call());
    }
}

#[cfg(test)]
#[path = "wait_queue_tests.rs"]
mod tests;
