//! Progress of a watch: the revision it has reached, told now and then while no event matches.
//!
//! A store keeps its history for a while. A client that watches something quiet gets no events, and would
//! come back after a broken connection with a revision that is no longer kept. So it is told the present
//! revision at intervals, if there is a new one. etcd calls this a progress notification.

use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use tenure::lease::LeaseWatch;
use tenure::store::Watch;
use tokio::time::MissedTickBehavior;

/// Short beside the time that a busy store keeps its history for, long beside what a notification costs.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// A watch that knows how far it has come.
pub(crate) trait Progress: Stream + Unpin + Send + 'static {
    fn told(&self) -> u64;
}

impl Progress for Watch {
    fn told(&self) -> u64 {
        self.told()
    }
}

impl Progress for LeaseWatch {
    fn told(&self) -> u64 {
        self.told()
    }
}

/// An item of a watch with progress.
pub(crate) enum Item<T> {
    /// Of the watch itself.
    Event(T),
    /// Everything up to this revision has been told.
    Progress(u64),
}

/// A watch with its progress.
pub(crate) fn with_progress<W: Progress>(watch: W) -> impl Stream<Item = Item<W::Item>> + Send {
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let known = watch.told();
    stream::unfold((watch, ticks, known), |(mut watch, mut ticks, mut known)| async move {
        loop {
            tokio::select! {
                biased;
                next = watch.next() => {
                    known = watch.told();
                    return Some((Item::Event(next?), (watch, ticks, known)));
                }
                _ = ticks.tick() => {
                    let told = watch.told();
                    if told > known {
                        return Some((Item::Progress(told), (watch, ticks, told)));
                    }
                }
            }
        }
    })
}
