//! Deciding a group by what is known, before the server is asked.
//!
//! Only commits of the simplest kinds qualify, and only if they apply and change something: a refusal
//! must be true as well, and only what is written is confirmed.

use tenure::backend::decide::{Change, Decision, Now, Row, Step, View, decide};
use tenure::store::{Commit, Committed, Expect, Put, Write};
use tenure::{Key, Object, Result as StoreResult};

use super::Lack;
use super::look::Seen;
use crate::commit::apply::Head;
use crate::commit::committer::{Job, Work};
use crate::commit::known::{Known, Left};
use crate::commit::transaction::lowered;
use crate::row::{signed, unsigned};
use crate::tid::Xid;

/// What a group comes to if all that is known is so.
#[derive(Clone)]
pub(crate) struct Plan {
    /// In the order of the jobs.
    pub(crate) answers: Vec<StoreResult<Committed>>,
    /// One for each commit, each with one change: first what is inserted, then what is replaced, then
    /// what is removed, each in order of key.
    pub(crate) steps: Vec<Step>,
    /// How many are inserted.
    pub(super) inserted: usize,
    /// For each that is replaced, who wrote what is there.
    pub(super) writers: Vec<Xid>,
    /// What must not be there: checks of jobs, by their numbers.
    absent: Vec<(usize, usize)>,
    /// The earliest that it can be: rows that are removed must live at this instant at least.
    pub(super) earliest_ms: i64,
    /// The latest that it could be when this was planned. The lives given here count from it.
    pub(super) latest_ms: i64,
    pub(crate) head: Head,
}

/// What becomes of a row, in the order in which the statement does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// There is none, and it comes.
    Insert,
    /// It is the one that we wrote, and is replaced.
    Replace,
    /// It is the one we wrote, was not outlived by its time, and goes.
    Remove,
}

impl Plan {
    /// Whether rows are replaced and nothing else is to be seen to.
    pub(super) fn replaces_only(&self) -> bool {
        self.absent.is_empty() && self.writers.len() == self.steps.len()
    }

    /// What must not be there.
    pub(super) fn absent<'a>(&self, jobs: &'a [Job]) -> impl Iterator<Item = &'a Key> {
        self.absent.iter().filter_map(|(job, check)| match &jobs.get(*job)?.request {
            Work::Commit(commit) => commit.checks.get(*check).map(|check| &check.key),
            _ => None,
        })
    }

    /// Whether this is about what another plan writes, so that one has to wait for the other.
    pub(crate) fn meets(&self, jobs: &[Job], other: &Self) -> bool {
        let written = self.steps.iter().filter_map(key_of);
        written.chain(self.absent(jobs)).any(|key| other.writes(key))
    }

    fn writes(&self, key: &Key) -> bool {
        let replaced = self.inserted + self.writers.len();
        let (inserts, rest) = self.steps.split_at(self.inserted);
        let (replaces, removes) = rest.split_at(replaced - self.inserted);
        [inserts, replaces, removes]
            .iter()
            .any(|steps| steps.binary_search_by(|step| key_of(step).cmp(&Some(key))).is_ok())
    }
}

fn key_of(step: &Step) -> Option<&Key> {
    step.changes.first().map(|change| {
        let (Change::Put { row, .. } | Change::Remove { row, .. }) = change;
        &row.object.key
    })
}

/// A commit of one write, which may demand that other objects are not there.
struct Simple<'a> {
    /// Its place among the jobs.
    at: usize,
    commit: &'a Commit,
    write: &'a Write,
}

/// Decides a group, if what is known and was seen suffices. The store's time lies within `between`.
pub(super) fn plan(
    jobs: &[Job],
    known: &Known,
    seen: &Seen,
    left: Left,
    between: (i64, i64),
) -> Result<Plan, Lack> {
    let simple = jobs.iter().enumerate().map(|(at, job)| simple(at, &job.request));
    let mut commits = simple.collect::<Option<Vec<_>>>().ok_or(Lack::All)?;
    commits.sort_unstable_by_key(|simple| simple.write.key());
    if commits.windows(2).any(|pair| pair[0].write.key() == pair[1].write.key()) {
        return Err(Lack::All);
    }
    let absent = absent(&commits, known).ok_or(Lack::All)?;
    let fated = fates(commits, known, seen)?;
    if trades_a_name(&fated) {
        return Err(Lack::All);
    }
    assemble(jobs.len(), fated, absent, left, between).ok_or(Lack::All)
}

/// The row that a write finds, and who wrote it.
type Found<'a> = Option<&'a (Row, Xid)>;

/// A commit, what becomes of its row, and the row.
type Fated<'a> = (Fate, Found<'a>, Simple<'a>);

/// What becomes of each row. They all wait at the same time, so any order will do; of each fate rows
/// stay in order of key, which is the one in which they are locked.
fn fates<'a>(
    commits: Vec<Simple<'a>>,
    known: &'a Known,
    seen: &'a Seen,
) -> Result<Vec<Fated<'a>>, Lack> {
    let (mut fated, mut unknown) = (Vec::with_capacity(commits.len()), Vec::new());
    for simple in commits {
        match fate(simple.write, known, seen) {
            Ok((fate, row)) => fated.push((fate, row, simple)),
            Err(Lack::Rows(rows)) => unknown.extend(rows),
            Err(Lack::All) => return Err(Lack::All),
        }
    }
    if !unknown.is_empty() {
        return Err(Lack::Rows(unknown));
    }
    fated.sort_by_key(|(fate, ..)| *fate);
    Ok(fated)
}

/// Whether one comes with a name that another one, which goes, still has: those that come are first.
fn trades_a_name(fated: &[Fated<'_>]) -> bool {
    let of = |wanted: Fate| fated.iter().filter(move |(fate, ..)| *fate == wanted);
    let gone: Vec<&Object> = of(Fate::Remove)
        .filter_map(|(_, row, _)| row.map(|(row, _)| &*row.object))
        .filter(|object| object.name.is_some())
        .collect();
    let takes_theirs = |write: &Write| match write {
        Write::Put(put) => {
            gone.iter().any(|object| object.name == put.name && object.key.kind == put.key.kind)
        }
        Write::Delete(_) => false,
    };
    !gone.is_empty() && of(Fate::Insert).any(|(_, _, simple)| takes_theirs(simple.write))
}

fn assemble(
    jobs: usize,
    fated: Vec<Fated<'_>>,
    absent: Vec<(usize, usize)>,
    left: Left,
    between: (i64, i64),
) -> Option<Plan> {
    let earliest = between.0.max(left.head.clock_last_ms);
    // A life counts from the latest that it can be by now, so it is never cut short. If the server
    // knows that it is less, it lets the life begin and end as much sooner.
    let latest = between.1.max(earliest);
    let now = Now { store_ms: latest, wall_ms: earliest - left.head.clock_offset_ms };
    let mut revision = unsigned(left.head.revision);
    let mut next_expiry_ms = left.head.next_expiry_ms;
    let (mut steps, mut writers, mut inserted) = (Vec::with_capacity(jobs), Vec::new(), 0);
    let mut answers: Vec<_> = (0..jobs).map(|_| None).collect();
    for (fate, row, Simple { at, commit, .. }) in fated {
        let mut view = Only(row.map(|(row, _)| row));
        let Decision { committed, steps: one, .. } =
            decide(&mut view, commit, now, revision).ok()?;
        revision = committed.revision?;
        let [step] = <[Step; 1]>::try_from(one).ok()?;
        if let Some(Change::Put { row: Row { expires_at_ms: Some(at), .. }, .. }) =
            step.changes.first()
        {
            next_expiry_ms = lowered(next_expiry_ms.min(at - (latest - earliest)));
        }
        steps.push(step);
        inserted += usize::from(fate == Fate::Insert);
        writers.extend(row.filter(|_| fate == Fate::Replace).map(|(_, by)| *by));
        answers[at] = Some(Ok(committed));
    }
    let answers = answers.into_iter().collect::<Option<Vec<_>>>()?;
    let head =
        Head { revision: signed(revision), clock_last_ms: earliest, next_expiry_ms, ..left.head };
    Some(Plan {
        answers,
        steps,
        inserted,
        writers,
        absent,
        earliest_ms: earliest,
        latest_ms: latest,
        head,
    })
}

/// What becomes of the row of a write, and the row.
fn fate<'a>(write: &Write, known: &'a Known, seen: &'a Seen) -> Result<(Fate, Found<'a>), Lack> {
    let key = write.key();
    let found = known.row(key).map(Some).or_else(|| seen.get(key).map(Option::as_ref));
    match (found, write) {
        (None | Some(None), Write::Put(put)) if put.expect == Expect::Absent => {
            Ok((Fate::Insert, None))
        }
        (Some(None), Write::Put(put)) if put.expect == Expect::Any => Ok((Fate::Insert, None)),
        (Some(Some(found)), Write::Put(put)) if is_replaced(put, &found.0) => {
            Ok((Fate::Replace, Some(found)))
        }
        (Some(Some(found)), Write::Delete(_)) => Ok((Fate::Remove, Some(found))),
        // Whatever is there, a put with a life is for the long way.
        (None, Write::Put(put)) if put.ttl.is_some() => Err(Lack::All),
        (None, _) => Err(Lack::Rows(vec![key.clone()])),
        (Some(_), _) => Err(Lack::All),
    }
}

/// A put that leaves the name as it is, of an object that neither has a time to live nor gets one.
fn is_replaced(put: &Put, row: &Row) -> bool {
    put.ttl.is_none() && row.expires_at_ms.is_none() && row.object.name == put.name
}

fn simple(at: usize, work: &Work) -> Option<Simple<'_>> {
    let Work::Commit(commit) = work else { return None };
    // Named in full: whatever a commit may hold one day, it is not simple until somebody says so here.
    let Commit { checks, writes, attachments } = commit;
    let only_absent = checks.iter().all(|check| check.expect == Expect::Absent);
    match (&writes[..], &attachments[..]) {
        ([write], []) if only_absent => Some(Simple { at, commit, write }),
        _ => None,
    }
}

/// What the group demands not to be there; `None` if it is known to be, or about to.
fn absent(commits: &[Simple<'_>], known: &Known) -> Option<Vec<(usize, usize)>> {
    let is_written =
        |key: &Key| commits.binary_search_by(|simple| simple.write.key().cmp(key)).is_ok();
    let mut absent = Vec::new();
    for Simple { at, commit, .. } in commits {
        for (number, check) in commit.checks.iter().enumerate() {
            if known.row(&check.key).is_some() || is_written(&check.key) {
                return None;
            }
            absent.push((*at, number));
        }
    }
    Some(absent)
}

/// All that a simple commit needs to see: the row it writes, which has the name that is asked for.
/// Should another object have that name, the server refuses.
struct Only<'a>(Option<&'a Row>);

impl View for Only<'_> {
    fn row(&mut self, key: &Key) -> StoreResult<Option<Row>> {
        Ok(self.0.filter(|row| row.object.key == *key).cloned())
    }

    fn named(&mut self, _: &str, _: &str) -> StoreResult<Option<Row>> {
        Ok(self.0.cloned())
    }
}
