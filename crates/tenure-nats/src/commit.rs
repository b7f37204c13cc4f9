//! Commits: one object each, decided by the shared rules over what is known and settled by the
//! server.
//!
//! A write begins with what this process remembers, or for a creation with the guess that nothing
//! is there. If the server accepts it, that was so, and one exchange was all. If it does not, or if
//! the rules would refuse on grounds that are only remembered, the object is read from its leader
//! and the rules are asked again. So nobody is ever refused because of something stale, and what needs
//! no write is confirmed by the replicas before it is said.
//!
//! What seldom happens is boxed: a commit is a future on the heap, and a small one costs less to make.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::backend::decide::{Change, Decision, Now, Row, View, decide};
use tenure::random::{SystemRandom, below};
use tenure::store::{Capability, Commit, Committed, Expect, Write, WriteResult, Written};
use tenure::{Error, Key, Result};

use crate::BACKEND;
use crate::envelope::OWN;
use crate::publish::{Published, Replacement};
use crate::shared::Shared;
use crate::stored::Known;

/// How often others may be quicker before the caller is told to try later.
const ATTEMPTS: u32 = 64;
const PAUSE: Duration = Duration::from_millis(4);
/// What a commit may take less than its time.
const SPARE: Duration = Duration::from_millis(500);

/// One object as the rules see it.
pub(crate) struct Single<'a>(pub(crate) &'a Known);

impl Single<'_> {
    /// The server judges lives, so a row that is there is alive. The rules only need to know whether
    /// it has one.
    pub(crate) fn as_row(&self) -> Option<Row> {
        let object = self.0.object.clone()?;
        let expires_at_ms = self.0.lives_until.map(|_| i64::MAX);
        Some(Row { object, expires_at_ms })
    }
}

impl View for Single<'_> {
    fn row(&mut self, _key: &Key) -> Result<Option<Row>> {
        Ok(self.as_row())
    }

    fn named(&mut self, _kind: &str, _name: &str) -> Result<Option<Row>> {
        Ok(None)
    }
}

impl Shared {
    pub(crate) async fn commit(&self, commit: &Commit) -> Result<Committed> {
        if commit.checks.len() + commit.writes.len() > 1 {
            let capability = Capability::MultiObjectCommits;
            return Err(Error::Unsupported { capability, backend: BACKEND });
        }
        let Some(key) =
            commit.writes.first().map(Write::key).or(commit.checks.first().map(|c| &c.key))
        else {
            return Ok(Committed { revision: None, writes: Vec::new() });
        };
        let subject = self.subjects.of(key);
        let guess = self.cache.get(&subject).or_else(|| guess(commit));
        if let Some(base) = guess.filter(|_| self.is_up())
            && let Ok((committed, Some(replacement))) = self.decide(commit, &base)
            && let Published::Stored(known) = self.publish(&subject, &base, replacement).await?
        {
            return Ok(settled(committed, known.sequence));
        }
        // On remembered grounds nobody is refused, and nothing is said to be as it should.
        let sent = AtomicBool::new(false);
        let seen = Box::pin(self.commit_seen(commit, &subject, key, &sent));
        let settled = tokio::time::timeout(self.rest(), seen).await;
        settled.unwrap_or_else(|_| {
            let why = format!("{key} was not settled within {:?}", self.rest());
            Err(match sent.into_inner() {
                true => Error::unknown(BACKEND, why),
                false => Error::unavailable(BACKEND, why),
            })
        })
    }

    /// What of the time for a commit is left after a first try, with a little for the last wake-up.
    pub(crate) fn rest(&self) -> Duration {
        let patience = self.options.reply_timeout;
        patience.saturating_sub(SPARE).max(patience / 2)
    }

    /// The longest that a commit takes: a first try, and the rest.
    pub(crate) fn commit_within(&self) -> Duration {
        self.options.reply_timeout * 2
    }

    /// The same on what its leader says. Notes when a write may be under way.
    async fn commit_seen(
        &self,
        commit: &Commit,
        subject: &str,
        key: &Key,
        sent: &AtomicBool,
    ) -> Result<Committed> {
        for attempt in 0..ATTEMPTS {
            let base = self.look(subject, key).await?;
            let (committed, replacement) = self.decide(commit, &base)?;
            let Some(replacement) = replacement else {
                // Nothing is written, so that nothing else would notice a read of the past.
                if self.is_still(subject, &base).await? {
                    return Ok(committed);
                }
                pause(attempt).await;
                continue;
            };
            sent.store(true, Ordering::Relaxed);
            match self.publish(subject, &base, replacement).await? {
                Published::Stored(known) => return Ok(settled(committed, known.sequence)),
                Published::Refused => {
                    sent.store(false, Ordering::Relaxed);
                    pause(attempt).await;
                }
            }
        }
        Err(Error::unavailable(BACKEND, format!("others wrote {key} first, {ATTEMPTS} times")))
    }

    /// The answer over this state, and what to write if anything.
    fn decide(&self, commit: &Commit, base: &Known) -> Result<(Committed, Option<Replacement>)> {
        let now = Now { store_ms: 0, wall_ms: self.time.clock().wall_ms() };
        let decision = decide(&mut Single(base), commit, now, OWN - 1)?;
        let replacement = replacement(commit, base, &decision);
        Ok((decision.committed, replacement))
    }
}

fn replacement(commit: &Commit, base: &Known, decision: &Decision) -> Option<Replacement> {
    if let Some(change) = decision.steps.first().and_then(|step| step.changes.first()) {
        return Some(match change {
            Change::Put { row, .. } => {
                Replacement::Object { life: row.object.ttl, object: Arc::clone(&row.object) }
            }
            Change::Remove { .. } => Replacement::Marker,
        });
    }
    // Nothing changes but the life, which starts anew.
    let object = base.object.as_ref().filter(|_| !decision.refreshed.is_empty())?;
    let life = commit.writes.first().and_then(|write| match write {
        Write::Put(put) => put.ttl,
        Write::Delete(_) => None,
    });
    Some(Replacement::Object { object: Arc::clone(object), life })
}

/// What a commit may be tried on without looking.
fn guess(commit: &Commit) -> Option<Known> {
    let absent = commit.writes.first().is_some_and(|write| write.expect() == Expect::Absent);
    absent.then_some(Known::NOTHING)
}

/// The answer with the drawn sequence where it has a place for it.
fn settled(mut committed: Committed, sequence: u64) -> Committed {
    let own = |number: &mut u64| {
        if *number == OWN {
            *number = sequence;
        }
    };
    if let Some(revision) = &mut committed.revision {
        own(revision);
    }
    for written in &mut committed.writes {
        match written {
            Written::Put(WriteResult { revision, created_revision, token, .. }) => {
                [revision, created_revision, token].into_iter().for_each(own);
            }
            Written::Deleted { revision } => own(revision),
            Written::Unchanged(_) | Written::Absent => {}
        }
    }
    committed
}

/// A commit that was refused again and again pauses for a moment.
pub(crate) async fn pause(attempt: u32) {
    if attempt > 0 {
        let most = PAUSE * attempt.min(8);
        let nanos = below(&SystemRandom, u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        tokio::time::sleep(Duration::from_nanos(nanos)).await;
    }
}

/// How often others may be quicker before a touch is told to try later.
pub(crate) fn attempts() -> std::ops::Range<u32> {
    0..ATTEMPTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_creation_is_tried_unseen() {
        let put =
            |expect| Commit::from(tenure::store::Put::new(Key::new("a", "b"), "v").expect(expect));
        assert_eq!(guess(&put(Expect::Absent)).map(|known| known.sequence), Some(0));
        assert!(guess(&put(Expect::Any)).is_none());
        assert!(guess(&Commit::new().check(Key::new("a", "b"), Expect::Absent)).is_none());
    }
}
