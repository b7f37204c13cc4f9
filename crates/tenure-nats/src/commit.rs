//! Commits: one object each, decided by the shared rules over what is known and settled by the
//! server.
//!
//! A write begins with what this process remembers, or for a creation with the guess that nothing
//! is there. If the server accepts it, that was so, and one exchange was all. If it does not, or if
//! the rules would refuse on grounds that are only remembered, the object is read from its leader
//! and the rules are asked again. So nobody is ever refused because of something stale.
//!
//! What seldom happens is boxed: a commit is a future on the heap, and a small one costs less to make.

use std::sync::Arc;
use std::time::Duration;

use tenure::random::{SystemRandom, below};
use tenure::store::decide::{Change, Decision, Now, Row, View, decide};
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
        let guess = self.memory.recall(&subject).or_else(|| guess(commit));
        let (mut base, mut fresh) = match guess {
            Some(base) => (base, false),
            None => (Box::pin(self.look(&subject, key)).await?, true),
        };
        for attempt in 0..ATTEMPTS {
            match self.decide(commit, &base) {
                Ok((committed, None)) if fresh => return Ok(committed),
                Err(error) if fresh => return Err(error),
                Ok((mut committed, Some(replacement))) => {
                    match self.publish(&subject, &base, replacement).await? {
                        Published::Stored(known) => {
                            settle(&mut committed, known.sequence);
                            return Ok(committed);
                        }
                        Published::Refused => Box::pin(breathe(attempt)).await,
                    }
                }
                // On remembered grounds nobody is refused, and nothing is said to be as it should.
                Ok((_, None)) | Err(_) => {}
            }
            (base, fresh) = (Box::pin(self.look(&subject, key)).await?, true);
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

/// Puts the drawn sequence where the answer has a place for it.
fn settle(committed: &mut Committed, sequence: u64) {
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
}

/// Whoever was refused again and again steps aside for a moment.
pub(crate) async fn breathe(attempt: u32) {
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
