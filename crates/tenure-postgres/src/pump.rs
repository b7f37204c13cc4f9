//! From the database to the watchers of this process.
//!
//! While somebody watches, one task reads what was committed and publishes it to a [`Feed`]. It
//! looks when a notification comes, when a commit of this process was not next in line, and every
//! now and then in any case: nothing is concluded from silence. Commits are serial, so reading
//! "everything after the last revision" misses nothing. Without watchers there is no task.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use tenure::store::decide::Step;
use tenure::store::{Feed, FeedLimits, Watch, WatchRequest};
use tenure::{Error, Result};
use tokio::sync::{Notify, mpsc};
use tokio_postgres::Notification;

use crate::connection::{Role, quoted};
use crate::history::Log;
use crate::shared::{Shared, closed};

/// Notifications that may wait; each only says that there is something to see.
const NOTIFICATIONS: usize = 64;
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Kept by every watch; when the last one goes, so does the task.
struct Watchers;

struct Running {
    feed: Arc<Feed>,
    watchers: Weak<Watchers>,
}

/// The feed of a store, while there is one.
#[derive(Default)]
pub(crate) struct Pump {
    running: Mutex<Option<Running>>,
    /// Rung when there may be something to read.
    bell: Notify,
}

impl Pump {
    fn current(&self) -> Option<(Arc<Feed>, Arc<Watchers>)> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.as_ref()?;
        Some((Arc::clone(&running.feed), running.watchers.upgrade()?))
    }

    /// Takes what this process has just committed. If it is next in line watchers get it at once,
    /// otherwise the task reads it with what came before.
    pub(crate) fn committed(&self, steps: &[Step]) {
        let (Some(first), Some((feed, _))) = (steps.first(), self.current()) else { return };
        if feed.head() + 1 == first.revision {
            feed.publish(steps.iter().map(Step::batch));
        } else {
            self.bell.notify_one();
        }
    }
}

/// Opens a watch.
pub(crate) async fn watch(shared: &Arc<Shared>, request: &WatchRequest) -> Result<Watch> {
    let head = shared.meta().await?.revision;
    let (feed, watchers) = join(shared, head);
    // The watch starts at what is committed now, not at what this process has heard of.
    if feed.head() < head {
        advance(shared, &feed).await?;
    }
    let request = WatchRequest { after: request.after.or(Some(head)), ..request.clone() };
    let log = Arc::new(Log(Arc::downgrade(shared)));
    let watch = feed.watch(&request, Some(log))?;
    let start = watch.start();
    let stopped = {
        let shared = Arc::clone(shared);
        async move { shared.stopped().await }.boxed()
    };
    let stream = stream::unfold(Some((watch, stopped, watchers)), |open| async move {
        let (mut watch, mut stopped, watchers) = open?;
        tokio::select! {
            item = watch.next() => match item? {
                Ok(batch) => Some((Ok(batch), Some((watch, stopped, watchers)))),
                Err(error) => Some((Err(error), None)),
            },
            () = &mut stopped => Some((Err(closed()), None)),
        }
    });
    Ok(Watch::new(start, stream.boxed()))
}

/// The running feed, or a new one that begins at `head`.
fn join(shared: &Arc<Shared>, head: u64) -> (Arc<Feed>, Arc<Watchers>) {
    if let Some(current) = shared.pump.current() {
        return current;
    }
    let mut running = shared.pump.running.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(current) = running.as_ref()
        && let Some(watchers) = current.watchers.upgrade()
    {
        return (Arc::clone(&current.feed), watchers);
    }
    let feed = Arc::new(Feed::new(head, FeedLimits::default()));
    let watchers = Arc::new(Watchers);
    *running = Some(Running { feed: Arc::clone(&feed), watchers: Arc::downgrade(&watchers) });
    let work = run(Arc::clone(shared), Arc::clone(&feed), Arc::downgrade(&watchers));
    shared.connector.home.spawn(work);
    (feed, watchers)
}

/// Publishes everything committed so far.
async fn advance(shared: &Shared, feed: &Feed) -> Result<()> {
    loop {
        let after = feed.head();
        match shared.events_after(after).await {
            Ok(found) => {
                let last = found.batches.last().map_or(after, |batch| batch.revision);
                feed.publish(found.batches);
                if last >= found.head || last == after {
                    return Ok(());
                }
            }
            // Away for longer than history is kept: watchers ask for the gap and are told.
            Err(Error::Compacted { .. }) => {
                let head = shared.meta().await?.revision;
                tracing::warn!(after, head, "watchers fell behind the history that is kept");
                feed.reset(head);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn run(shared: Arc<Shared>, feed: Arc<Feed>, watchers: Weak<Watchers>) {
    let poll = shared.connector.options.poll_interval;
    let (hints, mut hinted) = mpsc::channel(1);
    let listening =
        shared.connector.home.spawn(listen(Arc::clone(&shared), Arc::clone(&feed), hints));
    let mut backoff = BACKOFF_MIN;
    while watchers.strong_count() > 0 {
        let pause = match advance(&shared, &feed).await {
            Ok(()) => {
                backoff = BACKOFF_MIN;
                poll
            }
            Err(error) => {
                tracing::debug!(%error, "watchers wait for the server");
                backoff = (backoff * 2).min(BACKOFF_MAX);
                backoff.min(poll)
            }
        };
        tokio::select! {
            () = shared.pump.bell.notified() => {}
            Some(()) = hinted.recv() => {}
            () = shared.time.sleep(pause) => {}
            () = shared.stopped() => break,
        }
    }
    listening.abort();
}

/// Listens, and hints when there is something beyond the feed. Reconnects for ever; after each
/// connect it hints once, because what was said meanwhile went unheard.
async fn listen(shared: Arc<Shared>, feed: Arc<Feed>, hints: mpsc::Sender<()>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let (sender, mut notifications) = mpsc::channel::<Notification>(NOTIFICATIONS);
        match shared.connector.open_with(Role::Listen, Some(sender)).await {
            Ok(mut session) => {
                let listen = format!("listen {}", quoted(&shared.channel));
                if session.client.batch_execute(&listen).await.is_ok() {
                    backoff = BACKOFF_MIN;
                    let _ = hints.try_send(());
                    forward(&feed, &mut notifications, &hints, &mut session).await;
                }
                tracing::debug!("the listening connection ended; listening again");
            }
            Err(error) => tracing::debug!(%error, "cannot listen for changes; polling meanwhile"),
        }
        shared.time.sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn forward(
    feed: &Feed,
    notifications: &mut mpsc::Receiver<Notification>,
    hints: &mpsc::Sender<()>,
    session: &mut crate::connection::Session,
) {
    loop {
        tokio::select! {
            notification = notifications.recv() => {
                let Some(notification) = notification else { return };
                let known = notification.payload().parse().is_ok_and(|told: u64| told <= feed.head());
                if !known {
                    // A hint that already waits is as good as two.
                    let _ = hints.try_send(());
                }
            }
            () = session.closed() => return,
        }
    }
}
