//! Slots: at most N holders of a group, where N can change while slots are held.
//!
//! A group is a namespace; its slots are the scopes `group/slot-0`, `group/slot-1`, … and each is a
//! lease like any other. How many there are is an object of its own, and taking a slot demands that
//! this object be unchanged, so a resize and an acquisition cannot pass each other unseen. Growing
//! takes effect at once. Shrinking evicts nobody: nothing is refilled until fewer are held than the
//! new count.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::flaws::{Flaw, planted};
use crate::lease::acquire;
use crate::lease::acquire::claim::{Claim, ConflictKind, Plan, PlanRequest};
use crate::lease::inner::Inner;
use crate::lease::queue::wait_queues::RESIZED;
use crate::lease::record::{LEASE, SLOTS, WAITER, decode, encode, tagged};
use crate::lease::{Coordinator, Lease, LeaseInfo, Namespace, Owner, Terms, WaiterInfo};
use crate::random::below;
use crate::store::{Capability, Commit, Expect, Put, Query};
use crate::{Error, Key, Object, Result};

/// The most slots of one group: they are listed whole with every acquisition.
pub const MAX_SLOTS: u32 = 1_000;
/// How long the note of a resize stays, for waiters to be told.
const NOTE: Duration = Duration::from_secs(60);

/// The payload of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupRecord {
    /// How many may hold a slot.
    count: u32,
    /// Rises with every acquisition while more are held than may be, so that they exclude each other.
    #[serde(default)]
    epoch: u64,
}

/// A slot that is held: a lease, and which one of its group.
#[derive(Debug)]
pub struct SlotLease {
    lease: Lease,
    index: u32,
}

impl SlotLease {
    /// Which slot of the group.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The lease on it, for those who want to keep that alone.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for SlotLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// A slot as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// Which slot of the group.
    pub index: u32,
    /// The lease on it.
    pub lease: LeaseInfo,
}

/// How many slots a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsSize {
    /// How many may hold a slot.
    pub count: u32,
    /// Changes whenever the group's record does.
    pub version: u64,
}

/// A group of slots.
#[derive(Clone)]
pub struct Slots {
    coordinator: Coordinator,
    group: Namespace,
    queue: Arc<str>,
}

impl Coordinator {
    /// The slots of a group.
    pub fn slots(&self, group: &Namespace) -> Slots {
        let queue = group.as_str().into();
        Slots { coordinator: self.clone(), group: group.clone(), queue }
    }

    /// Acquires one of `count` slots, or `None` if all are held when the wait is over. The count
    /// counts for a group that does not exist yet; later only [`Slots::resize`] changes it.
    pub async fn acquire_slot(
        &self,
        group: &Namespace,
        count: u32,
        terms: &Terms,
    ) -> Result<Option<SlotLease>> {
        match self.slots(group).acquire(count, terms).await {
            Ok(slot) => Ok(Some(slot)),
            Err(Error::Held { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Who holds the slots of a group.
    pub async fn list_holders(&self, group: &Namespace) -> Result<Vec<SlotInfo>> {
        self.slots(group).holders().await
    }
}

impl Slots {
    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn slot_key(&self, index: u32) -> Key {
        slot_key(&self.group, index)
    }

    /// Acquires a slot. See [`Coordinator::acquire_slot`] for the count.
    ///
    /// # Errors
    /// [`Error::Held`] if all are held when the wait is over.
    pub async fn acquire(&self, count: u32, terms: &Terms) -> Result<SlotLease> {
        check_count(count)?;
        let inner = self.coordinator.inner();
        let claim = SlotClaim { group: self.group.clone(), queue: Arc::clone(&self.queue), count };
        let held = acquire::acquire(inner, &claim, terms).await?;
        let held = held
            .into_iter()
            .next()
            .ok_or_else(|| Error::unavailable(inner.backend(), "the store granted nothing"))?;
        let index = index_of(&self.group, &held.key.id).unwrap_or_default();
        Ok(SlotLease { lease: Lease::new(inner, held, &self.queue), index })
    }

    /// How many there are; `None` if nobody has asked for one yet.
    pub async fn count(&self) -> Result<Option<u32>> {
        Ok(self.size().await?.map(|size| size.count))
    }

    /// The same, and the version of it, for [`Slots::resize_from`].
    pub async fn size(&self) -> Result<Option<SlotsSize>> {
        let inner = self.coordinator.inner();
        let Some(object) = inner.store.get(&group_key(&self.group)).await? else { return Ok(None) };
        let count = decode::<GroupRecord>(&object, inner.backend())?.count;
        Ok(Some(SlotsSize { count, version: object.version }))
    }

    /// Changes how many there are. More can be acquired at once; fewer evicts nobody.
    pub async fn resize(&self, count: u32) -> Result<()> {
        self.resize_expecting(Expect::Any, count).await
    }

    /// The same, unless somebody has changed it since this version.
    ///
    /// # Errors
    /// [`Error::Conflict`] or [`Error::NotFound`]: look again.
    pub async fn resize_from(&self, version: u64, count: u32) -> Result<()> {
        self.resize_expecting(Expect::Version(version), count).await
    }

    async fn resize_expecting(&self, expect: Expect, count: u32) -> Result<()> {
        check_count(count)?;
        let inner = self.coordinator.inner();
        if !inner.multi() {
            let capability = Capability::MultiObjectCommits;
            return Err(Error::Unsupported { capability, backend: inner.backend() });
        }
        let record = GroupRecord { count, epoch: 0 };
        let note = Key::new(WAITER, tagged(&self.queue, RESIZED));
        let commit = Commit::new()
            .put(Put::new(group_key(&self.group), encode(&record)).expect(expect))
            .put(Put::new(note, inner.nonce().to_string()).ttl(NOTE));
        inner.store.commit(commit).await?;
        tracing::info!(group = %self.group, count, by = %inner.owner, "resized");
        Ok(())
    }

    /// Who holds which slot.
    pub async fn holders(&self) -> Result<Vec<SlotInfo>> {
        let inner = self.coordinator.inner();
        let mut holders = Vec::new();
        for (index, object) in held_slots(inner, &self.group).await? {
            let lease = LeaseInfo::listed(&object, inner.backend());
            holders.extend(lease.map(|lease| SlotInfo { index, lease }));
        }
        Ok(holders)
    }

    /// Who waits for a slot, first come first.
    pub async fn waiters(&self) -> Result<Vec<WaiterInfo>> {
        self.coordinator.waiters(&self.queue).await
    }
}

fn check_count(count: u32) -> Result<()> {
    if count == 0 {
        return Err(Error::invalid("slot count 0", "a group has at least one slot"));
    }
    if count > MAX_SLOTS {
        let (max, got) = (u64::from(MAX_SLOTS), u64::from(count));
        return Err(Error::LimitExceeded { limit: "slots of a group", max, got });
    }
    Ok(())
}

fn group_key(group: &Namespace) -> Key {
    Key::new(SLOTS, group.as_str())
}

fn slot_key(group: &Namespace, index: u32) -> Key {
    Key::new(LEASE, format!("{group}/slot-{index}"))
}

fn index_of(group: &Namespace, id: &str) -> Option<u32> {
    id.strip_prefix(group.as_str())?.strip_prefix("/slot-")?.parse().ok()
}

fn slots_of(group: &Namespace) -> Query {
    Query::new(LEASE).prefix(format!("{group}/slot-"))
}

/// The slots that are held, by index.
async fn held_slots(inner: &Inner, group: &Namespace) -> Result<Vec<(u32, Object)>> {
    let objects = inner.store.list_all(&slots_of(group)).await?;
    let indexed = |object: Object| Some((index_of(group, &object.key.id)?, object));
    let mut slots: Vec<_> = objects.into_iter().filter_map(indexed).collect();
    slots.sort_by_key(|(index, _)| *index);
    Ok(slots)
}

/// What must hold for the lease of this id in this queue to be passed on. A slot of a group that was shrunk
/// is not: what is held above the count is to be let go of, not filled again.
pub(crate) async fn passing_on(inner: &Inner, queue: &str, id: &str) -> Result<Commit> {
    let Ok(group) = queue.parse::<Namespace>() else { return Ok(Commit::new()) };
    if index_of(&group, id).is_none() {
        return Ok(Commit::new());
    }
    let key = group_key(&group);
    let Some(object) = inner.store.get(&key).await? else {
        return Ok(Commit::new().check(key, Expect::Absent));
    };
    let count = decode::<GroupRecord>(&object, inner.backend())?.count;
    // Read after the group: what was acquired before its revision is in here.
    let held = held_slots(inner, &group).await?.len();
    if held > count as usize {
        let reason = format!("{held} hold slots of {group}, which has {count} by now; release it");
        return Err(Error::invalid(format!("hand-over of {id}"), reason));
    }
    Ok(Commit::new().check(key, Expect::Revision(object.revision)))
}

/// One slot, whichever is free.
struct SlotClaim {
    group: Namespace,
    queue: Arc<str>,
    count: u32,
}

impl SlotClaim {
    /// Which slot to take and what else must hold, given the group and who holds what. Pure, so that
    /// the rule of G1 can be read in one place.
    fn choose(
        &self,
        group: Option<(GroupRecord, u64)>,
        held: &[u32],
        pick: u64,
    ) -> Option<(u32, Commit)> {
        let count = group.map_or(self.count, |(record, _)| record.count);
        if held.len() >= count as usize {
            return None;
        }
        let free: Vec<u32> = (0..count).filter(|index| !held.contains(index)).collect();
        let index = *free.get(usize::try_from(pick % free.len().max(1) as u64).ok()?)?;
        let key = group_key(&self.group);
        let commit = Commit::new();
        let over = held.iter().any(|index| *index >= count);
        Some((
            index,
            match group {
                // Distinct slots below the count never add up to more than it.
                Some((_, revision)) if !over => commit.check(key, Expect::Revision(revision)),
                // With slots held above the count they could: acquisitions must exclude each other.
                Some((record, revision)) => {
                    let next = GroupRecord { epoch: record.epoch + 1, ..record };
                    commit.put(Put::new(key, encode(&next)).expect(Expect::Revision(revision)))
                }
                None => {
                    let record = GroupRecord { count, epoch: 0 };
                    commit.put(Put::new(key, encode(&record)).expect(Expect::Absent))
                }
            },
        ))
    }
}

/// The mistake of counting one slot too many, where it is planted.
fn overbooked(record: GroupRecord) -> GroupRecord {
    GroupRecord { count: record.count + u32::from(planted(Flaw::OverbooksSlots)), ..record }
}

#[async_trait]
impl Claim for SlotClaim {
    fn queue(&self) -> &Arc<str> {
        &self.queue
    }

    async fn plan(&self, inner: &Inner, _asked: PlanRequest<'_>) -> Result<Plan> {
        let multi = inner.multi();
        let group = match multi {
            true => inner.store.get(&group_key(&self.group)).await?,
            false => None,
        };
        let group = group
            .map(|object| Ok((decode::<GroupRecord>(&object, inner.backend())?, object.revision)))
            .transpose()?;
        let group = group.map(|(record, revision)| (overbooked(record), revision));
        // Read after the group: what was acquired before its revision is in here.
        let held = held_slots(inner, &self.group).await?;
        let held: Vec<u32> = held.iter().map(|(index, _)| *index).collect();
        let pick = below(&*inner.random, u64::from(MAX_SLOTS));
        Ok(match self.choose(group, &held, pick) {
            None => Plan::Blocked,
            Some((index, commit)) => Plan::Take {
                leases: vec![slot_key(&self.group, index)],
                commit: if multi { commit } else { Commit::new() },
            },
        })
    }

    fn conflict_kind(&self, error: &Error) -> ConflictKind {
        match error {
            Error::AlreadyExists { key, .. }
            | Error::Conflict { key, .. }
            | Error::NotFound { key }
                if *key == group_key(&self.group) || index_of(&self.group, &key.id).is_some() =>
            {
                ConflictKind::Replan
            }
            _ => ConflictKind::Other,
        }
    }

    fn has_more(&self) -> bool {
        true
    }

    fn may_be_had_twice(&self) -> bool {
        true
    }

    async fn owned(&self, inner: &Inner, owner: &Owner) -> Result<Vec<LeaseInfo>> {
        let mut owned = None;
        for (_, object) in held_slots(inner, &self.group).await? {
            let Some(info) = LeaseInfo::listed(&object, inner.backend()) else { continue };
            // The one it got last, if an answer that was lost has left it with more.
            let newer = owned.as_ref().is_none_or(|known: &LeaseInfo| info.token > known.token);
            if info.holder == *owner && newer {
                owned = Some(info);
            }
        }
        Ok(owned.into_iter().collect())
    }

    fn handed(&self) -> Option<Query> {
        Some(slots_of(&self.group))
    }

    async fn blocker(&self, inner: &Inner) -> Result<Option<LeaseInfo>> {
        // Whoever ends first is the one waited for.
        let held = held_slots(inner, &self.group).await?;
        let first = held.into_iter().min_by_key(|(_, object)| object.expires_in);
        first.map(|(_, object)| LeaseInfo::read(&object, inner.backend())).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(count: u32) -> SlotClaim {
        SlotClaim { group: "a.b".parse().unwrap(), queue: "a.b".into(), count }
    }

    #[test]
    fn a_shrunk_group_is_not_refilled_before_fewer_are_held_than_the_new_count() {
        let three = |epoch| Some((GroupRecord { count: 3, epoch }, 7));
        let claim = claim(5);
        assert!(claim.choose(three(0), &[0, 3, 4], 0).is_none());
        let (index, commit) = claim.choose(three(2), &[0, 4], 0).unwrap();
        assert_eq!(index, 1);
        // Such acquisitions exclude each other by changing the group.
        assert_eq!((commit.checks.len(), commit.writes.len()), (0, 1));
        let (_, commit) = claim.choose(three(0), &[0, 1], 0).unwrap();
        assert_eq!((commit.checks.len(), commit.writes.len()), (1, 0));
    }

    #[test]
    fn the_count_asked_for_counts_only_for_a_new_group() {
        assert!(claim(1).choose(Some((GroupRecord { count: 3, epoch: 0 }, 7)), &[0], 0).is_some());
        assert!(claim(9).choose(Some((GroupRecord { count: 1, epoch: 0 }, 7)), &[0], 0).is_none());
        assert!(claim(1).choose(None, &[], 5).is_some());
    }
}
