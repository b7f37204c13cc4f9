//! Several scopes at once: all of them or none, in one commit.
//!
//! Nothing is held while waiting for the rest, so two who want the same scopes in different orders
//! cannot wait for each other for ever.

use std::sync::Arc;

use async_trait::async_trait;

use crate::lease::acquire;
use crate::lease::acquire::claim::{Claim, ConflictKind, Plan, PlanRequest, WaitLocation, read};
use crate::lease::end::release::{self, Outcome};
use crate::lease::hold::lease::Lease;
use crate::lease::inner::Inner;
use crate::lease::record::lease_key;
use crate::lease::{Coordinator, LeaseInfo, Loss, Owner, Scope, Terms};
use crate::store::{Capability, Commit, Query};
use crate::{Error, Key, Result};

/// The most scopes of one acquisition: each takes up to three operations of its commit.
pub const MAX_SCOPES: usize = 32;

/// Several leases that were acquired together. Each stands for itself; together they are released in
/// one commit.
#[derive(Debug)]
#[must_use = "leases are released when their handle is dropped"]
pub struct Leases {
    leases: Vec<Lease>,
}

impl Coordinator {
    /// Acquires all of these scopes, or none.
    ///
    /// While one of them is held by somebody else, it waits in that one's queue; when that is free,
    /// it tries for all again. It never holds one while it waits for another.
    pub async fn acquire_all(&self, scopes: &[Scope], terms: &Terms) -> Result<Leases> {
        let inner = self.inner();
        let mut scopes = scopes.to_vec();
        scopes.sort();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(Error::invalid("scopes", "name at least one"));
        }
        if scopes.len() > MAX_SCOPES {
            let (max, got) = (MAX_SCOPES as u64, scopes.len() as u64);
            return Err(Error::LimitExceeded { limit: "scopes at once", max, got });
        }
        if scopes.len() > 1 && !inner.multi() {
            let capability = Capability::MultiObjectCommits;
            return Err(Error::Unsupported { capability, backend: inner.backend() });
        }
        let keys: Vec<Key> = scopes.iter().map(lease_key).collect();
        let queues: Vec<Arc<str>> = scopes.iter().map(|scope| scope.as_str().into()).collect();
        let held = acquire::acquire_several(inner, &keys, terms).await?;
        let lease = |(held, queue)| Lease::new(inner, held, queue);
        Ok(Leases { leases: held.into_iter().zip(&queues).map(lease).collect() })
    }
}

impl Leases {
    /// The leases, in order of their scopes.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// The leases, each for itself.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Whether all of them are held.
    pub fn is_valid(&self) -> bool {
        self.leases.iter().all(Lease::is_valid)
    }

    /// Resolves when the first of them is lost, with the reason.
    pub async fn lost(&self) -> Loss {
        let lost = self.leases.iter().map(|lease| Box::pin(lease.lost()));
        futures::future::select_all(lost).await.0
    }

    /// Runs a future while all of them are held, and drops it when one is lost.
    pub async fn run<F: Future>(&self, work: F) -> std::result::Result<F::Output, Loss> {
        tokio::select! {
            biased;
            loss = self.lost() => Err(loss),
            output = work => Ok(output),
        }
    }

    /// Puts all of them on a commit as fences.
    #[must_use]
    pub fn fence(&self, commit: Commit) -> Commit {
        self.leases.iter().fold(commit, |commit, lease| commit.fenced_by(lease))
    }

    /// Lets go of all of them at once, after the work has stopped.
    ///
    /// # Errors
    /// [`Error::Lost`] names the first that was lost before; the others are let go of all the same.
    pub async fn release(self) -> Result<()> {
        let Some(inner) = self.leases.first().map(Lease::inner) else { return Ok(()) };
        let inner = Arc::clone(inner);
        let held: Vec<_> = self.leases.iter().map(|lease| Arc::clone(lease.held())).collect();
        release::release(&inner, &held, Outcome::Plain).await
    }
}

/// Several scopes, waited for in the queue of one of them.
pub(crate) struct MultiClaim<'a> {
    pub(crate) keys: &'a [Key],
    pub(crate) queue: Arc<str>,
}

#[async_trait]
impl Claim for MultiClaim<'_> {
    fn queue(&self) -> &Arc<str> {
        &self.queue
    }

    async fn plan(&self, _inner: &Inner, _asked: PlanRequest<'_>) -> Result<Plan> {
        Ok(Plan::Take { leases: self.keys.to_vec(), commit: Commit::new() })
    }

    fn conflict_kind(&self, error: &Error) -> ConflictKind {
        match error {
            Error::AlreadyExists { key, .. } if self.keys.contains(key) => ConflictKind::Blocked,
            _ => ConflictKind::Other,
        }
    }

    fn handed(&self) -> Option<Query> {
        None
    }

    async fn wait_location(&self, inner: &Inner) -> Result<WaitLocation> {
        Ok(match self.blocker(inner).await? {
            Some(info) if *info.id == *self.queue => WaitLocation::Here,
            Some(_) => WaitLocation::Elsewhere,
            None => WaitLocation::Nowhere,
        })
    }

    async fn owned(&self, inner: &Inner, owner: &Owner) -> Result<Vec<LeaseInfo>> {
        let mut owned: Vec<LeaseInfo> = Vec::new();
        for key in self.keys {
            let together = |info: &LeaseInfo| {
                info.holder == *owner && owned.first().is_none_or(|first| first.nonce == info.nonce)
            };
            match read(inner, key).await?.filter(together) {
                Some(info) => owned.push(info),
                None => return Ok(Vec::new()),
            }
        }
        Ok(owned)
    }

    async fn blocker(&self, inner: &Inner) -> Result<Option<LeaseInfo>> {
        for key in self.keys {
            if let Some(info) = read(inner, key).await? {
                return Ok(Some(info));
            }
        }
        Ok(None)
    }
}
