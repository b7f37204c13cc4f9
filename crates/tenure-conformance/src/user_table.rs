//! A table of the user's own beside the store, as the suite sees it: it knows no SQL driver, so the
//! tests of a backend that runs SQL in its commits bring one of these.

use std::sync::Arc;

use futures::future::BoxFuture;
use tenure::store::Attachment;

/// What the user's SQL does once it has counted.
#[derive(Clone, Debug)]
pub enum Then {
    /// Nothing more: it applies with its commit.
    Apply,
    /// Says no with this error.
    Veto(tenure::Error),
    /// Runs a statement that fails.
    Fail,
    /// Panics.
    Panic,
}

/// Rows of a name and a number, in the database that the store lives in.
pub trait UserTable: Send + Sync + 'static {
    /// SQL for a commit: reads the row's number (none is 0), writes the next one, and goes on as told.
    fn count(&self, row: &str, then: Then) -> Attachment;

    /// The row's number as anybody sees it, outside of any commit; 0 if there is none.
    fn read(&self, row: &str) -> BoxFuture<'static, tenure::Result<u64>>;
}

/// A table to share.
pub type SharedTable = Arc<dyn UserTable>;
