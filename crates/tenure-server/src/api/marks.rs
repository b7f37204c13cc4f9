//! Marks: how far a watch has come while nothing that it wants happens.
//!
//! A store keeps its history for a while. Whoever watches something quiet hears nothing, and would come back
//! after a break with a revision that is long gone. So it is told the present one now and then, if there
//! is a new one.

use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use tenure::lease::LeaseWatch;
use tenure::store::Watch;
use tokio::time::MissedTickBehavior;

/// Short beside the time that a busy store keeps its history for, long beside what a mark costs.
const MARK_EVERY: Duration = Duration::from_secs(5);

/// A watch that knows how far it has come.
pub(crate) trait Tells: Stream + Unpin + Send + 'static {
    fn told(&self) -> u64;
}

impl Tells for Watch {
    fn told(&self) -> u64 {
        self.told()
    }
}

impl Tells for LeaseWatch {
    fn told(&self) -> u64 {
        self.told()
    }
}

/// What a watch or a mark tells.
pub(crate) enum Told<T> {
    Happened(T),
    /// Everything up to this revision has been told.
    UpTo(u64),
}

/// A watch with marks.
pub(crate) fn marked<W: Tells>(watch: W) -> impl Stream<Item = Told<W::Item>> + Send {
    let mut marks = tokio::time::interval(MARK_EVERY);
    marks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let known = watch.told();
    stream::unfold((watch, marks, known), |(mut watch, mut marks, mut known)| async move {
        loop {
            tokio::select! {
                biased;
                next = watch.next() => {
                    known = watch.told();
                    return Some((Told::Happened(next?), (watch, marks, known)));
                }
                _ = marks.tick() => {
                    let told = watch.told();
                    if told > known {
                        return Some((Told::UpTo(told), (watch, marks, told)));
                    }
                }
            }
        }
    })
}
