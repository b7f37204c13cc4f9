//! What can be claimed: a lease, a slot of a group, a share of a lease. They differ only in which
//! objects a claim takes and what stands in its way; taking and waiting are the same for all.

use std::sync::Arc;

use async_trait::async_trait;

use crate::lease::inner::Inner;
use crate::lease::record::{LEASE, LeaseInfo, lease_key};
use crate::lease::{Owner, Scope};
use crate::store::{Commit, Query};
use crate::{Error, Key, Result};

/// Something to be claimed.
#[async_trait]
pub(crate) trait Claim: Send + Sync {
    /// The queue to wait in.
    fn queue(&self) -> &Arc<str>;

    /// What it would take right now.
    async fn plan(&self, inner: &Inner, asked: PlanRequest<'_>) -> Result<Plan>;

    /// What it means that the commit was refused with this error.
    fn conflict_kind(&self, error: &Error) -> ConflictKind;

    /// Whether the next in the queue should try at once after a success: there may be more to have.
    fn has_more(&self) -> bool {
        false
    }

    /// Whether one owner may have it twice: its own lease does not stand in its way then.
    fn may_be_had_twice(&self) -> bool {
        false
    }

    /// What this owner has of it already; all that the claim would take, or nothing.
    async fn owned(&self, inner: &Inner, owner: &Owner) -> Result<Vec<LeaseInfo>> {
        let holder = self.blocker(inner).await?;
        Ok(holder.into_iter().filter(|info| info.holder == *owner).collect())
    }

    /// Where to wait for what was in the way a moment ago.
    async fn wait_location(&self, _inner: &Inner) -> Result<WaitLocation> {
        Ok(WaitLocation::Here)
    }

    /// Among which leases is the one that a hand-over grants; `None` if none can satisfy it.
    fn handed(&self) -> Option<Query>;

    /// Who is in the way, for people.
    async fn blocker(&self, inner: &Inner) -> Result<Option<LeaseInfo>>;
}

/// Who asks for a plan.
#[derive(Clone, Copy)]
pub(crate) struct PlanRequest<'a> {
    /// The nonce of this try.
    pub(crate) nonce: &'a str,
    /// Others are ahead in the queue and have been silent when it was their turn. They are taken for
    /// dead, so a plan must not succeed where one of them, alive, would have been refused.
    pub(crate) passing: bool,
}

/// What a claim takes.
pub(crate) enum Plan {
    /// These lease objects, which must be absent, together with this.
    Take { leases: Vec<Key>, commit: Commit },
    /// Nothing: there is none to have.
    Blocked,
}

/// Where what is in the way is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLocation {
    /// In this queue.
    Here,
    /// In another.
    Elsewhere,
    /// Nothing is in the way any more, and no news of it will come in this queue.
    Nowhere,
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictKind {
    /// Somebody else has it.
    Blocked,
    /// The plan was made on what has changed since: make another.
    Replan,
    /// It is not about the claim at all.
    Other,
}

/// One scope, held alone.
pub(crate) struct Whole {
    queue: Arc<str>,
    key: Key,
}

impl Whole {
    pub(crate) fn new(scope: &Scope) -> Self {
        Self { queue: scope.as_str().into(), key: lease_key(scope) }
    }
}

#[async_trait]
impl Claim for Whole {
    fn queue(&self) -> &Arc<str> {
        &self.queue
    }

    async fn plan(&self, _inner: &Inner, _asked: PlanRequest<'_>) -> Result<Plan> {
        Ok(Plan::Take { leases: vec![self.key.clone()], commit: Commit::new() })
    }

    fn conflict_kind(&self, error: &Error) -> ConflictKind {
        match error {
            Error::AlreadyExists { key, .. } if *key == self.key => ConflictKind::Blocked,
            _ => ConflictKind::Other,
        }
    }

    fn handed(&self) -> Option<Query> {
        Some(only(&self.key.id))
    }

    async fn blocker(&self, inner: &Inner) -> Result<Option<LeaseInfo>> {
        read(inner, &self.key).await
    }
}

/// The lease of this id alone.
pub(crate) fn only(id: &str) -> Query {
    // An id holds no control characters, so nothing lies between it and this.
    Query::new(LEASE).from(id).until(format!("{id}\u{1}"))
}

/// The lease that a hand-over has granted to this nonce.
pub(crate) async fn granted(
    inner: &Inner,
    among: &Query,
    nonce: &str,
) -> Result<Option<LeaseInfo>> {
    for object in inner.store.list_all(among).await? {
        let info = LeaseInfo::listed(&object, inner.backend());
        if let Some(info) = info.filter(|info| *info.nonce == *nonce) {
            return Ok(Some(info));
        }
    }
    Ok(None)
}

/// A lease as it is now.
pub(crate) async fn read(inner: &Inner, key: &Key) -> Result<Option<LeaseInfo>> {
    let object = inner.store.get(key).await?;
    object.map(|object| LeaseInfo::read(&object, inner.backend())).transpose()
}
