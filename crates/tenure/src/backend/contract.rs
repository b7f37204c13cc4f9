//! The contract a backend implements.

use std::time::Duration;

use async_trait::async_trait;

#[cfg(doc)]
use crate::store::Store;
use crate::store::{
    Capabilities, Commit, Committed, Page, Query, Touch, Touched, Watch, WatchRequest,
};
use crate::{Key, Object, Result};

/// One place where objects are kept.
///
/// Requests arrive validated against [`Capabilities::limits`] and against what the backend declares
/// to support; [`Store`] sees to that. Dropping a future abandons the wait, not necessarily
/// the work: a commit whose future was dropped may still be applied.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What this backend does atomically, how durable it is, and its limits.
    fn capabilities(&self) -> &Capabilities;

    /// The object, if it is there and has not expired.
    ///
    /// Linearizable: sees every commit acknowledged before the call.
    async fn get(&self, key: &Key) -> Result<Option<Object>>;

    /// One page of objects in bytewise order of id, with the store's revision at that instant.
    ///
    /// Across pages, an object that exists throughout appears exactly once.
    async fn list(&self, query: &Query) -> Result<Page>;

    /// Applies all writes if all conditions hold, at one instant, else nothing.
    ///
    /// The error is that of the first condition that fails, checks before writes, each in order,
    /// then of the first name that is taken. [`crate::Error::Unknown`] is the only error after which
    /// something may have been applied.
    async fn commit(&self, commit: Commit) -> Result<Committed>;

    /// The longest that a commit takes, where the backend sees to that itself; [`Store`] then
    /// sets no timer of its own, unless it was told to wait less than this.
    fn commit_within(&self) -> Option<Duration> {
        None
    }

    /// Starts the life of each object anew, if its revision is still the one given.
    ///
    /// Items stand alone: one that fails does not hold up the others. Changes no version and, where
    /// [`Capabilities::touch_keeps_revision`], no revision; watchers are not woken then.
    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>>;

    /// Everything that happens after the given revision, in order, nothing missed, nothing twice.
    async fn watch(&self, request: &WatchRequest) -> Result<Watch>;

    /// Finishes what was accepted and stops background work. [`Store`] refuses later calls and
    /// ends the watches of a handle that was closed.
    async fn close(&self) {}
}
