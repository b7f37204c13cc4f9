//! What the handle, its calls and its reflector share.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::decide::{Now, Row, expiry};
use tenure::clock::SharedClock;
use tenure::{Error, Result};
use tokio::sync::{Semaphore, watch};

use crate::BACKEND;
use crate::api::Api;
use crate::error::Failure;
use crate::name::Names;
use crate::observe::{Observations, Sight};
use crate::record::{self, ID};
use crate::reflector::Reflector;
use crate::wire::{self, Lease};

/// Deletions on their way at once.
pub(crate) const DELETIONS: usize = 16;
/// Times that a list is begun anew because its pages expired while it was read.
const LISTS: u32 = 3;

/// The shared middle of a store.
pub(crate) struct Shared {
    pub(crate) api: Api,
    pub(crate) names: Names,
    pub(crate) seen: Observations,
    pub(crate) clock: SharedClock,
    /// When idle Leases are deleted, if ever.
    pub(crate) idle: Option<Duration>,
    /// Room for deletions on their way.
    pub(crate) deletions: Arc<Semaphore>,
    pub(crate) reflector: Reflector,
    pub(crate) stopping: watch::Sender<bool>,
}

/// A Lease as it was read, and since when it has been seen like that.
#[derive(Clone)]
pub(crate) struct Read {
    pub(crate) lease: Arc<Lease>,
    pub(crate) sight: Sight,
}

impl Shared {
    pub(crate) fn closed(&self) -> Error {
        Error::unavailable(BACKEND, "the store was closed")
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if *self.stopping.borrow() { Err(self.closed()) } else { Ok(()) }
    }

    /// The instant of a decision. Our own steady clock is the one that judges.
    pub(crate) fn now(&self) -> Now {
        Now { store_ms: whole_ms(self.clock.uptime()), wall_ms: self.clock.wall_ms() }
    }

    /// Reads a Lease from the server, and takes notice of it.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<Read>> {
        match self.api.get(name).await.map_err(Failure::of_read)? {
            Some(lease) => self.take_in(lease).map(Some),
            None => {
                self.seen.forget(name);
                Ok(None)
            }
        }
    }

    /// Takes notice of a Lease that an answer has just told of.
    pub(crate) fn take_in(&self, lease: Lease) -> Result<Read> {
        let revision = lease.revision()?;
        let lease = Arc::new(lease);
        let sight = self.seen.remember(&lease, revision, self.clock.uptime());
        Ok(Read { lease, sight })
    }

    /// The Lease of this name as it was last read or written here.
    pub(crate) fn remembered(&self, name: &str) -> Option<Read> {
        self.seen.remembered(name).map(|(lease, sight)| Read { lease, sight })
    }

    /// The id of a Lease, if it is one of this store's.
    pub(crate) fn id_of(&self, lease: &Lease) -> Option<String> {
        let told = lease.metadata.annotations.get(ID).map(String::as_str);
        self.names.decode(&lease.metadata.name, told)
    }

    /// Every Lease of the namespace as of one revision.
    pub(crate) async fn all(&self) -> Result<(Vec<Lease>, u64)> {
        let mut tries = 0;
        loop {
            match self.pages().await {
                Ok((leases, revision)) => return Ok((leases, wire::revision(&revision)?)),
                Err(Failure::Gone) if tries < LISTS => tries += 1,
                Err(failure) => return Err(failure.of_read()),
            }
        }
    }

    async fn pages(&self) -> Result<(Vec<Lease>, String), Failure> {
        let mut leases = Vec::new();
        let mut behind = None;
        loop {
            let page = self.api.page(behind.take()).await?;
            leases.extend(page.items);
            match page.metadata.continue_token.filter(|token| !token.is_empty()) {
                Some(token) => behind = Some(token),
                None => return Ok((leases, page.metadata.resource_version)),
            }
        }
    }
}

/// The row of a Lease for the decision; `None` if nobody holds it.
pub(crate) fn row(lease: &Lease, sight: Sight, id: &str) -> Result<Option<Row>> {
    let held = record::read(lease, id, sight.first)?;
    Ok(held.map(|held| Row {
        object: Arc::new(held.object),
        expires_at_ms: held.life.map(|life| expiry(whole_ms(sight.at), life)),
    }))
}

/// A reading of the clock in whole milliseconds.
pub(crate) fn whole_ms(uptime: Duration) -> i64 {
    i64::try_from(uptime.as_millis()).unwrap_or(i64::MAX)
}
