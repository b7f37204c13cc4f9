//! The thread that the connection lives on.
//!
//! Requests, replies and the pump must go on when the caller's runtime is busy or blocked: a lease
//! that is not renewed because somebody computes for a minute is lost. So the client and everything
//! that it starts run on a small runtime of their own.

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
            .name("tenure-nats".into())
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
