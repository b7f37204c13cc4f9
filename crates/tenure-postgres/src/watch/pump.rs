//! From the database to the watchers of this process.
//!
//! While there is a watcher, one task reads what was committed and publishes it to a
//! [`tenure::backend::Feed`]. It reads when a notification comes, when a commit of this process was not the
//! next one, and at regular intervals in any case, because a notification can be lost. Commits are serial,
//! so reading everything after the last revision misses nothing. Without watchers there is no task.
//!
//! If the database has lost what watchers were told ([`crate::watch::local_feed`]), they are told that history
//! is gone, and the next watch begins with a new feed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use tenure::backend::decide::Step;
use tenure::store::{Watch, WatchRequest};
use tenure::{Error, Result};
use tokio::sync::Notify;

use crate::commit::apply::Head;
use crate::shared::{Shared, closed};
use crate::watch::history::Log;
use crate::watch::local_feed::LocalFeed;

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Kept by every watch; when the last one goes, so does the task.
struct Watchers;

struct Running {
    local: Arc<LocalFeed>,
    watchers: Weak<Watchers>,
}

/// The feed of a store, while there is one.
#[derive(Default)]
pub(crate) struct Pump {
    running: Mutex<Option<Running>>,
    /// Rung when there may be something to read.
    bell: Notify,
    /// Rung when the first watcher comes and when the last one is gone.
    changed: Notify,
    /// How many sessions for commits were opened.
    sessions: AtomicU64,
}

impl Pump {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<(Arc<LocalFeed>, Arc<Watchers>)> {
        let running = self.running();
        let running = running.as_ref()?;
        Some((Arc::clone(&running.local), running.watchers.upgrade()?))
    }

    fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Acquire)
    }

    /// A session for commits was opened, and it may be on a server that never heard of what was told.
    pub(crate) fn doubt(&self) {
        self.sessions.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends all watches: what they were told is no longer so.
    fn end(&self, local: &Arc<LocalFeed>, why: Error) {
        let mut running = self.running();
        if running.as_ref().is_some_and(|running| Arc::ptr_eq(&running.local, local)) {
            *running = None;
        }
        drop(running);
        local.feed.close(why);
    }

    /// Whether commits should be heard of.
    pub(crate) fn is_watched(&self) -> bool {
        self.current().is_some()
    }

    /// Resolves when that may have changed.
    pub(crate) async fn watchers_changed(&self) {
        self.changed.notified().await;
    }

    /// There may be something to read.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// A notification of a commit came; it says the revision.
    pub(crate) fn told(&self, payload: &str) {
        let Some((local, _)) = self.current() else { return };
        if !payload.parse().is_ok_and(|told: u64| told <= local.feed.head()) {
            self.ring();
        }
    }

    /// Takes what this process has just committed. If it is next in line watchers get it at once,
    /// otherwise the task reads it with what came before.
    pub(crate) fn committed(&self, steps: &[Step], head: &Head) {
        let Some((local, _)) = self.current() else { return };
        if !local.publish_own(steps, head.clock_last_ms, self.sessions()) {
            self.bell.notify_one();
        }
    }
}

/// Opens a watch.
pub(crate) async fn watch(shared: &Arc<Shared>, request: &WatchRequest) -> Result<Watch> {
    let head = shared.meta().await?.revision;
    let (local, watchers) = join(shared, head);
    // The watch starts at what is committed now, not at what this process has heard of.
    if local.feed.head() != head {
        advance(shared, &local).await?;
    }
    let request = WatchRequest { after: request.after.or(Some(head)), ..request.clone() };
    let log = Arc::new(Log(Arc::downgrade(shared)));
    let watch = local.feed.watch(&request, Some(log))?;
    let stopped = {
        let shared = Arc::clone(shared);
        async move { shared.stopped().await }.boxed()
    };
    let next = |open: Option<(Watch, futures::future::BoxFuture<'static, ()>, Arc<Watchers>)>| async move {
        let (mut watch, mut stopped, watchers) = open?;
        tokio::select! {
            item = watch.next() => match item? {
                Ok(batch) => Some((Ok(batch), Some((watch, stopped, watchers)))),
                Err(error) => Some((Err(error), None)),
            },
            () = &mut stopped => Some((Err(closed()), None)),
        }
    };
    Ok(watch.through(|watch| stream::unfold(Some((watch, stopped, watchers)), next).boxed()))
}

/// The running feed, or a new one that begins at `head`.
fn join(shared: &Arc<Shared>, head: u64) -> (Arc<LocalFeed>, Arc<Watchers>) {
    if let Some(current) = shared.pump.current() {
        return current;
    }
    let mut running = shared.pump.running();
    if let Some(current) = running.as_ref()
        && let Some(watchers) = current.watchers.upgrade()
    {
        return (Arc::clone(&current.local), watchers);
    }
    let local = Arc::new(LocalFeed::new(head, shared.pump.sessions()));
    let watchers = Arc::new(Watchers);
    *running = Some(Running { local: Arc::clone(&local), watchers: Arc::downgrade(&watchers) });
    let work = run(Arc::clone(shared), Arc::clone(&local), Arc::downgrade(&watchers));
    shared.connector.home.spawn(work);
    (local, watchers)
}

/// Publishes everything committed so far. [`Error::Compacted`] if it does not follow what was told.
async fn advance(shared: &Shared, local: &Arc<LocalFeed>) -> Result<()> {
    loop {
        let sessions = shared.pump.sessions();
        let told = local.told();
        let after = told.revision;
        match shared.events_after(after).await {
            Ok(found) if !told.precedes(&found) => {
                let head = found.head;
                tracing::warn!(after, head, "the store has lost what watchers were told");
                let gone = Error::Compacted { requested: after, oldest: head };
                shared.pump.end(local, gone.clone());
                return Err(gone);
            }
            Ok(found) => {
                let head = found.head;
                let last = found.batches.last().map_or(after, |batch| batch.revision);
                local.publish_found(told, found, sessions);
                if last >= head || last == after {
                    return Ok(());
                }
            }
            // Away for longer than history is kept: watchers ask for the gap and are told.
            Err(Error::Compacted { .. }) => {
                let head = shared.meta().await?.revision;
                tracing::warn!(after, head, "watchers fell behind the history that is kept");
                local.reset(head);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn run(shared: Arc<Shared>, local: Arc<LocalFeed>, watchers: Weak<Watchers>) {
    let poll = shared.connector.options.poll_interval;
    shared.pump.changed.notify_one();
    let mut backoff = BACKOFF_MIN;
    while watchers.strong_count() > 0 {
        let pause = match advance(&shared, &local).await {
            Ok(()) => {
                backoff = BACKOFF_MIN;
                poll
            }
            Err(Error::Compacted { .. }) => break,
            Err(error) => {
                tracing::debug!(%error, "watchers wait for the server");
                backoff = (backoff * 2).min(BACKOFF_MAX);
                backoff.min(poll)
            }
        };
        tokio::select! {
            () = shared.pump.bell.notified() => {}
            () = shared.time.sleep(pause) => {}
            () = shared.stopped() => break,
        }
    }
    shared.pump.changed.notify_one();
    // The bell may have been meant for the task of those who came since.
    shared.pump.ring();
}
