//! Deciding a group by what is known, before the server is asked.
//!
//! Only commits of the simplest kinds qualify, and only if they apply and change something: a refusal
//! must be true as well, and only what is written is confirmed.

use tenure::store::decide::{Change, Decision, Now, Row, Step, View, decide};
use tenure::store::{Commit, Committed, Expect, Put, Write};
use tenure::{Key, Result};

use crate::apply::Head;
use crate::group::{Job, Work};
use crate::known::{Known, Left};
use crate::row::{signed, unsigned};
use crate::tid::Xid;
use crate::transaction::lowered;

/// What a group comes to if all that is known is so.
pub(super) struct Plan<'a> {
    /// In the order of the jobs.
    pub(super) answers: Vec<Result<Committed>>,
    /// One for each commit, each with one change, in order of key.
    pub(super) steps: Vec<Step>,
    /// What each step does to its row.
    pub(super) fates: Vec<Fate>,
    /// What must not be there.
    pub(super) absent: Vec<&'a Key>,
    /// Rows that are removed must live at this instant at least.
    pub(super) not_before_ms: i64,
    pub(super) head: Head,
}

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// There is none, and it comes.
    Insert,
    /// It is the one that this transaction wrote, and is replaced.
    Replace(Xid),
    /// It is the one we wrote, was not outlived by its time, and goes.
    Remove,
}

impl Plan<'_> {
    /// Whether rows are replaced and nothing else is to be seen to.
    pub(super) fn replaces_only(&self) -> bool {
        let replaces = |fate: &Fate| matches!(fate, Fate::Replace(_));
        self.absent.is_empty() && self.fates.iter().all(replaces)
    }
}

/// A commit of one write, which may demand that other objects are not there.
struct Simple<'a> {
    commit: &'a Commit,
    write: &'a Write,
}

/// Decides a group; `None` if what is known does not suffice. The store's time lies within `between`.
pub(super) fn plan<'a>(
    jobs: &'a [Job],
    known: &Known,
    left: Left,
    between: (i64, i64),
) -> Option<Plan<'a>> {
    let simple = jobs.iter().enumerate().map(|(at, job)| Some((at, simple(&job.request)?)));
    let mut commits = simple.collect::<Option<Vec<_>>>()?;
    // They all wait at the same time, so any order will do; this is the one in which rows are locked.
    commits.sort_unstable_by_key(|(_, simple)| simple.write.key());
    if commits.windows(2).any(|pair| pair[0].1.write.key() == pair[1].1.write.key()) {
        return None;
    }
    let absent = absent(&commits, known)?;
    let earliest = between.0.max(left.head.clock_last_ms);
    // A life counts from the latest that it can be by now, so it is never cut short.
    let now =
        Now { store_ms: between.1.max(earliest), wall_ms: earliest - left.head.clock_offset_ms };
    let mut revision = unsigned(left.head.revision);
    let mut next_expiry_ms = left.head.next_expiry_ms;
    let (mut steps, mut fates) = (Vec::new(), Vec::new());
    let mut answers: Vec<_> = jobs.iter().map(|_| None).collect();
    for (at, Simple { commit, write }) in commits {
        let (row, fate) = match (known.row(write.key()), write) {
            (None, Write::Put(put)) if put.expect == Expect::Absent => (None, Fate::Insert),
            (Some((row, by)), Write::Put(put)) if is_replaced(put, row) => {
                (Some(row), Fate::Replace(*by))
            }
            (Some((row, _)), Write::Delete(_)) => (Some(row), Fate::Remove),
            _ => return None,
        };
        let Decision { committed, steps: one, .. } =
            decide(&mut Only(row), commit, now, revision).ok()?;
        revision = committed.revision?;
        let [step] = <[Step; 1]>::try_from(one).ok()?;
        if let Some(Change::Put { row: Row { expires_at_ms: Some(at), .. }, .. }) =
            step.changes.first()
        {
            next_expiry_ms = next_expiry_ms.min(lowered(*at));
        }
        steps.push(step);
        fates.push(fate);
        answers[at] = Some(Ok(committed));
    }
    let answers = answers.into_iter().collect::<Option<Vec<_>>>()?;
    let head =
        Head { revision: signed(revision), clock_last_ms: earliest, next_expiry_ms, ..left.head };
    Some(Plan { answers, steps, fates, absent, not_before_ms: earliest, head })
}

/// A put that leaves the name as it is, of an object that neither has a time to live nor gets one.
fn is_replaced(put: &Put, row: &Row) -> bool {
    put.ttl.is_none() && row.expires_at_ms.is_none() && row.object.name == put.name
}

fn simple(work: &Work) -> Option<Simple<'_>> {
    let Work::Commit(commit) = work else { return None };
    // Named in full: whatever a commit may hold one day, it is not simple until somebody says so here.
    let Commit { checks, writes, attachments } = commit;
    let only_absent = checks.iter().all(|check| check.expect == Expect::Absent);
    match (&writes[..], &attachments[..]) {
        ([write], []) if only_absent => Some(Simple { commit, write }),
        _ => None,
    }
}

/// What the group demands not to be there; `None` if it is known to be, or about to.
fn absent<'a>(commits: &[(usize, Simple<'a>)], known: &Known) -> Option<Vec<&'a Key>> {
    let checks = commits.iter().flat_map(|(_, simple)| &simple.commit.checks);
    let absent: Vec<&Key> = checks.map(|check| &check.key).collect();
    let is_written =
        |key: &Key| commits.binary_search_by(|(_, simple)| simple.write.key().cmp(key)).is_ok();
    absent.iter().all(|key| known.row(key).is_none() && !is_written(key)).then_some(absent)
}

/// All that a simple commit needs to see: the row it writes, which has the name that is asked for.
/// Should another object have that name, the server refuses.
struct Only<'a>(Option<&'a Row>);

impl View for Only<'_> {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        Ok(self.0.filter(|row| row.object.key == *key).cloned())
    }

    fn named(&mut self, _: &str, _: &str) -> Result<Option<Row>> {
        Ok(self.0.cloned())
    }
}
