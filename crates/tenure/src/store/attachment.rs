//! Work of the caller's own that rides along in a commit's transaction.
//!
//! Only a backend whose transactions the caller can enter understands an attachment: the SQL
//! stores, each of which offers a function that wraps a closure over its connection. The contract
//! only carries it there, and refuses it anywhere else.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Something one backend runs inside the transaction of a commit: all of it applies with the commit,
/// or none of it does. It may run more than once until a transaction commits.
#[derive(Clone)]
pub struct Attachment {
    backend: &'static str,
    work: Arc<dyn Any + Send + Sync>,
}

impl Attachment {
    /// Work for the backend of this name. Called by the crates that implement backends.
    pub fn new(backend: &'static str, work: impl Any + Send + Sync) -> Self {
        Self { backend, work: Arc::new(work) }
    }

    /// The only backend that can run it.
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// The work, if it is what the backend knows how to run.
    pub fn work<T: Any>(&self) -> Option<&T> {
        self.work.downcast_ref()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl PartialEq for Attachment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.work, &other.work)
    }
}

impl Eq for Attachment {}
