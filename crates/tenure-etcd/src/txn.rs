//! From a decision to an etcd transaction.
//!
//! The transaction compares the revisions of everything that the decision was based on, and writes what
//! the decision changes. If a comparison fails, it reads everything instead, so that the next decision
//! needs no round trip of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tenure::backend::decide::{Change, Decision};
use tenure::store::{Commit, Committed, Expect, WriteResult, Written};
use tenure::{Key, Object, Result};

use crate::endpoints::Deadline;
use crate::inner::Inner;
use crate::lease_pool::{Spare, grace};
use crate::messages::{
    CREATE, Compare, DeleteRangeRequest, EQUAL, GREATER, MOD, Operation, PutRequest, RequestOp,
    Target, TxnRequest,
};
use crate::snapshot::Snapshot;
use crate::stored::{self, Stored};

/// Stands for the revision that a commit is about to get, which only etcd knows.
pub(crate) const HEAD: u64 = u64::MAX - 8;
const OWN: u64 = HEAD + 1;

/// A transaction, and what follows from it.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) txn: TxnRequest,
    /// Spare leases it uses.
    pub(crate) spares: Vec<Spare>,
    /// Leases that must be kept alive for it, spares included. One that has a full life to give is not
    /// among them.
    pub(crate) renewed: Vec<i64>,
    /// Objects as they are if it succeeds.
    puts: Vec<Stored>,
    /// Objects that are gone, and those that moved to another lease, as they were.
    removed: Vec<Key>,
    freed: Vec<Arc<Stored>>,
}

impl Plan {
    /// Makes the transaction. Takes spare leases as needed.
    pub(crate) async fn make(
        inner: &Inner,
        commit: &Commit,
        snapshot: &Snapshot,
        decision: &Decision,
        leases: SpareChoice,
    ) -> Result<Self> {
        let mut this = Self::default();
        let taken = spares(inner, snapshot, decision, leases).await?;
        this.spares = taken.iter().copied().flatten().collect();
        let mut names: BTreeMap<(String, String), Option<(String, i64)>> = BTreeMap::new();
        for (change, spare) in changes(decision).zip(taken) {
            match change {
                Change::Put { row, .. } => {
                    let before = snapshot.object(&row.object.key);
                    let put = this.put(inner, &row.object, before, spare, leases.now);
                    claim_names(&mut names, &put, before);
                    this.puts.push(put);
                }
                Change::Remove { row, .. } => {
                    let key = &row.object.key;
                    this.success(delete(inner.keys.object(key)));
                    if let Some(name) = &row.object.name {
                        names.entry((key.kind.clone(), name.clone())).or_insert(None);
                    }
                    this.freed.extend(snapshot.object(key).cloned());
                    this.removed.push(key.clone());
                }
            }
        }
        for ((kind, name), owner) in names {
            let key = inner.keys.name(&kind, &name);
            this.success(match owner {
                Some((id, lease)) => put(key, id.into_bytes(), lease),
                None => delete(key),
            });
        }
        for (key, _) in &decision.refreshed {
            this.renewed
                .extend(snapshot.object(key).map(|stored| stored.lease).filter(|l| *l != 0));
        }
        this.txn.compare = conditions(inner, commit, snapshot);
        this.txn.failure = Snapshot::questions(commit, &inner.keys, false);
        Ok(this)
    }

    fn put(
        &mut self,
        inner: &Inner,
        object: &Arc<Object>,
        before: Option<&Arc<Stored>>,
        spare: Option<Spare>,
        now: Duration,
    ) -> Stored {
        let life = life(object);
        let kept = kept(object, before);
        let (lease, mut since) = match (kept, spare) {
            (Some(before), _) => (before.lease, before.since),
            (None, Some(spare)) => (spare.id, Some(spare.certain)),
            (None, None) => (0, None),
        };
        let whole = Duration::from_secs(grace(life));
        if lease != 0 && since.is_none_or(|since| now.saturating_sub(since) >= whole) {
            self.renewed.push(lease);
            since = Some(now);
        }
        if kept.is_none() {
            self.freed.extend(before.filter(|before| before.lease != 0).cloned());
        }
        let skipped = before.map_or(0, |before| before.skipped);
        let value = stored::write(object, OWN, skipped);
        self.success(put(inner.keys.object(&object.key), value, lease));
        let object = Arc::clone(object);
        Stored { object, modified: 0, lease, life, skipped, since }
    }

    fn success(&mut self, operation: RequestOp) {
        self.txn.success.push(operation);
    }

    /// Whether it changes anything in etcd.
    pub(crate) fn writes(&self) -> bool {
        !self.txn.success.is_empty()
    }

    /// It was applied, at this revision: remembers what is there now, and keeps the leases that
    /// carry nothing any more.
    pub(crate) fn applied(self, inner: &Inner, revision: i64) {
        for mut stored in self.puts {
            let object = Arc::make_mut(&mut stored.object);
            settle(object, stored::number(revision));
            stored.modified = revision;
            inner.cache.put(&Arc::new(stored));
        }
        for key in &self.removed {
            inner.cache.forget(key);
        }
        for stored in &self.freed {
            inner.leases.reclaim(stored);
        }
    }
}

/// How spare leases are taken.
#[derive(Clone, Copy)]
pub(crate) struct SpareChoice {
    pub(crate) fresh: bool,
    pub(crate) deadline: Deadline,
    /// When this attempt began: lives count from here.
    pub(crate) now: Duration,
}

fn changes(decision: &Decision) -> impl Iterator<Item = &Change> {
    decision.steps.iter().flat_map(|step| &step.changes)
}

/// The life of an object in seconds; 0 if it has none.
fn life(object: &Object) -> u64 {
    object.ttl.map_or(0, |ttl| ttl.as_secs())
}

/// What was there before, if its lease serves on.
fn kept<'a>(object: &Object, before: Option<&'a Arc<Stored>>) -> Option<&'a Arc<Stored>> {
    let life = life(object);
    before.filter(|before| life > 0 && before.life == life && before.lease != 0)
}

/// For every change, the lease it needs if it needs one. What is not at hand is granted together, so
/// that a commit of many objects waits for it once.
async fn spares(
    inner: &Inner,
    snapshot: &Snapshot,
    decision: &Decision,
    leases: SpareChoice,
) -> Result<Vec<Option<Spare>>> {
    let mut missing = Vec::new();
    let mut taken = Vec::new();
    for change in changes(decision) {
        let life = match change {
            Change::Put { row, .. } => {
                let before = snapshot.object(&row.object.key);
                kept(&row.object, before).map_or_else(|| life(&row.object), |_| 0)
            }
            Change::Remove { .. } => 0,
        };
        let spare = match life {
            0 => None,
            life => inner.leases.take(life, leases.fresh),
        };
        if life > 0 && spare.is_none() {
            missing.push((taken.len(), life));
        }
        taken.push(spare);
    }
    if !missing.is_empty() {
        Box::pin(grant(inner, &missing, &mut taken, leases.deadline)).await?;
    }
    Ok(taken)
}

/// Has the leases granted that are not at hand, each for its place.
async fn grant(
    inner: &Inner,
    missing: &[(usize, u64)],
    taken: &mut [Option<Spare>],
    deadline: Deadline,
) -> Result<()> {
    let granting = missing.iter().map(|(_, life)| inner.leases.grant(*life, deadline));
    let mut failed = Ok(());
    for ((place, _), granted) in missing.iter().zip(join_all(granting).await) {
        match granted {
            Ok(spare) => taken[*place] = Some(spare),
            Err(error) => failed = Err(error),
        }
    }
    if failed.is_err() {
        for spare in taken.iter().copied().flatten() {
            inner.leases.put_back(spare);
        }
    }
    failed
}

/// Notes what happens to the names of one object. A name that one object gives up and another takes
/// is written once.
fn claim_names(
    names: &mut BTreeMap<(String, String), Option<(String, i64)>>,
    put: &Stored,
    before: Option<&Arc<Stored>>,
) {
    let Key { kind, id } = &put.object.key;
    let old = before.and_then(|before| before.object.name.as_ref());
    if let Some(name) = &put.object.name {
        let same = old == Some(name) && before.is_some_and(|before| before.lease == put.lease);
        if !same {
            names.insert((kind.clone(), name.clone()), Some((id.clone(), put.lease)));
        }
    }
    if let Some(old) = old.filter(|old| put.object.name.as_ref() != Some(old)) {
        names.entry((kind.clone(), old.clone())).or_insert(None);
    }
}

/// Everything the decision rests on, as it must still be.
fn conditions(inner: &Inner, commit: &Commit, snapshot: &Snapshot) -> Vec<Compare> {
    let level = inner.writer.load(std::sync::atomic::Ordering::Acquire);
    let mut conditions = vec![unchanged(inner.keys.writer(), level)];
    let mut exact: Vec<&Key> = Vec::with_capacity(commit.writes.len() + commit.checks.len());
    for write in &commit.writes {
        exact.push(write.key());
        if let tenure::store::Write::Put(tenure::store::Put { key, name: Some(name), .. }) = write {
            let before = snapshot.object(key);
            if before.is_none_or(|before| before.object.name.as_ref() != Some(name)) {
                let modified = snapshot.name_modified(&key.kind, name);
                conditions.push(unchanged(inner.keys.name(&key.kind, name), modified));
            }
        }
    }
    for check in &commit.checks {
        match check.expect {
            Expect::Any => {}
            // It may change as it likes, as long as it is there.
            Expect::Exists => conditions.push(Compare {
                result: GREATER,
                target: CREATE,
                key: inner.keys.object(&check.key),
                value: Some(Target::Create(0)),
            }),
            _ if exact.contains(&&check.key) => {}
            _ => exact.push(&check.key),
        }
    }
    conditions.extend(
        exact.into_iter().map(|key| unchanged(inner.keys.object(key), snapshot.modified(key))),
    );
    conditions
}

/// The key still has this revision; 0 if it is not there.
pub(crate) fn unchanged(key: Vec<u8>, modified: i64) -> Compare {
    Compare { result: EQUAL, target: MOD, key, value: Some(Target::Mod(modified)) }
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    RequestOp { request: Some(Operation::Put(PutRequest { key, value, lease })) }
}

fn delete(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Operation::Delete(DeleteRangeRequest { key })) }
}

/// Puts the revision in the place of its stand-in.
fn settle(object: &mut Object, revision: u64) {
    for number in [&mut object.revision, &mut object.created_revision, &mut object.token] {
        settle_number(number, revision);
    }
}

fn settle_number(number: &mut u64, revision: u64) {
    if *number == OWN {
        *number = revision;
    }
}

/// The answer to a commit, with the revision that etcd gave it.
pub(crate) fn settled(mut committed: Committed, revision: i64) -> Committed {
    let revision = stored::number(revision);
    committed.revision = committed.revision.map(|_| revision);
    for written in &mut committed.writes {
        match written {
            Written::Put(result) | Written::Unchanged(result) => {
                let WriteResult { revision: own, created_revision, token, .. } = result;
                for number in [own, created_revision, token] {
                    settle_number(number, revision);
                }
            }
            Written::Deleted { revision: own } => settle_number(own, revision),
            Written::Absent => {}
        }
    }
    committed
}
