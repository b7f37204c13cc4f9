//! What happens to leases, told from their objects.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{BoxStream, Stream, StreamExt};

use crate::Result;
use crate::lease::Coordinator;
use crate::lease::record::{LEASE, LeaseInfo};
use crate::store::{Batch, Cause, Event, Watch, WatchRequest};

/// What happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// It has a holder, or its holder changed something about it. The token tells which.
    Held(LeaseInfo),
    /// It has none any more.
    Ended {
        /// The id of the lease object.
        id: String,
        /// Why.
        cause: Cause,
        /// The holder it had, where the store remembers.
        last: Option<LeaseInfo>,
    },
}

/// What one commit did to leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseBatch {
    /// The revision of the commit: a watch after it misses nothing and tells nothing twice.
    pub revision: u64,
    /// In the order of the commit.
    pub events: Vec<LeaseEvent>,
}

/// A watch of leases, commit by commit.
pub struct LeaseWatch {
    watch: Watch,
    backend: &'static str,
}

impl LeaseWatch {
    /// Everything after this revision is told.
    pub fn start(&self) -> u64 {
        self.watch.start()
    }

    /// Everything up to this revision has been told: a watch after it goes on where this one is.
    pub fn told(&self) -> u64 {
        self.watch.told()
    }
}

impl Stream for LeaseWatch {
    type Item = Result<LeaseBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let backend = self.backend;
        let batch = std::task::ready!(self.watch.poll_next_unpin(context));
        Poll::Ready(batch.map(|batch| Ok(read(&*batch?, backend))))
    }
}

fn read(batch: &Batch, backend: &'static str) -> LeaseBatch {
    let read = |event: &Event| match event {
        Event::Put(object) => LeaseInfo::listed(object, backend).map(LeaseEvent::Held),
        Event::Delete { key, cause, last } => Some(LeaseEvent::Ended {
            id: key.id.clone(),
            cause: *cause,
            last: last.as_ref().and_then(|last| LeaseInfo::read(last, backend).ok()),
        }),
    };
    LeaseBatch { revision: batch.revision, events: batch.events.iter().filter_map(read).collect() }
}

impl Coordinator {
    /// What happens to leases whose id starts with `prefix`, from now on or after a revision.
    pub async fn watch(
        &self,
        prefix: &str,
        after: Option<u64>,
    ) -> Result<BoxStream<'static, Result<LeaseEvent>>> {
        let batches = self.watch_batches(prefix, after).await?;
        let events = batches.flat_map(|batch| {
            let events: Vec<Result<LeaseEvent>> = match batch {
                Ok(batch) => batch.events.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            futures::stream::iter(events)
        });
        Ok(events.boxed())
    }

    /// The same, commit by commit, for a caller that wants to go on later where it stopped.
    pub async fn watch_batches(&self, prefix: &str, after: Option<u64>) -> Result<LeaseWatch> {
        let mut request = WatchRequest::kind(LEASE).prefix(prefix);
        request.after = after;
        let watch = self.inner.store.watch(&request).await?;
        Ok(LeaseWatch { watch, backend: self.inner.backend() })
    }
}
