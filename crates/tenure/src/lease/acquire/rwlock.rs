//! Reading and writing: a scope held by many readers, or by one writer alone.
//!
//! Each reader's lease is an object of its own, `scope#read-…`; the writer's is `scope#write`. A
//! reader demands that there be no writer and changes the scope's readers object. A writer demands
//! that this object be unchanged since before it saw that there are no readers: none can have come
//! unseen, and a lease that has ended never comes back. Both wait in one queue, so a stream of
//! readers does not starve a writer.
//!
//! [`Coordinator::acquire`] on the same scope is a lease of its own and knows nothing of these two.

use std::sync::Arc;

use async_trait::async_trait;

use crate::lease::acquire;
use crate::lease::acquire::claim::{Claim, ConflictKind, Plan, PlanRequest, only, read};
use crate::lease::inner::Inner;
use crate::lease::queue::wait_queues::SHARED;
use crate::lease::record::{LEASE, READERS, tagged, untagged};
use crate::lease::{Coordinator, Lease, LeaseInfo, Owner, Scope, Terms};
use crate::store::{Capability, Commit, Expect, Put, Query};
use crate::{Error, Key, Result};

impl Coordinator {
    /// Acquires a scope for reading: together with other readers, never together with a writer.
    pub async fn acquire_read(&self, scope: &Scope, terms: &Terms) -> Result<Lease> {
        self.acquire_shared(scope, terms, Mode::Read).await
    }

    /// Acquires a scope for writing: alone among readers and writers.
    pub async fn acquire_write(&self, scope: &Scope, terms: &Terms) -> Result<Lease> {
        self.acquire_shared(scope, terms, Mode::Write).await
    }

    async fn acquire_shared(&self, scope: &Scope, terms: &Terms, mode: Mode) -> Result<Lease> {
        let inner = self.inner();
        if !inner.multi() {
            let capability = Capability::MultiObjectCommits;
            return Err(Error::Unsupported { capability, backend: inner.backend() });
        }
        let queue: Arc<str> = tagged(scope.as_str(), SHARED).into();
        let claim = SharedClaim { scope: scope.clone(), queue: Arc::clone(&queue), mode };
        let held = acquire::acquire(inner, &claim, terms).await?;
        let held = held
            .into_iter()
            .next()
            .ok_or_else(|| Error::unavailable(inner.backend(), "the store granted nothing"))?;
        Ok(Lease::new(inner, held, &queue))
    }

    /// Who reads or writes a scope.
    pub async fn readers_and_writer(&self, scope: &Scope) -> Result<Vec<LeaseInfo>> {
        let inner = self.inner();
        let query = Query::new(LEASE).prefix(format!("{scope}#"));
        let objects = inner.store.list_all(&query).await?;
        let backend = inner.backend();
        Ok(objects.iter().filter_map(|object| LeaseInfo::listed(object, backend)).collect())
    }
}

/// The tag of a reader's lease begins with this.
const READ: &str = "read-";

/// Whether the lease of this id is such that a successor would have all it waits for. A reader's is
/// not: others may read as well, so it is of no use to a writer, and readers need no hand-over.
pub(crate) fn can_be_handed_over(id: &str) -> Result<()> {
    if untagged(id).is_some_and(|(_, tag)| tag.starts_with(READ)) {
        let reason =
            "a reader's lease is one of many and cannot be handed over; release it instead";
        return Err(Error::invalid(format!("hand-over of {id}"), reason));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

struct SharedClaim {
    scope: Scope,
    queue: Arc<str>,
    mode: Mode,
}

impl SharedClaim {
    fn writer(&self) -> Key {
        Key::new(LEASE, tagged(self.scope.as_str(), "write"))
    }

    fn reader(&self, nonce: &str) -> Key {
        Key::new(LEASE, tagged(self.scope.as_str(), &format!("{READ}{nonce}")))
    }

    fn all_readers(&self) -> String {
        tagged(self.scope.as_str(), READ)
    }

    fn readers(&self) -> Key {
        Key::new(READERS, self.scope.as_str())
    }

    async fn any_reader(&self, inner: &Inner) -> Result<Option<LeaseInfo>> {
        let first = inner.store.first(Query::new(LEASE).prefix(self.all_readers())).await?;
        first.map(|object| LeaseInfo::read(&object, inner.backend())).transpose()
    }
}

#[async_trait]
impl Claim for SharedClaim {
    fn queue(&self) -> &Arc<str> {
        &self.queue
    }

    async fn plan(&self, inner: &Inner, asked: PlanRequest<'_>) -> Result<Plan> {
        if self.mode == Mode::Read {
            // A writer ahead that is silent because there are readers is not dead.
            if asked.passing && self.any_reader(inner).await?.is_some() {
                return Ok(Plan::Blocked);
            }
            // A new token each time: it must change even if this very commit arrives twice.
            let commit = Commit::new()
                .check(self.writer(), Expect::Absent)
                .put(Put::new(self.readers(), asked.nonce.to_owned()).new_token());
            return Ok(Plan::Take { leases: vec![self.reader(asked.nonce)], commit });
        }
        // In this order: a reader that comes after the first look changes what it saw.
        let before = inner.store.get(&self.readers()).await?;
        if self.any_reader(inner).await?.is_some() {
            return Ok(Plan::Blocked);
        }
        let commit = match before {
            Some(object) => Commit::new().delete(self.readers(), Expect::Revision(object.revision)),
            None => Commit::new().check(self.readers(), Expect::Absent),
        };
        Ok(Plan::Take { leases: vec![self.writer()], commit })
    }

    fn conflict_kind(&self, error: &Error) -> ConflictKind {
        match error {
            Error::AlreadyExists { key, .. } if *key == self.writer() => ConflictKind::Blocked,
            Error::AlreadyExists { key, .. }
            | Error::Conflict { key, .. }
            | Error::NotFound { key }
                if *key == self.readers() =>
            {
                ConflictKind::Replan
            }
            _ => ConflictKind::Other,
        }
    }

    fn has_more(&self) -> bool {
        self.mode == Mode::Read
    }

    fn may_be_had_twice(&self) -> bool {
        self.mode == Mode::Read
    }

    async fn owned(&self, inner: &Inner, owner: &Owner) -> Result<Vec<LeaseInfo>> {
        if self.mode == Mode::Write {
            let writer = read(inner, &self.writer()).await?;
            return Ok(writer.into_iter().filter(|info| info.holder == *owner).collect());
        }
        let query = Query::new(LEASE).prefix(self.all_readers());
        for object in inner.store.list_all(&query).await? {
            let info = LeaseInfo::listed(&object, inner.backend());
            if let Some(info) = info.filter(|info| info.holder == *owner) {
                return Ok(vec![info]);
            }
        }
        Ok(Vec::new())
    }

    fn handed(&self) -> Option<Query> {
        // Only a writer's lease can be handed over, and only to a writer; see `can_be_handed_over`.
        (self.mode == Mode::Write).then(|| only(&self.writer().id))
    }

    async fn blocker(&self, inner: &Inner) -> Result<Option<LeaseInfo>> {
        match read(inner, &self.writer()).await? {
            Some(writer) => Ok(Some(writer)),
            None => self.any_reader(inner).await,
        }
    }
}
