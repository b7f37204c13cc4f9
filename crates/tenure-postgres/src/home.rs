//! The thread that the store's own work runs on.
//!
//! Sessions, the grouping of commits, renewals and the pump must go on when the caller's runtime is
//! busy or blocked: a lease that is not renewed because somebody computes for a minute is lost. So
//! they live on a small runtime of their own. It also keeps a session's socket and the worker that
//! uses it on one thread, which saves a hand-over between threads with every exchange.

use std::future::Future;

use tenure::{Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::BACKEND;

/// A runtime on a thread of its own. It ends when this is dropped, and its tasks with it.
pub(crate) struct Home {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Home {
    pub(crate) fn start() -> Result<Self> {
        let failed = |error| Error::unavailable(BACKEND, format!("no thread to work on: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("tenure-postgres".into())
            .spawn(move || {
                // Resolves when the sender is dropped, which is all that ever happens to it.
                let _ = runtime.block_on(ended);
            })
            .map_err(failed)?;
        Ok(Self { handle, _end: end })
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(work)
    }
}
