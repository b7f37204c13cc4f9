//! The thread that a backend's own work runs on.
//!
//! Connections, the grouping of commits, renewals and what feeds watchers must go on when the caller's
//! runtime is busy or blocked: a lease that is not renewed because somebody computes for a minute is
//! lost. So they live on a small runtime of their own, which also outlives the runtime that the store
//! happened to be opened from.

use std::future::Future;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Error, Result};

/// A runtime on a thread of its own. It ends when this is dropped, and its tasks with it.
pub struct Home {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Home {
    /// Starts the thread, named after the backend.
    pub fn start(backend: &'static str) -> Result<Self> {
        let failed = |error| Error::unavailable(backend, format!("no thread to work on: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name(format!("tenure-{backend}"))
            .spawn(move || {
                // Resolves when the sender is dropped, which is all that ever happens to it.
                let _ = runtime.block_on(ended);
            })
            .map_err(failed)?;
        Ok(Self { handle, _end: end })
    }

    /// Runs work there.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(work)
    }
}
