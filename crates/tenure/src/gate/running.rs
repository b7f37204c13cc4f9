//! The loops of one term while they run, and the order in which everything stops.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{AbortHandle, Abortable};
use tokio::sync::{mpsc, watch};

use super::{End, Term, Work};
use crate::clock::SharedClock;
use crate::lease::{Coordinator, Lease, Spawn};

/// A loop that came to its end.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) name: Arc<str>,
    pub(super) how: &'static str,
}

/// Loops that run, and the lease under which they do.
pub(super) struct Running {
    coordinator: Coordinator,
    lease: Option<Arc<Lease>>,
    clock: SharedClock,
    over: watch::Sender<bool>,
    handles: Vec<AbortHandle>,
    ended: mpsc::UnboundedReceiver<Ended>,
    /// Loops that have not ended.
    left: usize,
}

impl Running {
    /// Starts every loop.
    pub(super) fn start(
        coordinator: &Coordinator,
        lease: Option<Arc<Lease>>,
        work: &[(Arc<str>, Work)],
        home: Option<Arc<dyn Spawn>>,
    ) -> Self {
        let clock = Arc::clone(coordinator.store().clock());
        let (over, told) = watch::channel(false);
        // As many messages as loops, so it is bounded.
        let (tell, ended) = mpsc::unbounded_channel();
        let mut handles = Vec::new();
        for (name, work) in work {
            let term = Term { lease: lease.clone(), over: told.clone(), clock: Arc::clone(&clock) };
            let (handle, registration) = AbortHandle::new_pair();
            handles.push(handle);
            // Inside the task, so that a factory that panics is a loop that panicked.
            let (work, name, tell) = (Arc::clone(work), Arc::clone(name), tell.clone());
            let task = async move {
                // In a block of its own, so that a loop that panics as it is dropped is one, too.
                let task = async move {
                    Abortable::new(async move { work(term).await }, registration).await
                };
                let how = match AssertUnwindSafe(task).catch_unwind().await {
                    Ok(Ok(())) => "returned",
                    Ok(Err(_)) => "was stopped",
                    Err(_) => "panicked",
                };
                // Only now, with everything of the loop dropped, has it ended.
                let _ = tell.send(Ended { name, how });
            };
            match &home {
                Some(home) => home.spawn(Box::pin(task)),
                None => drop(tokio::spawn(task)),
            }
        }
        let left = handles.len();
        Self { coordinator: coordinator.clone(), lease, clock, over, handles, ended, left }
    }

    /// Resolves when the lease is lost or somebody else is to have it, or when a loop ends by itself.
    pub(super) async fn end(&mut self) -> End {
        let lease = self.lease.clone();
        let over = async move {
            let Some(lease) = lease else { return std::future::pending().await };
            tokio::select! {
                biased;
                loss = lease.lost() => End::Lost(loss),
                request = lease.asked_to_hand_over() => End::Asked(request),
            }
        };
        tokio::select! {
            biased;
            end = over => end,
            Some(ended) = self.ended.recv() => {
                self.left -= 1;
                End::Ended(ended)
            }
        }
    }

    /// Tells every loop to stop, waits for them, and after `patience` drops them at their next
    /// await. Whether all have stopped; one that blocks its thread cannot be dropped, and is waited
    /// for once more as long.
    pub(super) async fn stop(&mut self, patience: Duration) -> bool {
        self.over.send_replace(true);
        if self.all_ended(patience).await {
            return true;
        }
        if !patience.is_zero() {
            tracing::warn!(left = self.left, "loops did not stop when told; dropping them");
        }
        self.handles.iter().for_each(AbortHandle::abort);
        self.all_ended(patience.max(Duration::from_secs(1))).await
    }

    async fn all_ended(&mut self, patience: Duration) -> bool {
        let until = self.clock.sleep(patience);
        tokio::pin!(until);
        while self.left > 0 {
            tokio::select! {
                biased;
                ended = self.ended.recv() => match ended {
                    Some(_) => self.left -= 1,
                    // Their runtime is gone, and they with it.
                    None => self.left = 0,
                },
                () = &mut until => return false,
            }
        }
        true
    }

    /// Resolves when the last loop has ended, however long that takes.
    pub(super) async fn all_stopped(&mut self) {
        while self.left > 0 && self.ended.recv().await.is_some() {
            self.left -= 1;
        }
    }

    /// Lets go of the lease, for `successor` if there is one. All loops must have ended.
    pub(super) async fn finish(mut self, successor: Option<String>) {
        let Some(lease) = self.lease.take() else { return };
        let Some(mut lease) = Arc::into_inner(lease) else {
            // Something a loop started still has the term, and so perhaps still works.
            return tracing::warn!("a loop has passed its term on; the lease goes when that ends");
        };
        if let Some(to) = successor {
            lease = match lease.hand_over(&to).await {
                Ok(()) => return tracing::info!(to, "handed over"),
                // The successor has gone; the next in the queue is as good.
                Err((lease, error)) => {
                    tracing::warn!(to, %error, "not handed over but released");
                    lease
                }
            };
        }
        if let Err(error) = lease.release().await {
            tracing::debug!(%error, "the lease of the ended term was not there to release");
        }
    }

    /// Keeps the lease for as long as the process lives: the work may still be going on.
    pub(super) fn abandon(mut self) {
        self.handles.iter().for_each(AbortHandle::abort);
        if let Some(lease) = self.lease.take() {
            // Renewed until the process ends, so that nobody else starts beside the stuck loop.
            std::mem::forget(lease);
        }
    }

    /// A mistake that is planted.
    pub(super) async fn release_early(&mut self) {
        if let Some(lease) = &self.lease {
            lease.release_in_place().await;
        }
    }
}

impl Drop for Running {
    /// The gate was dropped halfway: the loops go, and once they are gone, the lease.
    fn drop(&mut self) {
        self.handles.iter().for_each(AbortHandle::abort);
        let Some(lease) = self.lease.take() else { return };
        let (_, none) = mpsc::unbounded_channel();
        let mut ended = std::mem::replace(&mut self.ended, none);
        let mut left = self.left;
        self.coordinator.inner().clean_up(async move {
            while left > 0 && ended.recv().await.is_some() {
                left -= 1;
            }
            drop(lease);
        });
    }
}
