//! Spare etcd leases, so that an object with a time to live can be written in one round trip.
//!
//! Every object with a life hangs on an etcd lease of its own. Granting one costs a round trip, so
//! some are granted beforehand, and one that comes free when its object goes is used again. A lease
//! carries one object at a time: it is taken out of here before it is used, and comes back only if a
//! transaction is known not to have used it, or to have removed the object from it. After an outcome
//! that is not known it never comes back; it ends by itself.
//!
//! A lease that is not needed any more ends by itself if that is soon. A longer one is revoked: those that
//! objects with long lives leave behind would add up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::join_all;
use tenure::{Error, Result};

use crate::BACKEND;
use crate::endpoints::{Deadline, Endpoints};
use crate::error::CallError;
use crate::messages::{LeaseGrantRequest, LeaseGrantResponse, LeaseRequest, Nothing, path};
use crate::stored::Stored;
use tenure::backend::home::Home;

/// How often spares are looked after.
const TICK: Duration = Duration::from_millis(500);
/// Lives that nobody asked for this long are forgotten.
const IDLE: Duration = Duration::from_secs(600);
/// After this long without a use, fewer and fewer are kept, down to these.
const CALM: Duration = Duration::from_secs(5);
const LEAST: usize = 2;
/// Leases granted at once, beside the one that is waited for.
const AHEAD: usize = 8;
/// Lives that spares are kept for; beyond that, those that were used last.
const LIVES: usize = 64;
/// A life that ends soon enough by itself, in seconds.
const SOON: u64 = 120;
/// Leases that wait to be revoked, and those revoked in one go. What is more ends by itself.
const MAX_TO_REVOKE: usize = 10_000;
const REVOKED_AT_ONCE: usize = 256;

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
struct Pool {
    spares: Vec<Spare>,
    /// How many are kept alive though unused.
    wanted: usize,
    used: Duration,
}

/// All spares, and what is to be revoked.
#[derive(Default)]
struct Pools {
    by_life: HashMap<u64, Pool>,
    to_revoke: Vec<i64>,
}

/// What is to be done at one look at the pools.
struct Upkeep {
    /// To be kept alive.
    due: Vec<Spare>,
    /// Lives to be granted.
    missing: Vec<u64>,
    /// To be revoked.
    to_revoke: Vec<i64>,
}

pub(crate) struct LeasePool {
    endpoints: Arc<Endpoints>,
    pools: Mutex<Pools>,
}

impl LeasePool {
    pub(crate) fn new(endpoints: Arc<Endpoints>) -> Arc<Self> {
        Arc::new(Self { endpoints, pools: Mutex::default() })
    }

    /// Looks after the spares for as long as the store is used.
    pub(crate) fn start_upkeep(self: &Arc<Self>, home: &Home) {
        let this = Arc::downgrade(self);
        home.spawn(async move {
            loop {
                tokio::time::sleep(TICK).await;
                let Some(this) = Weak::upgrade(&this) else { return };
                if this.endpoints.is_closed() {
                    return;
                }
                this.upkeep_once().await;
            }
        });
    }

    fn now(&self) -> Duration {
        self.endpoints.options.clock.uptime()
    }

    fn lock(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease with this life that carries nothing, if there is one; `fresh` if spares are not to be
    /// trusted. Where there is none, more will be kept from now on.
    pub(crate) fn take(&self, life: u64, fresh: bool) -> Option<Spare> {
        self.lock().take(life, fresh, self.now(), self.endpoints.options.spares)
    }

    /// Gives back a lease that certainly carries nothing.
    pub(crate) fn put_back(&self, spare: Spare) {
        self.lock().put_back(spare, self.now(), self.endpoints.options.spares);
    }

    /// Takes the lease of an object that has just been removed from it. Without knowing when it was
    /// last kept alive it is of no use.
    pub(crate) fn reclaim(&self, stored: &Stored) {
        match stored.since {
            _ if stored.lease == 0 => {}
            Some(since) => {
                self.put_back(Spare { id: stored.lease, life: stored.life, since, certain: since });
            }
            None => self.lock().discard(stored.lease, stored.life),
        }
    }

    /// Asks etcd for a lease. It may be granted more than was asked for, never less.
    pub(crate) async fn grant(&self, life: u64, deadline: Deadline) -> Result<Spare> {
        let since = self.now();
        let ttl = i64::try_from(life + grace(life)).unwrap_or(i64::MAX);
        // Granting twice is harmless: a lease that nobody knows of ends by itself.
        let question = LeaseGrantRequest { ttl };
        let granted: LeaseGrantResponse =
            self.endpoints.read(path::GRANT, question, deadline).await?;
        if granted.ttl < ttl || !granted.error.is_empty() {
            let reason =
                format!("a lease of {ttl} s was granted {} s {}", granted.ttl, granted.error);
            return Err(Error::unavailable(BACKEND, reason));
        }
        Ok(Spare { id: granted.id, life, since, certain: since })
    }

    /// The shortest life that the server grants, in seconds.
    pub(crate) async fn shortest(&self, deadline: Deadline) -> Result<u64> {
        let question = LeaseGrantRequest { ttl: 1 };
        let granted: LeaseGrantResponse =
            self.endpoints.read(path::GRANT, question, deadline).await?;
        let _: Result<Nothing> =
            self.endpoints.read(path::REVOKE, LeaseRequest { id: granted.id }, deadline).await;
        Ok(u64::try_from(granted.ttl).unwrap_or(1).max(1))
    }

    /// Keeps wanted spares alive, fills up what is missing and lets the rest go.
    async fn upkeep_once(&self) {
        let upkeep = self.lock().upkeep(self.now(), self.endpoints.options.spares);
        join_all(upkeep.due.into_iter().map(|spare| self.renew(spare))).await;
        let deadline = self.endpoints.deadline();
        let granting = upkeep.missing.into_iter().map(|life| self.grant(life, deadline));
        for spare in join_all(granting).await.into_iter().flatten() {
            self.put_back(spare);
        }
        self.revoke(upkeep.to_revoke, self.endpoints.options.attempt).await;
    }

    async fn renew(&self, spare: Spare) {
        let since = self.now();
        let Ok(connection) = self.endpoints.connection(self.endpoints.deadline()).await else {
            return;
        };
        let attempt = self.endpoints.options.attempt;
        match tokio::time::timeout(attempt, connection.keep_alive(spare.id)).await {
            Ok(Ok(_)) => self.put_back(Spare { since, ..spare }),
            Ok(Err(CallError::LeaseNotFound)) => {}
            _ => self.endpoints.fail(&connection),
        }
    }

    /// Revokes all spares.
    pub(crate) async fn revoke_all(&self) {
        let Pools { by_life, mut to_revoke } = std::mem::take(&mut *self.lock());
        let spares = by_life.into_values().flat_map(|pool| pool.spares);
        to_revoke.extend(spares.map(|spare| spare.id));
        self.revoke(to_revoke, TICK).await;
    }

    /// Revokes leases that certainly carry nothing: nobody else knows of them.
    async fn revoke(&self, leases: Vec<i64>, patience: Duration) {
        // Not worth connecting for: what is not revoked now ends by itself.
        let Some(connection) = self.endpoints.current().filter(|_| !leases.is_empty()) else {
            return;
        };
        let revoking = leases
            .into_iter()
            .map(|id| connection.call::<_, Nothing>(path::REVOKE, LeaseRequest { id }));
        let _ = tokio::time::timeout(patience, join_all(revoking)).await;
    }
}

impl Pools {
    fn take(&mut self, life: u64, fresh: bool, now: Duration, most: usize) -> Option<Spare> {
        let pool = self.by_life.entry(life).or_default();
        pool.used = now;
        let mut old = if fresh { std::mem::take(&mut pool.spares) } else { Vec::new() };
        let mut found = None;
        while let Some(spare) = pool.spares.pop() {
            if spare.is_usable(now) {
                found = Some(spare);
                break;
            }
            old.push(spare);
        }
        if found.is_none() {
            pool.wanted = (pool.wanted + 1).min(most);
        }
        self.discard_all(old);
        found
    }

    fn put_back(&mut self, spare: Spare, now: Duration, most: usize) {
        let pool = self.by_life.entry(spare.life).or_default();
        if spare.is_usable(now) && pool.spares.len() < most {
            pool.spares.push(spare);
        } else {
            self.discard(spare.id, spare.life);
        }
    }

    /// Has no use any more for a lease that carries nothing.
    fn discard(&mut self, id: i64, life: u64) {
        if life > SOON && self.to_revoke.len() < MAX_TO_REVOKE {
            self.to_revoke.push(id);
        }
    }

    fn discard_all(&mut self, spares: Vec<Spare>) {
        for spare in spares {
            self.discard(spare.id, spare.life);
        }
    }

    /// Tidies up, and says what else there is to do.
    fn upkeep(&mut self, now: Duration, most: usize) -> Upkeep {
        let mut gone = Vec::new();
        let oldest = self.oldest_kept(now);
        for (_, pool) in self.by_life.extract_if(|_, pool| pool.used < oldest) {
            gone.extend(pool.spares);
        }
        let (mut due, mut missing) = (Vec::new(), Vec::new());
        for (life, pool) in &mut self.by_life {
            if now.saturating_sub(pool.used) > CALM {
                pool.wanted = (pool.wanted / 2).max(LEAST).min(most);
            }
            gone.extend(pool.spares.extract_if(.., |spare| !spare.is_usable(now)));
            // The most recently used are at the end, and stay.
            let surplus = pool.spares.len().saturating_sub(pool.wanted);
            gone.extend(pool.spares.drain(..surplus));
            // What is in use comes back by itself; only a pool that runs empty is filled up.
            let short = pool.wanted.div_ceil(2).saturating_sub(pool.spares.len());
            due.extend(pool.spares.extract_if(.., |spare| spare.needs_renewal(now)));
            missing.extend(std::iter::repeat_n(*life, short.min(AHEAD)));
        }
        self.discard_all(gone);
        let rest = self.to_revoke.len().saturating_sub(REVOKED_AT_ONCE);
        Upkeep { due, missing, to_revoke: self.to_revoke.split_off(rest) }
    }

    /// Pools that were last used before this are forgotten.
    fn oldest_kept(&self, now: Duration) -> Duration {
        let mut used: Vec<Duration> = self.by_life.values().map(|pool| pool.used).collect();
        used.sort_unstable_by(|a, b| b.cmp(a));
        let last = used.get(LIVES - 1).copied().unwrap_or_default();
        last.max(now.saturating_sub(IDLE))
    }
}

impl Spare {
    fn life(&self) -> Duration {
        Duration::from_secs(self.life)
    }

    /// Young enough that the server certainly has it still.
    fn is_usable(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) < self.life() * 2 / 3
    }

    fn needs_renewal(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= self.life() / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const MOST: usize = 256;

    fn spare(id: i64, life: u64, since: Duration) -> Spare {
        Spare { id, life, since, certain: since }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn spares_are_kept_for_so_many_lives_and_the_rest_is_revoked() {
        let mut pools = Pools::default();
        let lives = DAY..DAY + 1000;
        for (life, id) in lives.clone().zip(0..) {
            let now = seconds(life - DAY);
            assert_eq!(pools.take(life, false, now, MOST), None);
            pools.put_back(spare(id, life, now), now, MOST);
        }
        let mut revoked = Vec::new();
        loop {
            let upkeep = pools.upkeep(seconds(1000), MOST);
            assert!(upkeep.to_revoke.len() <= REVOKED_AT_ONCE);
            if upkeep.to_revoke.is_empty() {
                break;
            }
            revoked.extend(upkeep.to_revoke);
        }
        assert_eq!(pools.by_life.len(), LIVES);
        assert_eq!(revoked.len(), 1000 - LIVES);
        // Those that were used last are at hand.
        assert!(
            lives
                .rev()
                .take(LIVES)
                .all(|life| { pools.take(life, false, seconds(1000), MOST).is_some() })
        );
    }

    #[test]
    fn a_long_lease_of_no_use_is_revoked_and_a_short_one_is_left_alone() {
        let mut pools = Pools::default();
        let now = seconds(DAY);
        pools.discard(1, SOON);
        pools.discard(2, DAY);
        // Too old to be relied on, and one more than is wanted.
        pools.put_back(spare(3, DAY, Duration::ZERO), now, MOST);
        pools.put_back(spare(4, DAY, now), now, 1);
        pools.put_back(spare(5, DAY, now), now, 1);
        // The caller does not trust what is at hand.
        assert_eq!(pools.take(DAY, true, now, MOST), None);
        assert_eq!(pools.upkeep(now, MOST).to_revoke, [2, 3, 5, 4]);
        for id in 0..2 * MAX_TO_REVOKE as i64 {
            pools.discard(id, DAY);
        }
        assert_eq!(pools.to_revoke.len(), MAX_TO_REVOKE);
    }
}
