//! The runtime that the store's own work runs on.
//!
//! Calls, connections and the watch must go on when the caller's runtime is busy or blocked, or leases
//! would not be renewed and would be lost. So all of them run on a small runtime of their own. A caller that
//! goes away abandons the answer and not the call: what the API server says is still recorded.
//!
//! It has two threads, because a kubeconfig may name a program that hands out credentials, and the
//! client blocks a thread while it waits for it. The backends' common runtime has one.

use std::future::Future;

use tenure::{Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::BACKEND;

/// A runtime on threads of its own. It ends when this is dropped, and its tasks with it.
pub(crate) struct StoreRuntime {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl StoreRuntime {
    pub(crate) fn start() -> Result<Self> {
        let failed = |error| Error::unavailable(BACKEND, format!("no thread to work on: {error}"));
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tenure-kubernetes")
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("tenure-kubernetes-runtime".into())
            .spawn(move || {
                // Resolves when the sender is dropped, which is all that ever happens to it.
                let _ = runtime.block_on(ended);
                // An exec plugin that hangs must not keep the program from ending.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Self { handle, _end: end })
    }

    /// Starts work that nobody waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Runs work here and waits for its answer.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match self.handle.spawn(work).await {
            Ok(answer) => answer,
            Err(error) => Err(Error::unknown(BACKEND, format!("the work was cut short: {error}"))),
        }
    }
}
