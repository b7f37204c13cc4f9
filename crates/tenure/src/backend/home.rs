//! The thread that a backend's own work runs on.
//!
//! Connections, the grouping of commits, renewals and what feeds watchers must go on when the caller's
//! runtime is busy or blocked: a lease that is not renewed because the program computes for a minute is
//! lost. So they live on a small runtime of their own, which also outlives the runtime that the store
//! was opened from.
//!
//! A request can also be answered on the caller's own runtime: that it asks shows that it runs, and two
//! changes of threads are saved. [`Home::here`] is for that.

use std::future::Future;
use std::sync::{Arc, Weak};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Error, Result};

/// A runtime on a thread of its own, or the caller's.
pub struct Home {
    handle: Handle,
    /// Gone when the runtime is, if it is the caller's.
    running: Weak<()>,
    /// Dropped with us: the cue for a thread of our own to end, and its tasks with it.
    _end: Option<oneshot::Sender<()>>,
}

impl Home {
    /// Starts a thread, named after the backend. It ends when this is dropped.
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
        Ok(Self { handle, running: Weak::new(), _end: Some(end) })
    }

    /// The runtime that this is called on, which neither ends with this nor waits for it.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn here() -> Self {
        let (handle, running) = (Handle::current(), Arc::new(()));
        let told = Arc::downgrade(&running);
        handle.spawn(async move {
            std::future::pending::<()>().await;
            drop(running);
        });
        Self { handle, running: told, _end: None }
    }

    /// Whether this is the caller's runtime, this is called on it, and it still runs.
    pub fn is_here(&self) -> bool {
        let id = self.handle.id();
        self.running.strong_count() > 0 && Handle::try_current().is_ok_and(|here| here.id() == id)
    }

    /// Runs work there.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(work)
    }
}
