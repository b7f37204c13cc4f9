//! The store: versioned objects, atomic commits, time to live, watch.
//!
//! [`Store`] is what callers hold. It validates a request against the backend's limits and
//! capabilities once, for all backends, bounds it in time, and passes it on to a [`Backend`]. A
//! backend therefore implements six methods and never repeats a rule. What backends are made of is in
//! [`crate::backend`].
//!
//! What every backend promises:
//!
//! - **Atomic**: a commit's checks and writes happen at one instant, all or none of them.
//! - **Ordered**: every commit that changes something gets the next revision; revisions rise in
//!   commit order and never repeat, across deletes, restarts and compactions.
//! - **Expired is absent**: from the instant the store's clock reaches an object's expiry, no reader
//!   and no condition sees it. Watchers hear of it as a delete with its own revision soon after.
//! - **Durable as declared**: an acknowledged commit survives what [`Capabilities::durability`] says.
//! - **Fails closed**: what a backend cannot do atomically is [`crate::Error::Unsupported`].

#[cfg(doc)]
use crate::backend::Backend;

mod attachment;
mod capabilities;
mod commit;
pub mod faulty;
mod handle;
mod helpers;
pub mod measured;
pub mod memory;
pub mod prefixed;
mod query;
mod retry;
mod selector;
mod touch;
mod typed;
mod watch;

pub use attachment::Attachment;
pub use capabilities::{
    Capabilities, Capability, Durability, ExpiryClock, Kinds, Notifies, Reach, Ttl,
};
pub use commit::{
    Check, Commit, Committed, Delete, Expect, Fence, Put, Write, WriteResult, Written,
};
pub use handle::Store;
pub use helpers::{CasOutcome, CreateOutcome, WriteCondition};
pub use query::{IdRange, Page, Query};
pub use retry::RetryPolicy;
pub use selector::{Requirement, Selector};
pub use touch::{Touch, Touched};
pub use typed::{Codec, Json, ObjectMeta, Protobuf, Typed};
pub use watch::{Batch, Cause, Event, Watch, WatchRequest};
