//! One watch of the API server that feeds all watchers of this store.
//!
//! It runs while somebody watches. It begins with a list and then follows the watch with bookmarks. A
//! connection that breaks, or is silent for longer than a server ever is, is opened again at the same
//! revision. If the server no longer has what happened in between (410), every watcher is told that history
//! is gone: they list again, and the reflector begins anew.
//!
//! The API server tells nothing of an expiry, so the reflector keeps timers. When one is due it reads the
//! Lease: if it is unchanged, it has expired. A Lease of ours is then emptied, under a revision that every
//! watcher gets, also a newcomer who would have to wait longer. A Lease of another elector stays as it is,
//! and only our own watchers are told.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use kube::api::WatchEvent;
use tenure::store::{Batch, Watch, WatchRequest};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::api::Events;
use crate::cache::{Cache, Due};
use crate::commit::send;
use crate::error::Failure;
use crate::event_log::EventLog;
use crate::record;
use crate::runtime::StoreRuntime;
use crate::shared::Shared;
use crate::wire;

/// After the last watcher has left, the watch goes on for this long, in case another one comes.
const LINGER: Duration = Duration::from_secs(5);
/// Between attempts at a watch that breaks or is closed at once: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// Before an end that could not be made sure of is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Ends that are made sure of at once.
const CHECKS: usize = 16;

/// Where watchers join.
#[derive(Default)]
pub(crate) struct Reflector {
    log: Mutex<Option<Arc<EventLog>>>,
}

impl Reflector {
    fn log(&self) -> MutexGuard<'_, Option<Arc<EventLog>>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the log unless it is watched. Whether it has ended.
    fn end_if_idle(&self, log: &Arc<EventLog>) -> bool {
        let mut current = self.log();
        if log.watchers() > 0 {
            return false;
        }
        forget(&mut current, log);
        true
    }
}

fn forget(current: &mut Option<Arc<EventLog>>, log: &Arc<EventLog>) {
    if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, log)) {
        *current = None;
    }
}

/// Opens a watch of what happens from now on.
pub(crate) async fn watch(
    shared: &Arc<Shared>,
    runtime: &StoreRuntime,
    request: &WatchRequest,
) -> Result<Watch> {
    let mut cursor = {
        let mut current = shared.reflector.log();
        let log = current.get_or_insert_with(|| {
            let log = Arc::new(EventLog::new());
            runtime.spawn(run(Arc::clone(shared), Arc::clone(&log)));
            log
        });
        log.join()
    };
    cursor.opened().await?;
    // Asked for after the log is open: everything behind it will be told.
    let head = {
        let shared = Arc::clone(shared);
        runtime.run(async move { shared.api.head().await.map_err(Failure::of_read) }).await?
    };
    Ok(cursor.watch(request, wire::revision(&head)?))
}

async fn run(shared: Arc<Shared>, log: Arc<EventLog>) {
    let mut stopping = shared.stopping.subscribe();
    let why = tokio::select! {
        why = reflect(&shared, &log) => why,
        _ = stopping.wait_for(|stopping| *stopping) => shared.closed(),
    };
    forget(&mut shared.reflector.log(), &log);
    log.end(why);
}

/// Follows the API server until there is a reason to stop, which is returned.
async fn reflect(shared: &Arc<Shared>, log: &Arc<EventLog>) -> Error {
    let mut cache = Cache::default();
    if let Err(error) = begin(shared, &mut cache).await {
        return error;
    }
    let mut pause = PAUSE;
    let mut first = true;
    loop {
        let (from, began) = (cache.head, shared.clock.uptime());
        let opened = shared.api.watch(cache.head).await;
        // Without the right to watch nothing would ever be told. Who had it once gets it back: a server
        // that has just started may not know the rights yet.
        if std::mem::take(&mut first) {
            match opened {
                Err(failure @ Failure::Forbidden(_)) => return failure.of_read(),
                _ => log.open(),
            }
        }
        let ended = match opened {
            Ok(events) => follow(shared, log, &mut cache, events).await,
            Err(Failure::Gone) => Ended::Gone,
            Err(failure) => Ended::Broken(failure.of_read()),
        };
        match ended {
            Ended::Idle => return Error::unavailable(BACKEND, "nobody watches"),
            Ended::Gone => return Error::Compacted { requested: cache.head, oldest: cache.head },
            Ended::Closed => {}
            Ended::Broken(ref error) => {
                tracing::debug!(%error, "the watch of leases broke; taking it up again");
            }
        }
        let lasted = shared.clock.uptime().saturating_sub(began);
        if cache.head > from || lasted >= LONG_PAUSE {
            pause = PAUSE;
        }
        // One that was closed in order goes on at once, unless it never told anything: what stands
        // between us and the server may close every one of them.
        if cache.head == from || matches!(ended, Ended::Broken(_)) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONG_PAUSE);
        }
    }
}

async fn begin(shared: &Shared, cache: &mut Cache) -> Result<()> {
    let (leases, revision) = shared.all().await?;
    for lease in &leases {
        let Some(id) = shared.id_of(lease) else { continue };
        let sight = shared.seen.observe(lease, lease.revision()?, shared.clock.uptime());
        cache.apply(lease, sight, &id)?;
    }
    cache.head = revision;
    Ok(())
}

enum Ended {
    Idle,
    Gone,
    Closed,
    Broken(Error),
}

async fn follow(
    shared: &Arc<Shared>,
    log: &Arc<EventLog>,
    cache: &mut Cache,
    mut events: Events,
) -> Ended {
    let mut checks = FuturesUnordered::new();
    let mut idle_since = None;
    // Starts anew with what is heard and nothing else: leases that come due turn this loop as well. By
    // real time, since a connection is as dead by any other clock.
    let mut silence = pin!(tokio::time::sleep(shared.api.watch_silence()));
    loop {
        let now = shared.clock.uptime();
        while checks.len() < CHECKS
            && let Some(due) = cache.next_due(now, now + LOOK_AGAIN)
        {
            checks.push(confirm(shared, due));
        }
        if log.watchers() > 0 {
            idle_since = None;
        } else if now >= *idle_since.get_or_insert(now) + LINGER
            && shared.reflector.end_if_idle(log)
        {
            return Ended::Idle;
        }
        let deadline = cache.next_deadline().filter(|_| checks.len() < CHECKS);
        let deadline = deadline.into_iter().chain(idle_since.map(|since| since + LINGER)).min();
        let timer = async {
            match deadline {
                Some(at) => shared.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.next() => {
                silence.set(tokio::time::sleep(shared.api.watch_silence()));
                let heard = match event {
                    Some(Ok(WatchEvent::Error(status))) => Err(Failure::from(*status)),
                    Some(Ok(event)) => Ok(event),
                    Some(Err(failure)) => Err(failure),
                    None => return Ended::Closed,
                };
                match heard.map(|event| hear(shared, cache, event)) {
                    Ok(Ok(Some(batch))) => log.publish(batch, true),
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => return Ended::Broken(error),
                    Err(Failure::Gone) => return Ended::Gone,
                    Err(failure) => return Ended::Broken(failure.of_read()),
                }
            }
            Some(expired) = checks.next(), if !checks.is_empty() => {
                if let Some(batch) = expired.and_then(|due| cache.apply_expiry(&due)) {
                    log.publish(batch, false);
                }
            }
            () = silence.as_mut() => {
                let silent = Failure::Unsettled("it was silent for too long".into());
                return Ended::Broken(silent.of_read());
            }
            () = timer => {}
        }
    }
}

fn hear(
    shared: &Shared,
    cache: &mut Cache,
    event: WatchEvent<wire::Lease>,
) -> Result<Option<Batch>> {
    match event {
        WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
            let revision = lease.revision()?;
            let Some(id) = shared.id_of(&lease) else {
                cache.head = cache.head.max(revision);
                return Ok(None);
            };
            let sight = shared.seen.observe(&lease, revision, shared.clock.uptime());
            cache.apply(&lease, sight, &id)
        }
        WatchEvent::Deleted(lease) => {
            shared.seen.forget(&lease.metadata.name);
            cache.apply_deletion(&lease)
        }
        WatchEvent::Bookmark(mark) => {
            cache.head = cache.head.max(wire::revision(&mark.metadata.resource_version)?);
            Ok(None)
        }
        WatchEvent::Error(_) => Ok(None),
    }
}

/// Makes sure that a Lease has expired, and empties it if it is one of ours. Returns it if nobody but
/// us will tell of that. What cannot be made sure of is due again.
async fn confirm(shared: &Shared, due: Due) -> Option<Due> {
    match has_silently_expired(shared, &due).await {
        Ok(silently) => silently.then_some(due),
        Err(error) => {
            tracing::debug!(%error, lease = %due.name, "an expiry could not be made sure of");
            None
        }
    }
}

async fn has_silently_expired(shared: &Shared, due: &Due) -> Result<bool> {
    // If it is another state by now, the watch tells which.
    let Some(read) = shared.read(&due.name).await? else { return Ok(false) };
    if read.lease.revision()? != due.revision {
        return Ok(false);
    }
    if !record::is_ours(&read.lease) {
        return Ok(true);
    }
    let emptied = record::empty(&read.lease, true, shared.clock.wall_ms());
    match send(shared, &emptied, true).await {
        Ok(_) | Err(Failure::Overtaken) => Ok(false),
        // Somebody who may only look can still tell its own watchers.
        Err(Failure::Forbidden(_)) => Ok(true),
        Err(failure) => Err(failure.of_write()),
    }
}
