//! How far a watch has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a watch has come, shared by its feeder and its reader.
#[derive(Clone, Debug)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// A watch that begins behind this revision.
    pub fn new(start: u64) -> Self {
        Self(Arc::new(AtomicU64::new(start)))
    }

    /// Everything that the watch wants up to this revision has been handed out.
    pub fn reach(&self, revision: u64) {
        self.0.fetch_max(revision, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
