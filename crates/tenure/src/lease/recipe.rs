//! The reconciler lease: the smallest use of a lease, on one documented record, by hand.
//!
//! Kind `reconciler_lease`, id `singleton`, name `reconciler-lease`, payload
//! `{"holder": …, "acquired_at_ms": …, "nonce": …}`. Nothing renews it in the background and nobody
//! waits in the queue: the caller renews every third of its life and a standby tries every few seconds.
//! Programs that want more use a [`crate::lease::Coordinator`] or a [`crate::gate::Gate`].
//!
//! It differs from the usual hand-written one in four ways that matter. The store's clock judges
//! expiry, so an expired record is absent and stealing it is acquiring it. The token of the guard is
//! drawn from the store's one counter and never repeats, whatever was released or deleted between.
//! The guard knows the local instant at which it has to stop. And an acquisition whose reply was lost
//! is told by its own nonce from an earlier one of the same replica.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::record::{decode, encode};
use crate::lease::{Owner, Timing};
use crate::random::nonce;
use crate::store::{Commit, Expect, Fence, Put, Store, Touch, WriteResult};
use crate::{Error, Key, Object, Result};

/// The life of the lease.
pub const LEASE_TTL: Duration = Duration::from_secs(30);
/// How often its holder renews it.
pub const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// How often a standby tries.
pub const LEASE_ACQUIRE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    holder: String,
    acquired_at_ms: i64,
    /// Drawn for this acquisition alone.
    #[serde(default)]
    nonce: String,
}

/// The one lease of all reconcilers on a store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::lease::ReconcilerLease;
/// use tenure::store::memory::MemoryStore;
///
/// let store = MemoryStore::new().into_store();
/// let here = ReconcilerLease::new(store.clone(), "gateway-0")?;
/// let there = ReconcilerLease::new(store, "gateway-1")?;
///
/// let mut guard = here.acquire_or_steal().await?;
/// assert_eq!(there.try_steal_expired().await.unwrap_err().code(), "held");
/// guard.renew().await?;
/// guard.release().await?;
/// there.try_acquire().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReconcilerLease {
    store: Store,
    owner: Owner,
    ttl: Duration,
    key: Key,
    name: String,
}

impl ReconcilerLease {
    /// The lease as this replica sees it. Two replicas of one name are still two holders.
    pub fn new(store: Store, replica_id: &str) -> Result<Self> {
        let owner = Owner::new(replica_id, &**store.random())?;
        Ok(Self {
            store,
            owner,
            ttl: LEASE_TTL,
            key: Key::new("reconciler_lease", "singleton"),
            name: "reconciler-lease".into(),
        })
    }

    /// Another life than [`LEASE_TTL`].
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Another record than the documented one, for a second lease of the same make.
    #[must_use]
    pub fn record(mut self, key: Key, name: impl Into<String>) -> Self {
        (self.key, self.name) = (key, name.into());
        self
    }

    /// Acquires it if nobody holds it.
    ///
    /// # Errors
    /// [`Error::Held`] if somebody does.
    pub async fn try_acquire(&self) -> Result<LeaseGuard> {
        let record = Record {
            holder: self.owner.to_string(),
            acquired_at_ms: self.store.clock().wall_ms(),
            nonce: nonce(&**self.store.random()),
        };
        let mut put =
            Put::new(self.key.clone(), encode(&record)).expect(Expect::Absent).ttl(self.ttl);
        if self.store.capabilities().names {
            put = put.name(&self.name);
        }
        let sent = self.store.clock().uptime();
        let result = match self.store.commit(put).await {
            Ok(committed) => committed.first_put(),
            Err(Error::AlreadyExists { .. }) => match self.present().await? {
                Some((object, present)) => return Err(self.held(&object, present.holder)),
                // It ended at this very moment; the next try will tell.
                None => {
                    return Err(Error::unavailable(
                        self.store.capabilities().backend,
                        "the lease changed hands; try again",
                    ));
                }
            },
            // Ours if this very nonce is in it. Our name is not enough: what we acquired earlier may
            // still be there, and ends earlier.
            Err(error) if error.is_unknown() => match self.present().await {
                Ok(Some((object, present))) if present.nonce == record.nonce => {
                    return self.found_again(&object, error).await;
                }
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        };
        let backend = self.store.capabilities().backend;
        let result =
            result.ok_or_else(|| Error::unknown(backend, "no word of what was written"))?;
        Ok(self.guard(result, sent))
    }

    /// The acquisition whose answer was lost. Finding its nonce tells that it is held, not for how
    /// long: its life is started anew, and counts from there.
    async fn found_again(&self, object: &Object, doubt: Error) -> Result<LeaseGuard> {
        let mut guard = self.guard(WriteResult::from(object), Duration::ZERO);
        guard.renew().await.map_err(|_| doubt)?;
        Ok(guard)
    }

    /// Acquires it if its holder let it expire. For the store that is the same as if nobody held
    /// it, so this differs from [`ReconcilerLease::try_acquire`] in name only.
    pub async fn try_steal_expired(&self) -> Result<LeaseGuard> {
        self.try_acquire().await
    }

    /// Acquires it one way or the other.
    pub async fn acquire_or_steal(&self) -> Result<LeaseGuard> {
        self.try_acquire().await
    }

    async fn present(&self) -> Result<Option<(Object, Record)>> {
        let Some(object) = self.store.get(&self.key).await? else { return Ok(None) };
        let record = decode(&object, self.store.capabilities().backend)?;
        Ok(Some((object, record)))
    }

    fn held(&self, object: &Object, holder: String) -> Error {
        Error::Held {
            scope: self.key.to_string(),
            holder: Some(holder),
            token: object.token,
            expires_in: object.expires_in.unwrap_or_default(),
        }
    }

    fn guard(&self, result: WriteResult, sent: Duration) -> LeaseGuard {
        let timing = Timing::new(result.ttl.unwrap_or(self.ttl), None);
        LeaseGuard {
            store: self.store.clone(),
            key: self.key.clone(),
            token: result.token,
            revision: result.revision,
            timing,
            valid_until: timing.valid_until(sent),
        }
    }
}

/// Proof that this replica holds the lease, for as long as it is valid. Not released on drop.
#[derive(Debug)]
#[must_use = "a guard that is neither renewed nor released blocks others until it expires"]
pub struct LeaseGuard {
    store: Store,
    key: Key,
    token: u64,
    revision: u64,
    timing: Timing,
    valid_until: Duration,
}

impl LeaseGuard {
    /// Greater than that of every earlier holder.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether the holder may act now, by this machine's clock alone.
    pub fn is_valid(&self) -> bool {
        self.store.clock().uptime() < self.valid_until
    }

    /// The uptime after which the holder must not act.
    pub fn valid_until(&self) -> Duration {
        self.valid_until
    }

    /// What to put on a commit that must not apply once the lease is lost.
    pub fn fence(&self) -> Fence {
        Fence::new(self.key.clone(), self.token)
    }

    /// Starts its life anew. After an error that is not [`Error::Lost`], try again while
    /// [`LeaseGuard::is_valid`].
    pub async fn renew(&mut self) -> Result<()> {
        let sent = self.store.clock().uptime();
        let touch = Touch { key: self.key.clone(), revision: self.revision, ttl: self.timing.ttl };
        let mut results = self.store.touch(vec![touch]).await?;
        match results.pop() {
            Some(Ok(touched)) => {
                self.revision = touched.revision;
                self.valid_until = self.valid_until.max(self.timing.valid_until(sent));
                Ok(())
            }
            Some(Err(Error::NotFound { .. } | Error::Conflict { .. })) | None => {
                self.valid_until = Duration::ZERO;
                Err(Error::Lost { key: self.key.clone(), token: self.token, current: None })
            }
            Some(Err(error)) => Err(error),
        }
    }

    /// Lets go, after the work has stopped. Nothing happens to somebody else's lease.
    pub async fn release(self) -> Result<()> {
        let delete = Commit::new().delete(self.key.clone(), Expect::Token(self.token));
        self.store.commit(delete).await.map(drop)
    }
}

impl From<&LeaseGuard> for Fence {
    fn from(guard: &LeaseGuard) -> Self {
        guard.fence()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{ManualClock, SystemClock};
    use crate::random::SystemRandom;
    use crate::store::faulty::{Fault, FaultPlan, Faulty, Operation};
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn the_documented_record_is_the_one_people_read() {
        let store = MemoryStore::new().into_store();
        let lease = ReconcilerLease::new(store.clone(), "gateway-0").unwrap();
        let before = store.clock().wall_ms();
        let guard = lease.acquire_or_steal().await.unwrap();
        let key = Key::new("reconciler_lease", "singleton");
        let object = store.get(&key).await.unwrap().unwrap();
        assert_eq!(
            (object.name.as_deref(), object.token),
            (Some("reconciler-lease"), guard.token())
        );
        assert_eq!(object.ttl, Some(Duration::from_secs(30)));
        let record: serde_json::Value = serde_json::from_slice(&object.payload).unwrap();
        assert_eq!(record["holder"], lease.owner.to_string());
        let since = record["acquired_at_ms"].as_i64().unwrap();
        assert!((before..=store.clock().wall_ms()).contains(&since), "{record}");
        // One that a program without nonces has written is read as well.
        let old = r#"{"holder":"gateway-1#1","acquired_at_ms":7}"#;
        store.commit(Put::new(key, old)).await.unwrap();
        let held = lease.try_acquire().await.unwrap_err();
        assert!(
            matches!(&held, Error::Held { holder: Some(who), .. } if who == "gateway-1#1"),
            "{held}"
        );
    }

    #[tokio::test]
    async fn what_was_found_again_counts_on_no_life_that_is_over() {
        let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
        let inner = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let faulty = Faulty::new(inner, Arc::clone(&plan), Arc::new(clock.clone()));
        let store = Store::new(faulty).with_clock(SystemClock::shared(), SystemRandom::shared());
        let lease = ReconcilerLease::new(store.clone(), "gateway-0").unwrap();
        plan.next(Operation::Commit, Fault::LostReply);
        plan.next(Operation::Get, Fault::Delay(LEASE_TTL / 2));
        let mut acquiring = Box::pin(lease.try_acquire());
        assert!(futures::poll!(&mut acquiring).is_pending(), "it looks whether it has it");
        // Half of the life is gone, and no clock of ours has counted it.
        clock.advance(LEASE_TTL / 2);
        let guard = acquiring.await.unwrap();
        let before = store.clock().uptime();
        let object = store.get(&Key::new("reconciler_lease", "singleton")).await.unwrap().unwrap();
        let (believed, freed) = (guard.valid_until(), before + object.expires_in.unwrap());
        assert!(believed <= freed, "for {:?} longer than it is granted", believed - freed);
        guard.release().await.unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_looked_up_stays_unknown() {
        let (plan, inner) = (FaultPlan::scripted(), Arc::new(MemoryStore::new()));
        let store = Store::new(Faulty::new(inner, Arc::clone(&plan), SystemClock::shared()));
        let lease = ReconcilerLease::new(store, "gateway-0").unwrap();
        plan.next(Operation::Commit, Fault::LostReply);
        plan.next(Operation::Get, Fault::Error);
        let told = lease.try_acquire().await.unwrap_err();
        assert!(told.is_unknown(), "{told:?}: it may have been acquired");
    }
}
