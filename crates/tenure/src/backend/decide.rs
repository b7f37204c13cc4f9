//! The decision at the heart of every backend that evaluates commits itself: given what is stored
//! and the time, does this commit apply, and what exactly changes?
//!
//! It is a pure function, so memory, file, SQLite and Postgres cannot disagree: each brings a
//! [`View`] of its rows, calls [`decide`] inside whatever makes it atomic, and applies the
//! [`Step`]s it gets back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::store::{
    Batch, Cause, Commit, Committed, Event, Expect, Put, Touch, Touched, Write, WriteResult,
    Written,
};
use crate::{Current, Error, Key, Object, Result};

/// The instant at which a decision is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The store's clock in milliseconds: judges expiry.
    pub store_ms: i64,
    /// A wall-clock label in milliseconds since 1970: judges nothing.
    pub wall_ms: i64,
}

/// An object as it is kept: with the instant of its expiry on the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Everything but the remaining life.
    pub object: Arc<Object>,
    /// When it counts as absent.
    pub expires_at_ms: Option<i64>,
}

impl Row {
    /// Whether the object is there at this instant.
    pub fn is_live(&self, store_ms: i64) -> bool {
        self.expires_at_ms.is_none_or(|at| store_ms < at)
    }

    /// What a reader sees at this instant.
    pub fn read(&self, store_ms: i64) -> Option<Object> {
        if !self.is_live(store_ms) {
            return None;
        }
        let mut object = Object::clone(&self.object);
        object.expires_in = self.expires_at_ms.map(|at| millis(at - store_ms - PART_MS));
        Some(object)
    }

    fn current(&self) -> Current {
        self.object.current()
    }

    fn result(&self) -> WriteResult {
        WriteResult::from(&*self.object)
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// The store's clock is read in whole milliseconds, so up to one of the present has passed already.
/// It is added to every life and told to nobody: a life is never cut short, and what is said to be
/// left of it is never too much.
const PART_MS: i64 = 1;

/// The end of a life that starts now. Lives are rounded up to whole milliseconds.
pub fn expiry(now_ms: i64, ttl: Duration) -> i64 {
    let ms = ttl.as_nanos().div_ceil(1_000_000);
    now_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)).saturating_add(PART_MS)
}

/// Rows as they are at the instant of the decision, expired ones included.
pub trait View {
    /// The row with this key.
    fn row(&mut self, key: &Key) -> Result<Option<Row>>;
    /// The row of this kind with this name.
    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>>;
}

/// One change to one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write this row. `before` is the live row it replaces.
    Put {
        /// The new row.
        row: Row,
        /// The row it replaces.
        before: Option<Row>,
    },
    /// Remove this row.
    Remove {
        /// The row as it was.
        row: Row,
        /// Why it goes.
        cause: Cause,
    },
}

/// Which removed objects watchers are told as they were: those whose payloads fit in here together. Of
/// what a commit removes beyond they hear the keys alone, so that what one commit has to tell is bounded.
#[derive(Debug)]
pub struct LastWords {
    left: usize,
}

impl Default for LastWords {
    fn default() -> Self {
        Self { left: 4 * 1024 * 1024 }
    }
}

impl LastWords {
    /// Whether this one is told as it was. To be asked once for each in turn.
    pub fn fits(&mut self, removed: &Object) -> bool {
        let left = self.left.checked_sub(removed.payload.len());
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// Changes that share one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The revision they share.
    pub revision: u64,
    /// In order.
    pub changes: Vec<Change>,
}

impl Step {
    /// What watchers are told of it.
    pub fn batch(&self) -> Arc<Batch> {
        let mut last_words = LastWords::default();
        let events = self.changes.iter().map(|change| match change {
            Change::Put { row, .. } => Event::Put(Arc::clone(&row.object)),
            Change::Remove { row, cause } => Event::Delete {
                key: row.object.key.clone(),
                cause: *cause,
                last: last_words.fits(&row.object).then(|| Arc::clone(&row.object)),
            },
        });
        Arc::new(Batch { revision: self.revision, events: events.collect() })
    }
}

/// A commit that applies, and what it takes to apply it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The caller's answer.
    pub committed: Committed,
    /// At most two: expired rows that stand in the way are removed first, under a revision of their
    /// own, so that a watcher sees an object end before it sees it begin again.
    pub steps: Vec<Step>,
    /// Objects whose life starts anew though nothing else about them changes.
    pub refreshed: Vec<(Key, i64)>,
}

/// Decides one commit. `head` is the last revision drawn; steps draw `head + 1`, `head + 2`, ….
///
/// An error that [`Error::is_refusal`] is the commit's answer; any other came from the view.
pub fn decide(view: &mut dyn View, commit: &Commit, now: Now, head: u64) -> Result<Decision> {
    let (before, expired) = look(view, commit, now)?;
    Ok(assemble(commit.writes.clone(), before, expired, now, head))
}

/// The same for a caller that gives the commit away: what it writes is not copied.
pub fn decide_once(view: &mut dyn View, commit: Commit, now: Now, head: u64) -> Result<Decision> {
    let (before, expired) = look(view, &commit, now)?;
    Ok(assemble(commit.writes, before, expired, now, head))
}

/// The live rows that a commit writes, and the expired ones in its way, if all it expects holds.
fn look(view: &mut dyn View, commit: &Commit, now: Now) -> Result<(Vec<Option<Row>>, Expired)> {
    for check in &commit.checks {
        let row = live(view.row(&check.key)?, now);
        meets(&check.key, check.expect, row.as_ref())?;
    }
    let mut before = Vec::with_capacity(commit.writes.len());
    let mut expired = Expired::default();
    for write in &commit.writes {
        let row = expired.sift(view.row(write.key())?, now);
        meets(write.key(), write.expect(), row.as_ref())?;
        before.push(row);
    }
    check_names(view, commit, now, &mut expired)?;
    Ok((before, expired))
}

fn live(row: Option<Row>, now: Now) -> Option<Row> {
    row.filter(|row| row.is_live(now.store_ms))
}

/// Expired rows in the way of a commit, each once, in a stable order.
#[derive(Default)]
struct Expired(BTreeMap<Key, Row>);

impl Expired {
    /// Passes a live row through and keeps an expired one for removal.
    fn sift(&mut self, row: Option<Row>, now: Now) -> Option<Row> {
        let row = row?;
        if row.is_live(now.store_ms) {
            return Some(row);
        }
        self.0.insert(row.object.key.clone(), row);
        None
    }
}

/// Whether an object is as expected, else what to tell the caller.
fn meets(key: &Key, expect: Expect, row: Option<&Row>) -> Result<()> {
    let conflict = |row: &Row| {
        Err(Error::Conflict { key: key.clone(), expected: expect, current: row.current() })
    };
    match (expect, row) {
        (Expect::Any, _) | (Expect::Absent, None) | (Expect::Exists, Some(_)) => Ok(()),
        (Expect::Absent, Some(row)) => {
            Err(Error::AlreadyExists { key: key.clone(), current: row.current() })
        }
        (Expect::Token(token), row) => match row.map(|row| row.object.token) {
            Some(current) if current == token => Ok(()),
            current => Err(Error::Lost { key: key.clone(), token, current }),
        },
        (_, None) => Err(Error::NotFound { key: key.clone() }),
        (Expect::Version(v), Some(row)) if row.object.version != v => conflict(row),
        (Expect::Revision(r), Some(row)) if row.object.revision != r => conflict(row),
        (Expect::Version(_) | Expect::Revision(_), Some(_)) => Ok(()),
    }
}

/// Names must be unique in the state after the commit, so objects may trade names within one.
fn check_names(
    view: &mut dyn View,
    commit: &Commit,
    now: Now,
    expired: &mut Expired,
) -> Result<()> {
    let mut claimed: HashMap<(&str, &str), &Key> = HashMap::new();
    for write in &commit.writes {
        let Write::Put(Put { key, name: Some(name), .. }) = write else { continue };
        let taken = |id: &str| Error::NameTaken {
            kind: key.kind.clone(),
            name: name.clone(),
            id: id.to_owned(),
        };
        if let Some(other) = claimed.insert((&key.kind, name), key) {
            return Err(taken(&other.id));
        }
        let Some(owner) = expired.sift(view.named(&key.kind, name)?, now) else { continue };
        let owner = &owner.object.key;
        // An owner that this commit also writes either gives the name up or claims it again, and
        // then the map above has caught it.
        if owner != key && !commit.writes.iter().any(|write| write.key() == owner) {
            return Err(taken(&owner.id));
        }
    }
    Ok(())
}

fn assemble(
    wanted: Vec<Write>,
    before: Vec<Option<Row>>,
    expired: Expired,
    now: Now,
    head: u64,
) -> Decision {
    let mut steps = Vec::new();
    let mut refreshed = Vec::new();
    // Rows that expired stand in the way only of a commit that changes something.
    let removals: Vec<Change> =
        expired.0.into_values().map(|row| Change::Remove { row, cause: Cause::Expired }).collect();
    let writes_something =
        !removals.is_empty() && wanted.iter().zip(&before).any(|(w, row)| changes(w, row.as_ref()));
    if writes_something {
        steps.push(Step { revision: head + 1, changes: removals });
    }
    let revision = head + 1 + steps.len() as u64;
    let mut step = Step { revision, changes: Vec::new() };
    let mut writes = Vec::with_capacity(wanted.len());
    for (write, row) in wanted.into_iter().zip(before) {
        writes.push(match (write, row) {
            (Write::Delete(_), None) => Written::Absent,
            (Write::Delete(_), Some(row)) => {
                step.changes.push(Change::Remove { row, cause: Cause::Deleted });
                Written::Deleted { revision }
            }
            (Write::Put(put), Some(row)) if equals(&put, &row) => {
                refreshed.extend(put.ttl.map(|t| (put.key, expiry(now.store_ms, t))));
                Written::Unchanged(row.result())
            }
            (Write::Put(put), row) => {
                let new = replace(put, row.as_ref(), now, revision);
                let result = new.result();
                step.changes.push(Change::Put { row: new, before: row });
                Written::Put(result)
            }
        });
    }
    let changed = !step.changes.is_empty();
    if changed {
        steps.push(step);
    }
    Decision {
        committed: Committed { revision: changed.then_some(revision), writes },
        steps,
        refreshed,
    }
}

fn changes(write: &Write, row: Option<&Row>) -> bool {
    match (write, row) {
        (Write::Put(put), Some(row)) => !equals(put, row),
        (Write::Put(_), None) | (Write::Delete(_), Some(_)) => true,
        (Write::Delete(_), None) => false,
    }
}

fn equals(put: &Put, row: &Row) -> bool {
    let object = &row.object;
    !put.new_token
        && put.ttl == object.ttl
        && put.name == object.name
        && put.payload == object.payload
        && put.labels == object.labels
}

fn replace(put: Put, before: Option<&Row>, now: Now, revision: u64) -> Row {
    let before = before.map(|row| &row.object);
    let object = Object {
        key: put.key,
        name: put.name,
        labels: put.labels,
        payload: put.payload,
        version: before.map_or(1, |object| object.version + 1),
        revision,
        created_revision: before.map_or(revision, |object| object.created_revision),
        token: before.filter(|_| !put.new_token).map_or(revision, |object| object.token),
        created_at_ms: before.map_or(now.wall_ms, |object| object.created_at_ms),
        updated_at_ms: now.wall_ms,
        ttl: put.ttl,
        expires_in: None,
    };
    let expires_at_ms = put.ttl.map(|ttl| expiry(now.store_ms, ttl));
    Row { object: Arc::new(object), expires_at_ms }
}

/// Decides one touch: the new expiry, or why not.
pub fn decide_touch(touch: &Touch, row: Option<&Row>, now: Now) -> Result<(i64, Touched)> {
    let row = row
        .filter(|row| row.is_live(now.store_ms))
        .ok_or_else(|| Error::NotFound { key: touch.key.clone() })?;
    meets(&touch.key, Expect::Revision(touch.revision), Some(row))?;
    if row.expires_at_ms.is_none() {
        return Err(Error::invalid(
            format!("touch of {}", touch.key),
            "it has no time to live; give it one with a put",
        ));
    }
    let touched = Touched { revision: touch.revision, ttl: touch.ttl };
    Ok((expiry(now.store_ms, touch.ttl), touched))
}

/// The step that removes rows which expired, for a sweep. `None` if all of them are live.
pub fn decide_sweep(rows: Vec<Row>, now: Now, head: u64) -> Option<Step> {
    let changes: Vec<Change> = rows
        .into_iter()
        .filter(|row| !row.is_live(now.store_ms))
        .map(|row| Change::Remove { row, cause: Cause::Expired })
        .collect();
    (!changes.is_empty()).then_some(Step { revision: head + 1, changes })
}
