//! The writer: one thread that owns the connection for writes and makes one flush serve many callers.
//!
//! All that waits when the previous group is on disk becomes the next [`group`](crate::group): one transaction,
//! after whose flush the callers are answered. In between, the thread removes what expired and cuts history.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::Connection;
use tenure::backend::Feed;
use tenure::backend::decide::{Now, Step, decide_sweep};
use tenure::backend::hosttime::HostTime;
use tenure::backend::wake::tell;
use tenure::clock::{Clock as _, SystemClock};
use tenure::{Error, Result};

use crate::Options;
use crate::apply::{Sweep, expired, next_expiry};
use crate::error::{BACKEND, definite, of_commit};
use crate::fair_lock::FairLock;
use crate::group_wait::GroupWait;
use crate::guard::Guard;
use crate::history::{self, Bounds};
use crate::known::Known;
use crate::queue::{Next, Requests, WriterHandle, gather};
use crate::transaction::{Transaction, revision};

/// Expired rows removed in one transaction.
const SWEEP: Sweep = Sweep { rows: 500, bytes: 4 * 1024 * 1024 };
/// Revisions forgotten in one transaction, for which callers have to wait.
const COMPACT_REVISIONS: u64 = 5_000;
/// How often history is looked at, unless there is more to forget: then after every group.
const COMPACT_EVERY_MS: i64 = 5_000;

/// The thread's own state.
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    pub(crate) guard: Guard,
    fair_lock: FairLock,
    known: Known,
    time: HostTime,
    /// When the last transaction was begun: those of before are over, in whatever process.
    settled_ms: Arc<AtomicI64>,
    feed: Arc<OnceLock<Arc<Feed>>>,
    /// The write-ahead log, which other processes watch.
    log: PathBuf,
    history_ms: i64,
    history_events: u64,
    compacted_at_ms: i64,
    /// History is longer than it should be, though some of it was just forgotten.
    behind: bool,
    next_expiry_ms: Option<i64>,
    pub(crate) group_wait: GroupWait,
}

/// Starts the writer thread.
pub(crate) fn spawn(
    mut conn: Connection,
    time: HostTime,
    settled_ms: Arc<AtomicI64>,
    feed: Arc<OnceLock<Arc<Feed>>>,
    options: &Options,
) -> Result<WriterHandle> {
    let (handle, running) = WriterHandle::new();
    let guard = Guard::install(&mut conn, Arc::clone(&options.clock), options.sql_timeout);
    let mut writer = Writer {
        guard: guard.map_err(definite)?,
        conn,
        fair_lock: FairLock::new(&options.path, options.busy_timeout),
        known: Known::default(),
        time,
        settled_ms,
        feed,
        log: options.log(),
        history_ms: i64::try_from(options.history.as_millis()).unwrap_or(i64::MAX),
        history_events: options.history_events,
        compacted_at_ms: i64::MIN,
        behind: false,
        next_expiry_ms: None,
        group_wait: GroupWait::default(),
    };
    writer.next_expiry_ms = next_expiry(&writer.conn).map_err(definite)?;
    std::thread::Builder::new()
        .name("tenure-sqlite-writer".into())
        .spawn(move || writer.run(&running.requests))
        .map_err(|error| Error::unavailable(BACKEND, format!("no writer thread: {error}")))?;
    Ok(handle)
}

impl Writer {
    fn run(&mut self, requests: &Requests) {
        loop {
            let idle = self.idle();
            match gather(requests, &mut self.group_wait, idle) {
                Next::Group(group) => self.group(group, requests),
                Next::Look => {
                    self.next_expiry_ms = next_expiry(&self.conn).unwrap_or(self.next_expiry_ms);
                }
                Next::Nothing => {}
                Next::End => return,
            }
            self.tidy();
        }
    }

    /// How long nothing needs to be done: until the next object expires.
    fn idle(&self) -> Duration {
        if self.behind {
            return Duration::ZERO;
        }
        let ms = self.next_expiry_ms.map_or(60_000, |at| at - self.time.now_ms());
        Duration::from_millis(u64::try_from(ms.clamp(0, 60_000)).unwrap_or(0))
    }

    fn now(&self) -> Now {
        Now { store_ms: self.time.now_ms(), wall_ms: self.time.clock().wall_ms() }
    }

    /// Runs `work` in one transaction, records what it did, and tells watchers.
    pub(crate) fn transact(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<()>,
    ) -> Result<()> {
        self.fair_lock.begin(&self.conn).map_err(definite)?;
        // Read once the lock is held: an earlier instant could lie before another's commit.
        let now = self.now();
        self.settled_ms.fetch_max(now.store_ms, Ordering::AcqRel);
        let worked = match Transaction::new(&self.conn, &self.guard, &mut self.known, now) {
            Ok(mut transaction) => {
                work(&mut transaction).and_then(|()| transaction.end().map_err(definite))
            }
            Err(error) => Err(error),
        };
        let (head, steps) = match worked {
            Ok(done) => done,
            Err(error) => {
                self.roll_back();
                return Err(error);
            }
        };
        // Asked here, it needs no transaction of its own.
        let next_expiry_ms = next_expiry(&self.conn).unwrap_or(Some(now.store_ms + 1_000));
        let before = SystemClock.uptime();
        let committed = self.batch("COMMIT");
        self.group_wait.flushed(SystemClock.uptime().saturating_sub(before));
        if let Err(error) = committed {
            self.roll_back();
            return Err(of_commit(error));
        }
        self.next_expiry_ms = next_expiry_ms;
        self.publish(head, &steps);
        Ok(())
    }

    fn batch(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn roll_back(&mut self) {
        self.known.clear();
        // SQLite may have rolled back by itself; then there is nothing left to do.
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rolling back failed");
        }
    }

    fn publish(&self, head: u64, steps: &[Step]) {
        // Writing the log has woken others before there was anything to see. Without a second word
        // they would hear of this commit with the next one, or when they next look.
        if !steps.is_empty()
            && let Err(error) = tell(&self.log)
        {
            tracing::debug!(%error, "other processes will notice by themselves, a little later");
        }
        // Only where nothing of another process lies between; else the pump reads it all in order.
        if let Some(feed) = self.feed.get()
            && feed.head() == head
        {
            feed.publish(steps.iter().map(Step::batch));
        }
    }

    /// Removes what expired and history past its time. Failing is no harm: expired is absent anyway.
    fn tidy(&mut self) {
        let now = self.time.now_ms();
        let swept = match self.next_expiry_ms {
            Some(at) if at <= now => self.sweep(),
            _ => Ok(true),
        };
        let due = now - self.compacted_at_ms.max(i64::MIN / 2) >= COMPACT_EVERY_MS;
        let compacted = match due || self.behind {
            true => {
                self.compacted_at_ms = now;
                self.compact()
            }
            false => Ok(false),
        };
        // What failed is tried again when it is due, not at once.
        self.behind = matches!(compacted, Ok(true));
        // Where nothing could be removed, there is nothing to hurry for either.
        let idle = matches!(swept, Ok(false));
        if let Err(error) = swept.map(|_| ()).and(compacted.map(|_| ())) {
            tracing::warn!(%error, "tidying up failed; it is tried again");
            self.wait_a_second(now);
        } else if idle {
            self.wait_a_second(now);
        }
    }

    fn wait_a_second(&mut self, now_ms: i64) {
        self.next_expiry_ms = self.next_expiry_ms.map(|at| at.max(now_ms + 1_000));
    }

    /// Whether anything was removed.
    fn sweep(&mut self) -> Result<bool> {
        let mut removed = false;
        self.transact(|transaction| {
            let now = transaction.now;
            let rows = expired(transaction.conn, now.store_ms, &SWEEP).map_err(definite)?;
            let step = decide_sweep(rows, now, transaction.head());
            if let Some(step) = &step {
                transaction.step(step)?;
                removed = true;
            }
            transaction.keep(step);
            Ok(())
        })?;
        Ok(removed)
    }

    /// Forgets a part of what is too old or too much; whether there is more of it.
    fn compact(&mut self) -> Result<bool> {
        let bounds = Bounds {
            before_ms: self.time.now_ms().saturating_sub(self.history_ms),
            revisions: self.history_events,
            at_once: COMPACT_REVISIONS,
        };
        let head = revision(&self.conn).map_err(definite)?;
        let Some(cut) = history::cut(&self.conn, head, bounds).map_err(definite)? else {
            return Ok(false);
        };
        self.transact(|transaction| {
            history::forget(transaction.conn, cut.revision).map_err(definite)
        })?;
        Ok(cut.more)
    }
}
