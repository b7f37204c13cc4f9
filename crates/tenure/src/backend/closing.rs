//! A handle that was closed: it refuses every call and its watches end, whatever its backend does.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;
use tokio::sync::watch;

use crate::store::Watch;
use crate::{Error, Result};

/// Whether a handle was closed. Its clones share it.
#[derive(Clone)]
pub(crate) struct Closing(Arc<watch::Sender<bool>>);

impl Closing {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn close(&self) {
        self.0.send_replace(true);
    }

    /// Goes on only if it is open.
    pub(crate) fn check(&self, backend: &'static str) -> Result<()> {
        if *self.0.borrow() { Err(closed(backend)) } else { Ok(()) }
    }

    /// Resolves when it is closed, with what every call is told from then on.
    pub(crate) async fn closed(&self, backend: &'static str) -> Error {
        // It cannot fail: we hold the sender.
        let _ = self.0.subscribe().wait_for(|closed| *closed).await;
        closed(backend)
    }

    /// The same watch, which ends with the handle once there is nothing left to tell.
    pub(crate) fn ends(&self, watch: Watch, backend: &'static str) -> Watch {
        let told = self.0.subscribe();
        let next = move |running: Option<(Watch, watch::Receiver<bool>)>| async move {
            let (mut watch, mut told) = running?;
            let batch = tokio::select! {
                biased;
                batch = watch.next() => batch?,
                // A handle that is dropped is not closed: its backend decides about its watches.
                Ok(_) = told.wait_for(|closed| *closed) => Err(closed(backend)),
            };
            let running = batch.is_ok().then_some((watch, told));
            Some((batch, running))
        };
        watch.through(|watch| stream::unfold(Some((watch, told)), next).boxed())
    }
}

fn closed(backend: &'static str) -> Error {
    Error::unavailable(backend, "this handle was closed; open the store again")
}
