//! From a decision to an etcd transaction.
//!
//! Its conditions are the revisions of everything the decision was based on, its writes are what the
//! decision changes, and if a condition fails it reads everything again, so that a commit that was
//! based on something else learns what is there without another round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tenure::backend::decide::{Change, Decision};
use tenure::store::{Commit, Committed, Expect, WriteResult, Written};
use tenure::{Key, Object, Result};

use crate::endpoints::Budget;
use crate::envelope::{self, Known};
use crate::leases::{Spare, grace};
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::wire::{
    CREATE, Compare, DeleteRangeRequest, EQUAL, GREATER, MOD, Operation, PutRequest, RequestOp,
    Target, TxnRequest,
};

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
    puts: Vec<Known>,
    /// Objects that are gone, and those that moved to another lease, as they were.
    removed: Vec<Key>,
    freed: Vec<Arc<Known>>,
}

impl Plan {
    /// Makes the transaction. Takes spare leases as needed.
    pub(crate) async fn make(
        shared: &Shared,
        commit: &Commit,
        snapshot: &Snapshot,
        decision: &Decision,
        leases: Taking,
    ) -> Result<Self> {
        let mut this = Self::default();
        let taken = spares(shared, snapshot, decision, leases).await?;
        this.spares = taken.iter().copied().flatten().collect();
        let mut names: BTreeMap<(String, String), Option<(String, i64)>> = BTreeMap::new();
        for (change, spare) in changes(decision).zip(taken) {
            match change {
                Change::Put { row, .. } => {
                    let before = snapshot.object(&row.object.key);
                    let put = this.put(shared, &row.object, before, spare, leases.now);
                    claim_names(&mut names, &put, before);
                    this.puts.push(put);
                }
                Change::Remove { row, .. } => {
                    let key = &row.object.key;
                    this.success(delete(shared.keys.object(key)));
                    if let Some(name) = &row.object.name {
                        names.entry((key.kind.clone(), name.clone())).or_insert(None);
                    }
                    this.freed.extend(snapshot.object(key).cloned());
                    this.removed.push(key.clone());
                }
            }
        }
        for ((kind, name), owner) in names {
            let key = shared.keys.name(&kind, &name);
            this.success(match owner {
                Some((id, lease)) => put(key, id.into_bytes(), lease),
                None => delete(key),
            });
        }
        for (key, _) in &decision.refreshed {
            this.renewed.extend(snapshot.object(key).map(|known| known.lease).filter(|l| *l != 0));
        }
        this.txn.compare = conditions(shared, commit, snapshot);
        this.txn.failure = Snapshot::questions(commit, &shared.keys, false);
        Ok(this)
    }

    fn put(
        &mut self,
        shared: &Shared,
        object: &Arc<Object>,
        before: Option<&Arc<Known>>,
        spare: Option<Spare>,
        now: Duration,
    ) -> Known {
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
        let value = envelope::write(object, OWN, skipped);
        self.success(put(shared.keys.object(&object.key), value, lease));
        let object = Arc::clone(object);
        Known { object, modified: 0, lease, life, skipped, since }
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
    pub(crate) fn applied(self, shared: &Shared, revision: i64) {
        for mut known in self.puts {
            let object = Arc::make_mut(&mut known.object);
            settle(object, envelope::number(revision));
            known.modified = revision;
            shared.cache.put(&Arc::new(known));
        }
        for key in &self.removed {
            shared.cache.forget(key);
        }
        for known in &self.freed {
            shared.leases.freed(known);
        }
    }
}

/// How spare leases are taken.
#[derive(Clone, Copy)]
pub(crate) struct Taking {
    pub(crate) fresh: bool,
    pub(crate) budget: Budget,
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
fn kept<'a>(object: &Object, before: Option<&'a Arc<Known>>) -> Option<&'a Arc<Known>> {
    let life = life(object);
    before.filter(|before| life > 0 && before.life == life && before.lease != 0)
}

/// For every change, the lease it needs if it needs one. What is not at hand is granted together, so
/// that a commit of many objects waits for it once.
async fn spares(
    shared: &Shared,
    snapshot: &Snapshot,
    decision: &Decision,
    leases: Taking,
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
            life => shared.leases.at_hand(life, leases.fresh),
        };
        if life > 0 && spare.is_none() {
            missing.push((taken.len(), life));
        }
        taken.push(spare);
    }
    if !missing.is_empty() {
        Box::pin(grant(shared, &missing, &mut taken, leases.budget)).await?;
    }
    Ok(taken)
}

/// Has the leases granted that are not at hand, each for its place.
async fn grant(
    shared: &Shared,
    missing: &[(usize, u64)],
    taken: &mut [Option<Spare>],
    budget: Budget,
) -> Result<()> {
    let granting = missing.iter().map(|(_, life)| shared.leases.grant(*life, budget));
    let mut failed = Ok(());
    for ((place, _), granted) in missing.iter().zip(join_all(granting).await) {
        match granted {
            Ok(spare) => taken[*place] = Some(spare),
            Err(error) => failed = Err(error),
        }
    }
    if failed.is_err() {
        for spare in taken.iter().copied().flatten() {
            shared.leases.give(spare);
        }
    }
    failed
}

/// Notes what happens to the names of one object. A name that one object gives up and another takes
/// is written once.
fn claim_names(
    names: &mut BTreeMap<(String, String), Option<(String, i64)>>,
    put: &Known,
    before: Option<&Arc<Known>>,
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
fn conditions(shared: &Shared, commit: &Commit, snapshot: &Snapshot) -> Vec<Compare> {
    let level = shared.writer.load(std::sync::atomic::Ordering::Acquire);
    let mut conditions = vec![unchanged(shared.keys.writer(), level)];
    let mut exact: Vec<&Key> = Vec::with_capacity(commit.writes.len() + commit.checks.len());
    for write in &commit.writes {
        exact.push(write.key());
        if let tenure::store::Write::Put(tenure::store::Put { key, name: Some(name), .. }) = write {
            let before = snapshot.object(key);
            if before.is_none_or(|before| before.object.name.as_ref() != Some(name)) {
                let modified = snapshot.name_modified(&key.kind, name);
                conditions.push(unchanged(shared.keys.name(&key.kind, name), modified));
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
                key: shared.keys.object(&check.key),
                value: Some(Target::Create(0)),
            }),
            _ if exact.contains(&&check.key) => {}
            _ => exact.push(&check.key),
        }
    }
    conditions.extend(
        exact.into_iter().map(|key| unchanged(shared.keys.object(key), snapshot.modified(key))),
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
    let revision = envelope::number(revision);
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
