//! The feed for the watchers of this process, and the last group that it was given.
//!
//! Revisions can go back: a standby that had not received the last commits may be promoted, or a backup may
//! be restored. A revision that is drawn again is drawn at another time, which shows the difference. So every
//! read of history also looks for the last group that was told. A commit of this process is told without a
//! read only if no session for commits was opened since the last one, because a new one may be connected to
//! another server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::backend::decide::Step;
use tenure::backend::{Feed, FeedLimits};

use crate::watch::history::Found;

/// The last group of commits that watchers were told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Its last revision.
    pub(crate) revision: u64,
    /// When it was committed, by the store's clock. Unknown of what was before anybody watched.
    at_ms: Option<i64>,
}

impl Told {
    /// Whether what was found behind this revision follows what was told.
    pub(crate) fn precedes(self, found: &Found) -> bool {
        let is_kept = match (self.at_ms, found.given_at_ms) {
            (Some(told), Some(given)) => told == given,
            (Some(_), None) => self.revision == found.oldest,
            (None, _) => true,
        };
        is_kept && self.revision <= found.head
    }

    /// The end of what was found behind this.
    fn moved_on(self, found: &Found) -> Self {
        match found.batches.last() {
            Some(last) => Self { revision: last.revision, at_ms: found.last_at_ms },
            None => Self { at_ms: found.given_at_ms, ..self },
        }
    }
}

/// See above.
pub(crate) struct LocalFeed {
    pub(crate) feed: Arc<Feed>,
    end: Mutex<End>,
}

struct End {
    told: Told,
    /// How many sessions for commits had been opened when that was last looked for.
    sessions: u64,
}

impl LocalFeed {
    /// Everything up to this revision is history.
    pub(crate) fn new(revision: u64, sessions: u64) -> Self {
        let feed = Arc::new(Feed::new(revision, FeedLimits::default()));
        let told = Told { revision, at_ms: None };
        Self { feed, end: Mutex::new(End { told, sessions }) }
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn told(&self) -> Told {
        self.end().told
    }

    /// Publishes a group of this process; `false` if something else comes first, or may.
    pub(crate) fn publish_own(&self, steps: &[Step], at_ms: i64, sessions: u64) -> bool {
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return true };
        let mut end = self.end();
        if end.told.revision + 1 != first.revision || end.sessions != sessions {
            return false;
        }
        self.feed.publish(steps.iter().map(Step::batch));
        end.told = Told { revision: last.revision, at_ms: Some(at_ms) };
        true
    }

    /// Publishes what was found behind `told`; more may have been published meanwhile.
    pub(crate) fn publish_found(&self, told: Told, found: Found, sessions: u64) {
        let next = told.moved_on(&found);
        let mut end = self.end();
        self.feed.publish(found.batches);
        if next.revision >= end.told.revision {
            end.told = next;
        }
        end.sessions = end.sessions.max(sessions);
    }

    /// Everything up to this revision is history from now on.
    pub(crate) fn reset(&self, revision: u64) {
        let mut end = self.end();
        self.feed.reset(revision);
        end.told = Told { revision: self.feed.head(), at_ms: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_known_by_its_instant() {
        let told = |at_ms| Told { revision: 7, at_ms };
        let found = |head, oldest, given_at_ms| Found {
            batches: Vec::new(),
            head,
            oldest,
            given_at_ms,
            last_at_ms: None,
        };
        for (told, found, precedes) in [
            (told(Some(100)), found(7, 0, Some(100)), true),
            (told(Some(100)), found(9, 0, Some(101)), false),
            (told(Some(100)), found(9, 0, None), false),
            // Compacted up to there.
            (told(Some(100)), found(9, 7, None), true),
            (told(None), found(9, 0, Some(100)), true),
            (told(None), found(6, 0, None), false),
        ] {
            assert_eq!(told.precedes(&found), precedes, "{told:?} {}", found.head);
        }
    }
}
