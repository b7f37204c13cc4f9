//! Where a coordinator's background work runs: renewals, waiting in the queue, releases after a drop.
//!
//! In production that is a thread of its own with a small runtime, so that a program which blocks
//! its own runtime cannot starve the renewal of its leases. A simulation brings its own spawner.

use std::sync::Arc;
use std::thread;

use futures::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::{Error, Result};

/// Runs background tasks somewhere.
pub trait Spawn: Send + Sync + 'static {
    /// Starts a task that nobody waits for.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// A thread with a runtime of its own, which ends when this is dropped.
pub(crate) struct OwnThread {
    runtime: Handle,
    /// Dropped with us: the thread's woken to end.
    _stop: oneshot::Sender<()>,
}

impl OwnThread {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new()
            .name("tenure-leases".into())
            .spawn(move || {
                // An error is how a dropped sender shows, and all we wait for.
                let _ = runtime.block_on(stopped);
                // Whatever still blocks in there must not keep the program from ending.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Arc::new(Self { runtime: handle, _stop: stop }))
    }
}

impl Spawn for OwnThread {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::unavailable("this machine", format!("the thread for leases cannot be started: {error}"))
}
