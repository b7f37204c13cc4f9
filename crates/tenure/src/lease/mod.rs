//! Leases: a scope held by one owner until a deadline, with a fencing token.
//!
//! A lease is an object with a time to live, so there is one implementation for all stores. What
//! holds for every lease (G1–G9 of `docs/guarantees.md`):
//!
//! - At every instant of the store's clock a scope has at most one valid holder, and a later
//!   holder's token is greater than every earlier one's, for ever.
//! - The holder knows a local instant after which it must not act. It counts from before the request
//!   left, on a clock no one can step, and it stops by itself then, whatever the store does.
//! - A commit [fenced](crate::store::Commit::fenced_by) by a lease never applies once it is lost.
//! - Renewals run on a thread of their own, many leases in one round trip, and are tried again until
//!   the deadline. Loss is told once, with its reason.
//! - Waiters are served in the order they came, one attempt per release, and cost the store nothing
//!   while they wait.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::lease::{Coordinator, Terms};
//! use tenure::{Key, store::{Commit, Put, memory::MemoryStore}};
//!
//! let store = MemoryStore::new().into_store();
//! let coordinator = Coordinator::new(store.clone())?;
//! let scope = "billing.nightly/close".parse()?;
//!
//! let lease = coordinator.acquire(&scope, &Terms::new().ttl(Duration::from_secs(30))).await?;
//! let books = Put::new(Key::new("books", "2026-11"), "closed");
//! store.commit(Commit::from(books).fenced_by(&lease)).await?;
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```

// What people say and read: what is held by whom, on which terms, and how it is written down.
mod loss;
mod metrics;
mod options;
mod owner;
mod record;
mod scope;
mod terms;
mod timing;

// What a program holds leases through, and what its parts share.
mod agent;
mod coordinator;
mod home;
mod nonces;

// Acquiring: what is claimed, one try at it, one commit, and waiting for it.
mod acquire;
mod claim;
mod hooks;
mod patience;
mod several;
mod shared;
mod slots;
mod take;
mod trying;

// The line: a place in it, who is called when, and the task that listens.
mod line;
mod lines;
mod ticket;
mod turn;
mod usher;
mod waiters;

// Holding: what is known of a tenure, its handle, and renewing it in time.
mod handle;
mod heartbeat;
mod held;
mod renewal;
mod schedule;
mod witness;

// Letting go: released, revoked, handed over, also if asked to; and what is left to reap.
mod asking;
mod handing;
mod leaving;
mod reap;
mod release;

// Leases of owners who are elsewhere.
mod deed;
mod deeds;
mod keep_alive;

// Seeing who holds, held and leads; and the smallest use of a lease.
mod election;
mod history;
mod recipe;
mod watching;

#[cfg(test)]
mod asking_tests;
#[cfg(test)]
mod asleep_tests;
#[cfg(test)]
mod blind_tests;
#[cfg(test)]
mod crowd_tests;
#[cfg(test)]
mod handing_tests;
#[cfg(test)]
mod holding_tests;
#[cfg(test)]
mod take_tests;

pub use asking::HandOverRequest;
pub use coordinator::{Builder, Coordinator, Status};
pub use deed::{Deed, Renewed};
pub use election::Election;
pub use handle::Lease;
pub use history::{History, Older, PastTenure, TenureEnd};
pub use home::Spawn;
pub use hooks::{Draft, Hooks, ReapHook, Subject};
pub use loss::Loss;
pub use metrics::{EndLabels, LeaseMetrics};
pub use options::Options;
pub use owner::Owner;
pub use recipe::{
    LEASE_ACQUIRE_INTERVAL, LEASE_RENEWAL_INTERVAL, LEASE_TTL, LeaseGuard, ReconcilerLease,
};
pub use record::{
    HAND_OVER, LEASE, LeaseInfo, LeaseRecord, Metadata, READERS, REMAINS, REVOKED, SLOTS, WAITER,
    WaiterInfo, WaiterRecord, lease_key,
};
pub use release::Outcome as ReleaseOutcome;
pub use scope::{Namespace, Scope};
pub use several::{Leases, MAX_SCOPES};
pub use slots::{MAX_SLOTS, SlotInfo, SlotLease, Slots, SlotsSize};
pub use terms::{Terms, Wait};
pub use timing::Timing;
pub(crate) use timing::margin;
pub use watching::{LeaseBatch, LeaseEvent, LeaseWatch};
pub use witness::Witness;
