//! From a decision to an etcd transaction.
//!
//! Its conditions are the revisions of everything the decision was based on, its writes are what the
//! decision changes, and if a condition fails it reads everything again, so that a commit that was
//! based on something else learns what is there without another round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::decide::{Change, Decision};
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
        let mut names: BTreeMap<(String, String), Option<(String, i64)>> = BTreeMap::new();
        for change in decision.steps.iter().flat_map(|step| &step.changes) {
            match change {
                Change::Put { row, .. } => {
                    let before = snapshot.object(&row.object.key);
                    let put = this.put(shared, &row.object, before, leases).await?;
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

    async fn put(
        &mut self,
        shared: &Shared,
        object: &Arc<Object>,
        before: Option<&Arc<Known>>,
        leases: Taking,
    ) -> Result<Known> {
        let life = object.ttl.map_or(0, |ttl| ttl.as_secs());
        let kept = before.filter(|before| life > 0 && before.life == life && before.lease != 0);
        let (lease, mut since) = match kept {
            Some(before) => (before.lease, before.since),
            None if life == 0 => (0, None),
            None => {
                let spare = match shared.leases.at_hand(life, leases.fresh) {
                    Some(spare) => spare,
                    None => Box::pin(shared.leases.grant(life, leases.budget)).await?,
                };
                self.spares.push(spare);
                (spare.id, Some(spare.certain))
            }
        };
        let whole = Duration::from_secs(grace(life));
        if lease != 0 && since.is_none_or(|since| leases.now.saturating_sub(since) >= whole) {
            self.renewed.push(lease);
            since = Some(leases.now);
        }
        if kept.is_none() {
            self.freed.extend(before.filter(|before| before.lease != 0).cloned());
        }
        let skipped = before.map_or(0, |before| before.skipped);
        let value = envelope::write(object, OWN, skipped);
        self.success(put(shared.keys.object(&object.key), value, lease));
        let object = Arc::clone(object);
        Ok(Known { object, modified: 0, lease, life, skipped, since })
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
