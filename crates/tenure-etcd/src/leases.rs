//! Spare etcd leases, so that an object with a time to live can be written in one round trip.
//!
//! Every object with a life hangs on an etcd lease of its own. Granting one costs a round trip, so
//! some are granted beforehand, and one that comes free when its object goes is used again. A lease
//! carries one object at a time: it is taken out of here before it is used, and comes back only if a
//! transaction is known not to have used it, or to have removed the object from it. After an outcome
//! that is not known it never comes back; it ends by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::join_all;
use tenure::{Error, Result};

use crate::BACKEND;
use crate::endpoints::{Budget, Endpoints};
use crate::envelope::Known;
use crate::error::Fault;
use crate::wire::{LeaseGrantRequest, LeaseGrantResponse, LeaseRequest, Nothing, path};
use tenure::store::home::Home;

/// How often spares are looked after.
const TICK: Duration = Duration::from_millis(500);
/// Lives that nobody asked for this long are forgotten.
const IDLE: Duration = Duration::from_secs(600);
/// After this long without a use, fewer and fewer are kept, down to these.
const CALM: Duration = Duration::from_secs(5);
const LEAST: usize = 2;
/// Leases granted at once, beside the one that is waited for.
const AHEAD: usize = 8;

/// An etcd lease that carries nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) id: i64,
    /// Its life in seconds.
    pub(crate) life: u64,
    /// When it last started its life anew, by our clock, as far as one answer tells.
    since: Duration,
    /// The same for certain: it was granted then, or kept alive by a server that led.
    pub(crate) certain: Duration,
}

/// What an etcd lease lives longer than the life it stands for, in seconds. With it, a lease that was
/// kept alive within the last second has a full life to give without being kept alive again. Short
/// lives, which are short so that they end soon, have none.
pub(crate) fn grace(life: u64) -> u64 {
    u64::from(life >= 10)
}

#[derive(Default)]
struct Shelf {
    spares: Vec<Spare>,
    /// How many are kept alive though unused.
    wanted: usize,
    used: Duration,
}

pub(crate) struct Leases {
    endpoints: Arc<Endpoints>,
    shelves: Mutex<HashMap<u64, Shelf>>,
}

impl Leases {
    pub(crate) fn new(endpoints: Arc<Endpoints>) -> Arc<Self> {
        Arc::new(Self { endpoints, shelves: Mutex::default() })
    }

    /// Looks after the spares for as long as the store is used.
    pub(crate) fn tend(self: &Arc<Self>, home: &Home) {
        let this = Arc::downgrade(self);
        home.spawn(async move {
            loop {
                tokio::time::sleep(TICK).await;
                let Some(this) = Weak::upgrade(&this) else { return };
                if this.endpoints.is_closed() {
                    return;
                }
                this.keep_warm().await;
            }
        });
    }

    fn now(&self) -> Duration {
        self.endpoints.options.clock.uptime()
    }

    fn with<T>(&self, life: u64, act: impl FnOnce(&mut Shelf) -> T) -> T {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        act(shelves.entry(life).or_default())
    }

    /// A lease with this life that carries nothing, if there is one; `fresh` if spares are not to be
    /// trusted. Where there is none, more will be kept from now on.
    pub(crate) fn at_hand(&self, life: u64, fresh: bool) -> Option<Spare> {
        let now = self.now();
        let most = self.endpoints.options.spares;
        self.with(life, |shelf| {
            shelf.used = now;
            if fresh {
                shelf.spares.clear();
            }
            while let Some(spare) = shelf.spares.pop() {
                if spare.is_young(now) {
                    return Some(spare);
                }
            }
            shelf.wanted = (shelf.wanted + 1).min(most);
            None
        })
    }

    /// Gives back a lease that certainly carries nothing.
    pub(crate) fn give(&self, spare: Spare) {
        let most = self.endpoints.options.spares;
        if spare.is_young(self.now()) {
            self.with(spare.life, |shelf| {
                if shelf.spares.len() < most {
                    shelf.spares.push(spare);
                }
            });
        }
    }

    /// Takes the lease of an object that has just been removed from it. Without knowing when it was
    /// last kept alive it is of no use, and ends by itself.
    pub(crate) fn freed(&self, known: &Known) {
        if let Some(since) = known.since.filter(|_| known.lease != 0) {
            self.give(Spare { id: known.lease, life: known.life, since, certain: since });
        }
    }

    /// Asks etcd for a lease. It may be granted more than was asked for, never less.
    pub(crate) async fn grant(&self, life: u64, budget: Budget) -> Result<Spare> {
        let since = self.now();
        let ttl = i64::try_from(life + grace(life)).unwrap_or(i64::MAX);
        // Granting twice is harmless: a lease that nobody knows of ends by itself.
        let question = LeaseGrantRequest { ttl };
        let granted: LeaseGrantResponse =
            self.endpoints.read(path::GRANT, question, budget).await?;
        if granted.ttl < ttl || !granted.error.is_empty() {
            let reason =
                format!("a lease of {ttl} s was granted {} s {}", granted.ttl, granted.error);
            return Err(Error::unavailable(BACKEND, reason));
        }
        Ok(Spare { id: granted.id, life, since, certain: since })
    }

    /// The shortest life that the server grants, in seconds.
    pub(crate) async fn shortest(&self, budget: Budget) -> Result<u64> {
        let question = LeaseGrantRequest { ttl: 1 };
        let granted: LeaseGrantResponse =
            self.endpoints.read(path::GRANT, question, budget).await?;
        let _: Result<Nothing> =
            self.endpoints.read(path::REVOKE, LeaseRequest { id: granted.id }, budget).await;
        Ok(u64::try_from(granted.ttl).unwrap_or(1).max(1))
    }

    /// Keeps wanted spares alive, fills up what is missing and lets the rest go.
    async fn keep_warm(&self) {
        let (now, most) = (self.now(), self.endpoints.options.spares);
        let (mut due, mut missing) = (Vec::new(), Vec::new());
        {
            let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
            shelves.retain(|_, shelf| now.saturating_sub(shelf.used) < IDLE);
            for (life, shelf) in shelves.iter_mut() {
                if now.saturating_sub(shelf.used) > CALM {
                    shelf.wanted = (shelf.wanted / 2).max(LEAST).min(most);
                }
                shelf.spares.retain(|spare| spare.is_young(now));
                // The most recently used are at the end, and stay.
                let surplus = shelf.spares.len().saturating_sub(shelf.wanted);
                shelf.spares.drain(..surplus);
                // What is in use comes back by itself; only a shelf that runs empty is filled up.
                let short = shelf.wanted.div_ceil(2).saturating_sub(shelf.spares.len());
                due.extend(shelf.spares.extract_if(.., |spare| spare.is_due(now)));
                missing.extend(std::iter::repeat_n(*life, short.min(AHEAD)));
            }
        }
        join_all(due.into_iter().map(|spare| self.warm(spare))).await;
        let budget = self.endpoints.budget();
        let granting = missing.into_iter().map(|life| self.grant(life, budget));
        for spare in join_all(granting).await.into_iter().flatten() {
            self.give(spare);
        }
    }

    async fn warm(&self, spare: Spare) {
        let since = self.now();
        let Ok(link) = self.endpoints.link(self.endpoints.budget()).await else { return };
        let attempt = self.endpoints.options.attempt;
        match tokio::time::timeout(attempt, link.keep_alive(spare.id)).await {
            Ok(Ok(_)) => self.give(Spare { since, ..spare }),
            Ok(Err(Fault::NoLease)) => {}
            _ => self.endpoints.fail(&link),
        }
    }

    /// Lets all spares go.
    pub(crate) async fn revoke_all(&self) {
        let shelves =
            std::mem::take(&mut *self.shelves.lock().unwrap_or_else(PoisonError::into_inner));
        // Not worth connecting for: what is not revoked now ends by itself.
        let Some(link) = self.endpoints.current() else { return };
        let revoking = shelves
            .into_values()
            .flat_map(|shelf| shelf.spares)
            .map(|spare| link.call::<_, Nothing>(path::REVOKE, LeaseRequest { id: spare.id }));
        let _ = tokio::time::timeout(TICK, join_all(revoking)).await;
    }
}

impl Spare {
    fn life(&self) -> Duration {
        Duration::from_secs(self.life)
    }

    /// Young enough that the server certainly has it still.
    fn is_young(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) < self.life() * 2 / 3
    }

    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= self.life() / 3
    }
}
