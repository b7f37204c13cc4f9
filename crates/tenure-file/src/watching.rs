//! What runs only while there are watchers: waking on commits of other processes, and removing what
//! expired in time, so that watchers hear of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::BACKEND;
use crate::inner::Inner;
use crate::pump::{Past, PastHandle, Pump};
use crate::writer::Job;
use tenure::backend::wake::FileWatcher;
use tenure::backend::{Feed, History};
use tenure::{Error, Result};

/// The sweep looks at least this often, in case a hint was missed.
const SWEEP_AT_LEAST: Duration = Duration::from_secs(1);

pub(crate) struct Watching {
    inner: Arc<Inner>,
    pub(crate) pump: Arc<Pump>,
    past: Arc<Past>,
    watcher: Mutex<Option<FileWatcher>>,
    poll_every: Duration,
    sweeping: AtomicBool,
    stopped: AtomicBool,
}

impl Watching {
    pub(crate) fn new(inner: Arc<Inner>, poll_every: Duration) -> Self {
        Self {
            pump: Arc::new(Pump::new(Arc::clone(&inner))),
            past: Past::new(Arc::clone(&inner)),
            inner,
            watcher: Mutex::default(),
            poll_every,
            sweeping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn past(&self) -> Arc<dyn History> {
        Arc::new(PastHandle(Arc::clone(&self.past)))
    }

    /// The feed, up to date, and woken from now on. Blocks.
    pub(crate) fn start(&self) -> Result<Arc<Feed>> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if watcher.is_none() {
            let pump = Arc::downgrade(&self.pump);
            let look = move || {
                if let Some(pump) = pump.upgrade() {
                    pump.look();
                }
            };
            // The head is written in place once for each group of commits.
            let new = FileWatcher::new(&[self.inner.files.layout.head()], self.poll_every, look);
            *watcher = Some(new.map_err(|error| {
                Error::unavailable(BACKEND, format!("watching the folder failed: {error}"))
            })?);
        }
        drop(watcher);
        self.pump.feed()
    }

    /// Stops waking and sweeping. Blocks until a look that is under way has ended.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.pump.expiry_changed.notify_one();
        drop(self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// How long until the next object may expire.
    fn next_expiry(&self) -> Duration {
        let next = self.inner.expiries().next_ms();
        let in_ms = next.map(|at_ms| at_ms.saturating_sub(self.inner.time.now_ms()));
        in_ms.map_or(SWEEP_AT_LEAST, |ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    }

    /// Watchers hear of an expiry when it happens, not with the next write.
    pub(crate) fn ensure_sweeper(self: &Arc<Self>, jobs: mpsc::WeakSender<Job>) {
        if self.stopped.load(Ordering::Acquire) || self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let reset = ResetOnDrop(Arc::downgrade(self));
        tokio::spawn(sweep(reset, jobs));
    }
}

async fn sweep(watching: ResetOnDrop, jobs: mpsc::WeakSender<Job>) {
    let weak = watching.0.clone();
    if let Some(watching) = weak.upgrade() {
        let inner = Arc::clone(&watching.inner);
        let learnt = tokio::task::spawn_blocking(move || inner.learn_expiries()).await;
        if !matches!(learnt, Ok(Ok(()))) {
            tracing::warn!(?learnt, "not all lives are known; some objects are swept late");
        }
    }
    while let Some(watching) = weak.upgrade() {
        let clock = watching.inner.time.clock();
        let now = clock.uptime();
        let sleep = clock.sleep_until(now + watching.next_expiry().min(SWEEP_AT_LEAST));
        tokio::select! {
            () = sleep => {}
            () = watching.pump.expiry_changed.notified() => {}
        }
        if watching.stopped.load(Ordering::Acquire) {
            return;
        }
        if watching.next_expiry().is_zero() {
            let Some(jobs) = jobs.upgrade() else { return };
            if jobs.send(Job::Sweep).await.is_err() {
                return;
            }
            // The writer takes the hint away when it is done; until then there is nothing new.
            watching.pump.expiry_changed.notified().await;
            if watching.next_expiry().is_zero() {
                // It could not: a full disk, a lock that somebody holds. No need to hurry.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A runtime that ends takes its tasks along; a watcher of another one then starts the sweep again.
struct ResetOnDrop(Weak<Watching>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if let Some(watching) = self.0.upgrade() {
            watching.sweeping.store(false, Ordering::Release);
            watching.pump.nudge();
        }
    }
}
