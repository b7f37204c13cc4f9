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

// What a program holds leases through, and what its parts share.
mod coordinator;
mod inner;
mod metrics;
mod nonces;
mod options;
mod runtime;

// What people say and read: what is held by whom, on which terms, and how it is written down.
mod hooks;
mod loss;
mod owner;
mod record;
mod scope;
mod terms;

// A lease from its beginning to its end.
mod acquire;
mod end;
mod hold;
mod queue;

// Leases held for owners elsewhere; seeing who holds, held and leads; the smallest use of a lease.
mod recipe;
mod remote;
mod view;

pub use acquire::multi::{Leases, MAX_SCOPES};
pub use acquire::slots::{MAX_SLOTS, SlotInfo, SlotLease, Slots, SlotsSize};
pub use coordinator::{Builder, Coordinator, Status};
pub use end::handover_request::HandOverRequest;
pub use end::release::Outcome as ReleaseOutcome;
pub use hold::lease::Lease;
pub use hold::observer::LeaseObserver;
pub use hold::timing::Timing;
pub(crate) use hold::timing::margin;
pub use hooks::{HookContext, Hooks, LeaseRef, ReapHook};
pub use loss::Loss;
pub use metrics::{EndLabels, LeaseMetrics};
pub use options::Options;
pub use owner::Owner;
pub use recipe::{
    LEASE_ACQUIRE_INTERVAL, LEASE_RENEWAL_INTERVAL, LEASE_TTL, LeaseGuard, ReconcilerLease,
};
pub use record::{
    HAND_OVER, LEASE, LeaseInfo, LeaseRecord, Metadata, ORPHAN, READERS, REVOKED, SLOTS, WAITER,
    WaiterInfo, WaiterRecord, lease_key,
};
pub use remote::grant::{LeaseGrant, Renewed};
pub use runtime::Spawn;
pub use scope::{Namespace, Scope};
pub use terms::{Terms, Wait};
pub use view::election::Election;
pub use view::history::{History, Older, PastTenure, TenureEnd};
pub use view::watch::{LeaseBatch, LeaseEvent, LeaseWatch};
