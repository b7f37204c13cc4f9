//! What a watcher sees.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::{BoxStream, Stream, StreamExt};

use crate::backend::Progress;
use crate::{Key, Object, Result};

/// Why an object went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was deleted.
    Deleted,
    /// Its time to live ended.
    Expired,
    /// The backend does not say.
    Unspecified,
}

/// One change to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Created (version 1) or changed.
    Put(Arc<Object>),
    /// Gone.
    Delete {
        /// The object.
        key: Key,
        /// Why.
        cause: Cause,
        /// What it was, where the backend remembers. A commit that removes more than 4 MiB of payloads
        /// tells the rest by their keys alone.
        last: Option<Arc<Object>>,
    },
}

impl Event {
    /// The object concerned.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(object) => &object.key,
            Self::Delete { key, .. } => key,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Put(object) => object.size(),
            Self::Delete { last, .. } => last.as_ref().map_or(128, |object| object.size()),
        }
    }
}

/// All changes of one commit that the watcher asked for. A batch never splits a commit, so resuming
/// behind [`Batch::revision`] neither misses nor repeats anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The revision of the commit.
    pub revision: u64,
    /// In the order of the commit's writes.
    pub events: Vec<Event>,
}

impl Batch {
    pub(crate) fn size(&self) -> usize {
        32 + self.events.iter().map(Event::size).sum::<usize>()
    }
}

/// What to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// Only this kind; `None` for all.
    pub kind: Option<String>,
    /// Only ids that start with this.
    pub prefix: String,
    /// Everything after this revision; `None` for what happens from now on.
    pub after: Option<u64>,
}

impl WatchRequest {
    /// One kind, from now on.
    pub fn kind(kind: impl Into<String>) -> Self {
        Self { kind: Some(kind.into()), ..Self::default() }
    }

    /// Only ids that start with this.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Everything after this revision.
    #[must_use]
    pub fn after(mut self, revision: u64) -> Self {
        self.after = Some(revision);
        self
    }

    /// Whether the watcher wants to hear of this object.
    pub fn wants(&self, key: &Key) -> bool {
        self.kind.as_ref().is_none_or(|kind| *kind == key.kind) && key.id.starts_with(&self.prefix)
    }

    /// The part of a batch that the watcher wants; `None` if there is none. Shares the batch where
    /// all of it is wanted.
    pub fn filter(&self, batch: &Arc<Batch>) -> Option<Arc<Batch>> {
        let wanted = batch.events.iter().filter(|event| self.wants(event.key())).count();
        if wanted == 0 {
            return None;
        }
        if wanted == batch.events.len() {
            return Some(Arc::clone(batch));
        }
        let events = batch.events.iter().filter(|e| self.wants(e.key())).cloned().collect();
        Some(Arc::new(Batch { revision: batch.revision, events }))
    }
}

/// A running watch: a stream of batches. It survives reconnects by itself and ends after an error,
/// of which [`crate::Error::Compacted`] is the one to expect.
///
/// To go on later, watch after [`Watch::told`].
///
/// Keep the store for as long as you watch: closing it ends the watch with
/// [`crate::Error::Unavailable`], and so does dropping the last handle on most backends.
pub struct Watch {
    start: u64,
    progress: Progress,
    stream: BoxStream<'static, Result<Arc<Batch>>>,
    has_ended: bool,
}

impl Watch {
    /// A watch that sees everything after `start`.
    pub fn new(start: u64, stream: BoxStream<'static, Result<Arc<Batch>>>) -> Self {
        Self::with_progress(start, Progress::new(start), stream)
    }

    /// The same for a feeder that knows of changes that the watch does not want. It raises `progress` past
    /// them once everything before has been handed out.
    pub fn with_progress(
        start: u64,
        progress: Progress,
        stream: BoxStream<'static, Result<Arc<Batch>>>,
    ) -> Self {
        Self { start, progress, stream, has_ended: false }
    }

    /// The same watch, seen through something that hands on at once what it hands on at all.
    #[must_use]
    pub fn through(
        self,
        what: impl FnOnce(Self) -> BoxStream<'static, Result<Arc<Batch>>>,
    ) -> Self {
        let (start, progress) = (self.start, self.progress.clone());
        Self::with_progress(start, progress, what(self))
    }

    /// The same watch, which keeps something for as long as it is there itself.
    #[must_use]
    pub fn keeping(self, kept: impl Send + 'static) -> Self {
        self.through(|watch| {
            let kept = watch.inspect(move |_| {
                let _kept = &kept;
            });
            kept.boxed()
        })
    }

    /// The same watch, with something looked after each time it is polled: a task that it depends on
    /// and that may have gone with its runtime.
    #[must_use]
    pub fn tended(mut self, mut tend: impl FnMut() + Send + 'static) -> Self {
        let (start, progress) = (self.start, self.progress.clone());
        let stream = futures::stream::poll_fn(move |cx| {
            tend();
            self.stream.as_mut().poll_next(cx)
        });
        Self::with_progress(start, progress, stream.boxed())
    }

    /// The revision behind which this watch began. A list read after the watch was opened needs no
    /// second look at anything with a greater revision.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Everything that this watch wants up to this revision has been told: a watch after it goes on where
    /// this one is. It is the revision of the last batch, or a later one where the backend tells that
    /// other things have changed since. A watch of something quiet is better resumed after this revision:
    /// the history behind its last batch may be gone.
    pub fn told(&self) -> u64 {
        self.progress.get()
    }

    /// The next batch; `None` only after an error was returned, and from then on.
    pub async fn next(&mut self) -> Option<Result<Arc<Batch>>> {
        StreamExt::next(self).await
    }
}

impl Stream for Watch {
    type Item = Result<Arc<Batch>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.stream.as_mut().poll_next(cx));
        self.has_ended = next.is_none();
        if let Some(Ok(batch)) = &next {
            self.progress.reach(batch.revision);
        }
        Poll::Ready(next)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("start", &self.start).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[tokio::test]
    async fn a_watch_that_has_ended_stays_so() {
        let told = |ended: bool| async move {
            (!ended).then(|| (Err(Error::unavailable("memory", "it went away")), true))
        };
        let mut watch = Watch::new(7, futures::stream::unfold(false, told).boxed());
        assert!(matches!(watch.next().await, Some(Err(_))));
        for _ in 0..3 {
            assert!(watch.next().await.is_none());
        }
        assert_eq!(watch.told(), 7);
    }
}
