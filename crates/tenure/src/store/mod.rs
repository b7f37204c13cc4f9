//! The store: versioned objects, atomic commits, time to live, watch.
//!
//! [`Store`] is what callers hold. It validates a request against the backend's limits and
//! capabilities once, for all backends, bounds it in time, and passes it on to a [`Backend`]. A
//! backend therefore implements six methods and never repeats a rule.
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

mod attachment;
mod backend;
mod bounded;
mod capabilities;
mod closing;
mod commit;
pub mod decide;
pub mod faulty;
mod feed;
pub mod file;
mod handle;
mod helpers;
pub mod home;
pub mod hosttime;
mod labels;
pub mod local;
pub mod measured;
pub mod memory;
pub mod prefixed;
mod query;
mod retry;
mod selector;
mod typed;
pub mod wake;
mod watch;
mod writers;

pub use attachment::Attachment;
pub use backend::{Backend, Touch, Touched};
pub use capabilities::{
    Capabilities, Capability, Durability, ExpiryClock, LEASES, Notifies, Reach, Ttl,
};
pub use commit::{
    Check, Commit, Committed, Delete, Expect, Fence, Put, Write, WriteResult, Written,
};
pub use feed::{Feed, FeedLimits, History};
pub use handle::Store;
pub use helpers::{CasOutcome, CreateOutcome, WriteCondition};
pub use labels::labels_of_json;
pub use query::{IdRange, Page, Query};
pub use retry::RetryPolicy;
pub use selector::{Requirement, Selector};
pub use typed::{Codec, Json, ObjectMeta, Protobuf, Typed};
pub use watch::{Batch, Cause, Event, Progress, Watch, WatchRequest};
pub use writers::{WRITER_LEVEL, check_writer};
