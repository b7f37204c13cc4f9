//! The task that works for the queues: it listens for news, keeps their timers, and lists them anew
//! when news was missed. It runs while somebody of this process waits, and not otherwise.
//!
//! A standby thus costs the store nothing: it is told. Nothing is concluded from silence, though; a
//! queue that has heard nothing for [`crate::lease::Options::recheck_every`] tries again on its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};

use crate::lease::inner::Inner;
use crate::lease::queue::wait_queue::ListedWaiter;
use crate::lease::record::{LEASE, WAITER, untagged};
use crate::store::{Batch, Query, Watch, WatchRequest};
use crate::{Key, Result};

/// After the last waiter has left, news is listened to for this long, in case another one comes.
const LINGER: Duration = Duration::from_secs(2);
/// Between attempts to reach a store that cannot be reached.
const PAUSE: Duration = Duration::from_millis(500);

/// The waiters of a queue as listed, with the marker's revision and the list's.
pub(crate) struct Listing {
    /// Which listing this is.
    pub(crate) number: u64,
    pub(crate) waiters: Vec<ListedWaiter>,
    pub(crate) marker: u64,
    pub(crate) revision: u64,
    /// The revision of the lease that is waited for, if somebody has it.
    pub(crate) held: Option<u64>,
}

/// Works for the queues until nobody waits any more or the inner is gone.
pub(crate) async fn run(weak: Weak<Inner>) {
    loop {
        let Some(inner) = weak.upgrade() else { return };
        let watches = if inner.listens() { open(&inner).await.map(Some) } else { Ok(None) };
        let clock = Arc::clone(&inner.clock);
        match watches {
            Ok(watches) => {
                let poke = Arc::clone(&inner.poke);
                inner.open_queues();
                drop(inner);
                if serve(&weak, watches, &poke).await {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the store cannot be watched; trying again");
                if inner.queues_failed(&error) {
                    return;
                }
            }
        }
        if let Some(inner) = weak.upgrade() {
            inner.close_queues();
            // Those in a queue hear nothing meanwhile, and look by themselves when it is time to.
            inner.tend_queues(clock.uptime());
        }
        clock.sleep(PAUSE).await;
    }
}

async fn open(inner: &Inner) -> Result<(Watch, Watch)> {
    let leases = inner.store.watch(&WatchRequest::kind(LEASE)).await?;
    let waiters = inner.store.watch(&WatchRequest::kind(WAITER)).await?;
    Ok((leases, waiters))
}

enum News {
    Batch(Option<Result<Arc<Batch>>>),
    Listed(Arc<str>, Result<Listing>),
    Timer,
}

/// Serves until there is nobody to serve (true) or the watch ended (false).
async fn serve(
    weak: &Weak<Inner>,
    watches: Option<(Watch, Watch)>,
    poke: &tokio::sync::Notify,
) -> bool {
    let mut news = match watches {
        Some((leases, waiters)) => futures::stream::select(leases, waiters).boxed(),
        None => futures::stream::pending().boxed(),
    };
    let mut listings = FuturesUnordered::new();
    let mut idle_since: Option<Duration> = None;
    loop {
        let Some(inner) = weak.upgrade() else { return true };
        let now = inner.clock.uptime();
        let (unsynced, mut until, empty) = inner.tend_queues(now);
        for (name, number) in unsynced {
            listings.push(list(Arc::clone(&inner), name, number));
        }
        if empty {
            let since = *idle_since.get_or_insert(now);
            if now >= since + LINGER {
                if inner.end_queues() {
                    return true;
                }
                idle_since = None;
            }
            until = until.min(since + LINGER);
        } else {
            idle_since = None;
        }
        let sleep = inner.clock.sleep_until(until);
        drop(inner);
        let heard = tokio::select! {
            biased;
            Some((name, listing)) = listings.next(), if !listings.is_empty() => {
                News::Listed(name, listing)
            }
            () = poke.notified() => News::Timer,
            batch = news.next() => News::Batch(batch),
            () = sleep => News::Timer,
        };
        let Some(inner) = weak.upgrade() else { return true };
        match heard {
            News::Batch(Some(Ok(batch))) => inner.hear(&batch),
            News::Batch(Some(Err(error))) => {
                tracing::debug!(%error, "watching for leases was interrupted; looking anew");
                return false;
            }
            News::Batch(None) => return false,
            News::Listed(name, Ok(listing)) => {
                inner.synced(&name, &listing);
            }
            News::Listed(name, Err(error)) => {
                tracing::debug!(%error, queue = %name, "the queue cannot be listed; trying again");
                inner.sync_again(&name);
            }
            News::Timer => {}
        }
    }
}

/// Who waits in a queue, in all processes.
async fn list(inner: Arc<Inner>, name: Arc<str>, number: u64) -> (Arc<str>, Result<Listing>) {
    let listing = list_waiters(&inner, &name, number).await;
    if listing.is_err() {
        // Here and not where it is heard of: other queues have nothing to do with it.
        inner.clock.sleep(PAUSE).await;
    }
    (name, listing)
}

async fn list_waiters(inner: &Inner, name: &str, number: u64) -> Result<Listing> {
    let limit = inner.store.capabilities().limits.page_objects;
    let mut query = Query::new(WAITER).prefix(format!("{name}#")).limit(limit);
    // Where a queue is for one lease, it has the lease's id.
    let held = inner.store.get(&Key::new(LEASE, name)).await?.map(|object| object.revision);
    let mut listing = Listing { number, waiters: Vec::new(), marker: 0, revision: u64::MAX, held };
    loop {
        let page = inner.store.list(&query).await?;
        // What happened while later pages were read is heard of as news.
        listing.revision = listing.revision.min(page.revision);
        for object in page.objects {
            match untagged(&object.key.id) {
                Some((queue, "")) if queue == name => listing.marker = object.revision,
                Some((queue, nonce))
                    if queue == name && nonce != crate::lease::queue::wait_queues::RESIZED =>
                {
                    listing.waiters.push(ListedWaiter::read(nonce, &object));
                }
                _ => {}
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(listing),
        }
    }
}
