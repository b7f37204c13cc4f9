//! The thread that connections live on.
//!
//! Renewals must get through while the caller's runtime is busy or blocked, and a connection must
//! outlive the runtime it happened to be opened from. So the sockets, and the streams that carry
//! keep-alives, live on a small runtime of the store's own.

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
            .name("tenure-etcd".into())
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
