//! One line of waiters, as this process knows it: pure bookkeeping, no I/O.
//!
//! Where the store can keep several objects in one commit, every waiter of every process is in it,
//! in order of arrival; elsewhere only those of this process are. Either way at most one waiter of
//! this process is called at a time, and only when what it waits for may be free, so that any number
//! of waiters causes one attempt per release.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::turn::Turn;

/// A waiter of another process gets this long to act once it is its turn. Those behind it then pass
/// it by: it may be dead, and nothing but its silence would tell.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

struct Waiter {
    nonce: Arc<str>,
    /// Present for a waiter of this process.
    turn: Option<Arc<Turn>>,
}

/// Whether what the line is for can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Perhaps; a waiter should try. Since when we think so.
    Free(Duration),
    /// No, as far as we know. Look again at this instant even if nothing is heard.
    Busy(Duration),
}

/// What a line wants done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing before this instant.
    At(Duration),
    /// Nothing until something is heard or a called waiter has tried.
    Wait,
}

/// The waiters of one line.
pub(crate) struct Line {
    waiters: BTreeMap<u64, Waiter>,
    /// Of this process, by nonce: with the place, once the store has given one.
    ours: BTreeMap<Arc<str>, (Arc<Turn>, Option<u64>)>,
    state: State,
    /// The waiter of ours who was called and has not tried yet.
    called: Option<Arc<str>>,
    /// Somebody let go since that waiter was called, so what it finds out may be old.
    freed: bool,
    /// When somebody ahead of us last left.
    left: Duration,
    /// The revision at which we last heard that somebody let go.
    ended: u64,
    /// Waiters of whom we heard that they are gone while the line was being listed: the list may be
    /// older than that.
    gone: BTreeSet<String>,
    /// Tells listings of this line apart from those of an earlier line, or before news was missed.
    pub(crate) listing: u64,
    /// The revision of the mark that says there is a line, 0 if unknown.
    mark: u64,
    /// Everything up to this revision is known.
    known: u64,
    /// The waiters of other processes are known.
    pub(crate) synced: bool,
    places: u64,
}

impl Line {
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
            mark: 0,
            known: 0,
            synced: false,
            places: 0,
        }
    }

    /// Registers a waiter of ours before its place is known, so that no news of it is missed.
    pub(crate) fn announce(&mut self, nonce: &Arc<str>) -> Arc<Turn> {
        let turn = Arc::<Turn>::default();
        self.ours.insert(Arc::clone(nonce), (Arc::clone(&turn), None));
        turn
    }

    /// The store has given a waiter of ours this place.
    pub(crate) fn enter(&mut self, nonce: &Arc<str>, place: u64) {
        self.mark = self.mark.max(place);
        let Some((turn, known)) = self.ours.get_mut(nonce) else { return };
        if turn.is_gone() {
            return;
        }
        *known = Some(place);
        let turn = Some(Arc::clone(turn));
        self.waiters.insert(place, Waiter { nonce: Arc::clone(nonce), turn });
    }

    /// A place among ours alone, where the store keeps no line.
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
    pub(crate) fn heard_waiter(&mut self, nonce: &str, place: u64, revision: u64) {
        if revision <= self.known {
            return;
        }
        self.mark = self.mark.max(place);
        self.insert(nonce, place);
    }

    fn insert(&mut self, nonce: &str, place: u64) {
        let (nonce, turn) = match self.ours.get_key_value(nonce) {
            Some((ours, (turn, _))) => (Arc::clone(ours), Some(Arc::clone(turn))),
            None => (Arc::from(nonce), None),
        };
        if let Some((_, known)) = self.ours.get_mut(&nonce) {
            *known = Some(place);
        }
        self.waiters.insert(place, Waiter { nonce, turn });
    }

    /// Heard: this waiter is no longer in line.
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

    /// Heard: the mark has this revision now.
    pub(crate) fn heard_mark(&mut self, revision: u64) {
        self.mark = self.mark.max(revision);
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

    /// What is waited for, as it was found when the line was listed: the revision of the lease, if
    /// somebody has it. Those with others ahead must not try on a mere guess.
    pub(crate) fn found(&mut self, held: Option<u64>, now: Duration, look_again: Duration) {
        match (held, self.state) {
            (Some(revision), _) if revision > self.ended => self.busy(look_again),
            (_, State::Free(_)) => self.state = State::Free(now),
            (_, State::Busy(_)) => {}
        }
    }

    /// The waiters as the store listed them at a revision.
    pub(crate) fn sync(&mut self, listed: &[(String, u64)], mark: u64, revision: u64) {
        let gone = std::mem::take(&mut self.gone);
        let there: BTreeMap<u64, &str> = listed
            .iter()
            .filter(|(nonce, _)| !gone.contains(nonce))
            .map(|(nonce, place)| (*place, nonce.as_str()))
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
        for (place, nonce) in there {
            self.insert(nonce, place);
        }
        self.mark = self.mark.max(mark);
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
        let Some((ahead, waiter)) =
            self.waiters.values().enumerate().find(|(_, waiter)| waiter.turn.is_some())
        else {
            return Next::Wait;
        };
        let at = since + PATIENCE * u32::try_from(ahead).unwrap_or(u32::MAX);
        let at = if ahead > 0 { at.max(self.left + PATIENCE) } else { at };
        if at > now {
            return Next::At(at);
        }
        self.freed = false;
        self.called = Some(Arc::clone(&waiter.nonce));
        if let Some(turn) = &waiter.turn {
            turn.call();
        }
        Next::Wait
    }

    /// The nonces of those ahead of a waiter of ours, who were given their chance; at most `limit`.
    pub(crate) fn passed_by(&self, nonce: &str, limit: usize) -> Vec<Arc<str>> {
        let Some((_, Some(place))) = self.ours.get(nonce) else { return Vec::new() };
        let ahead = self.waiters.range(..place).map(|(_, waiter)| Arc::clone(&waiter.nonce));
        ahead.take(limit).collect()
    }

    /// The mark's revision if this waiter is the last one in line, so that the mark can go with it.
    pub(crate) fn mark_if_alone(&self, nonce: &str) -> Option<u64> {
        let alone = self.waiters.values().all(|waiter| *waiter.nonce == *nonce);
        (alone && self.synced && self.mark > 0).then_some(self.mark)
    }

    /// Nothing is certain any more: waiters of other processes must be listed again.
    pub(crate) fn forget(&mut self, now: Duration) {
        self.synced = false;
        self.known = 0;
        self.heard_free(now, 0);
    }

    /// Calls every waiter of ours at once.
    #[cfg(feature = "flaws")]
    pub(crate) fn call_all(&mut self) {
        self.ours.values().for_each(|(turn, _)| turn.call());
    }
}

#[cfg(test)]
mod tests {
    use super::super::turn::Cue;
    use super::*;
    use futures::FutureExt;

    const T0: Duration = Duration::from_secs(100);

    fn line_of(ours: &[(&str, u64)], others: &[(&str, u64)]) -> (Line, Vec<Arc<Turn>>) {
        let mut line = Line::new(T0, 1);
        let turns = ours.iter().map(|(nonce, _)| line.announce(&Arc::from(*nonce))).collect();
        for (nonce, place) in ours {
            line.enter(&Arc::from(*nonce), *place);
        }
        let listed: Vec<_> =
            ours.iter().chain(others).map(|(nonce, place)| ((*nonce).to_owned(), *place)).collect();
        line.sync(&listed, 0, 1000);
        (line, turns)
    }

    fn cue(turn: &Turn) -> Option<Cue> {
        turn.cue().now_or_never()
    }

    #[test]
    fn one_waiter_is_called_at_a_time_in_order_of_arrival() {
        let (mut line, turns) = line_of(&[("b", 20), ("a", 10)], &[]);
        assert_eq!(line.next(T0), Next::Wait);
        assert_eq!((cue(&turns[1]), cue(&turns[0])), (Some(Cue::Try), None));
        assert_eq!(line.next(T0), Next::Wait, "nobody else while one tries");
        line.tried("a");
        line.leave("a");
        line.next(T0);
        assert_eq!(cue(&turns[0]), Some(Cue::Try));
    }

    #[test]
    fn a_silent_waiter_of_another_process_is_passed_by_after_a_while() {
        let (mut line, turns) = line_of(&[("me", 30)], &[("x", 10), ("y", 20)]);
        assert_eq!(line.next(T0), Next::At(T0 + PATIENCE * 2));
        assert_eq!(line.next(T0 + PATIENCE * 2), Next::Wait);
        assert_eq!(cue(&turns[0]), Some(Cue::Try));
        assert_eq!(line.passed_by("me", 10).len(), 2);
    }

    #[test]
    fn busy_means_nobody_is_called_until_it_is_free_or_time_to_look() {
        let (mut line, turns) = line_of(&[("me", 30)], &[]);
        line.busy(T0 + PATIENCE);
        assert_eq!(line.next(T0), Next::At(T0 + PATIENCE));
        assert_eq!(cue(&turns[0]), None);
        line.heard_free(T0, 1);
        line.next(T0);
        assert_eq!(cue(&turns[0]), Some(Cue::Try));
        line.tried("me");
        line.busy(T0 + PATIENCE);
        line.next(T0 + PATIENCE);
        assert_eq!(cue(&turns[0]), Some(Cue::Try), "trying is how it looks");
    }

    #[test]
    fn a_waiter_whose_place_goes_is_told_even_if_it_goes_before_it_was_entered() {
        let mut line = Line::new(T0, 1);
        let nonce: Arc<str> = "me".into();
        let turn = line.announce(&nonce);
        line.heard_waiter("me", 5, 5);
        line.heard_gone("me", None, 6, T0);
        assert_eq!(cue(&turn), Some(Cue::Gone));
        line.enter(&nonce, 5);
        line.synced = true;
        assert_eq!(line.passed_by("me", 1).len(), 0);
        let (mut line, turns) = line_of(&[("me", 30)], &[]);
        line.sync(&[], 0, 2000);
        assert_eq!(cue(&turns[0]), Some(Cue::Gone));
        assert_eq!(line.next(T0), Next::Wait);
    }

    #[test]
    fn the_mark_goes_only_with_the_last_waiter() {
        let (line, _) = line_of(&[("me", 30)], &[("x", 10)]);
        assert_eq!(line.mark_if_alone("me"), None);
        let (line, _) = line_of(&[("me", 30)], &[]);
        assert_eq!(line.mark_if_alone("me"), Some(30));
    }

    #[test]
    fn news_older_than_the_list_changes_nothing() {
        let (mut line, _) = line_of(&[("me", 30)], &[]);
        line.heard_waiter("late", 7, 900);
        assert_eq!(line.passed_by("me", 10).len(), 0);
        line.heard_waiter("new", 1001, 1001);
        assert_eq!(line.mark_if_alone("me"), None);
    }
}
