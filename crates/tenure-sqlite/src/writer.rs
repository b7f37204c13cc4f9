//! The writer: one thread that owns the write connection and makes one fsync serve many callers.
//!
//! Whatever waits when the previous group is on disk becomes the next group: one transaction, in
//! which each commit is decided and applied by itself, so that one caller's conflict is nobody
//! else's. Callers are answered after the flush. The queue is bounded by bytes; a caller that finds
//! it full waits its turn.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::Connection;
use tenure::store::decide::{Now, Step, decide, decide_sweep, decide_touch};
use tenure::store::hosttime::HostTime;
use tenure::store::{Commit, Committed, Feed, Touch, Touched};
use tenure::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::Options;
use crate::apply::{Rows, apply, expired, extend, find, next_expiry, of_row};
use crate::error::{BACKEND, definite, of_commit};
use crate::rows::first_seq;

/// Bounds of one group: large enough to spread the cost of the flush, small enough to answer soon.
const GROUP_REQUESTS: usize = 1_024;
const GROUP_BYTES: usize = 8 * 1024 * 1024;
/// Bound of the queue, in KiB of requests.
const QUEUE_KIB: usize = 64 * 1024;
/// Expired rows removed in one transaction.
const SWEEP_ROWS: usize = 500;
/// Events removed in one transaction.
const COMPACT_REVISIONS: u64 = 5_000;
/// How often history is looked at.
const COMPACT_EVERY_MS: i64 = 5_000;

type Reply<T> = oneshot::Sender<Result<T>>;

/// What one caller will be told, known once its group is on disk.
type Answer<T> = Option<Result<T>>;
type TouchedEach = Vec<Result<Touched>>;

enum Request {
    Commit {
        commit: Commit,
        reply: Reply<Committed>,
        answer: Answer<Committed>,
    },
    Touch {
        touches: Vec<Touch>,
        reply: Reply<TouchedEach>,
        answer: Answer<TouchedEach>,
    },
    /// Another process may have written something that expires sooner.
    Look,
    Close(oneshot::Sender<()>),
}

impl Request {
    /// Tells the caller. One that gave up no longer listens; that is its right.
    fn answer(self, failure: Option<&Error>) {
        match self {
            Self::Commit { reply, answer, .. } => tell(reply, answer, failure),
            Self::Touch { reply, answer, .. } => tell(reply, answer, failure),
            Self::Look => {}
            Self::Close(done) => drop(done),
        }
    }
}

fn tell<T>(reply: Reply<T>, answer: Answer<T>, failure: Option<&Error>) {
    let unreached = || Err(Error::unavailable(BACKEND, "the writer skipped a request"));
    let answer = match failure {
        Some(error) => Err(error.clone()),
        None => answer.unwrap_or_else(unreached),
    };
    let _ = reply.send(answer);
}

struct Queued {
    request: Request,
    bytes: usize,
    _room: Option<OwnedSemaphorePermit>,
}

/// The way to the writer thread.
pub(crate) struct WriterHandle {
    queue: SyncSender<Queued>,
    room: Arc<Semaphore>,
}

impl WriterHandle {
    pub(crate) async fn commit(&self, commit: Commit) -> Result<Committed> {
        let bytes = commit.size();
        self.ask(bytes, |reply| Request::Commit { commit, reply, answer: None }).await
    }

    pub(crate) async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let bytes = 128 * touches.len();
        self.ask(bytes, |reply| Request::Touch { touches, reply, answer: None }).await
    }

    pub(crate) async fn close(&self) {
        // New requests are refused from here on; those in the queue are still answered.
        self.room.close();
        let (done, closed) = oneshot::channel();
        let close = Queued { request: Request::Close(done), bytes: 0, _room: None };
        if self.queue.try_send(close).is_ok() {
            let _ = closed.await;
        }
    }

    /// Lets the writer look for the next expiry again; for whoever sees other processes' commits.
    pub(crate) fn look(&self) {
        // A full queue means that the writer is about to look anyway.
        let _ = self.queue.try_send(Queued { request: Request::Look, bytes: 0, _room: None });
    }

    async fn ask<T>(&self, bytes: usize, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let kib = u32::try_from(bytes.div_ceil(1024).clamp(1, QUEUE_KIB)).unwrap_or(u32::MAX);
        let stopped = || Error::unavailable(BACKEND, "the store was closed");
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| stopped())?;
        let (reply, answer) = oneshot::channel();
        let queued = Queued { request: request(reply), bytes, _room: Some(room) };
        match self.queue.try_send(queued) {
            Ok(()) => {}
            Err(TrySendError::Disconnected(_)) => return Err(stopped()),
            // Every queued request holds at least one unit of room, so this cannot be.
            Err(TrySendError::Full(_)) => return Err(Error::unavailable(BACKEND, "queue full")),
        }
        answer
            .await
            .unwrap_or_else(|_| Err(Error::unknown(BACKEND, "the writer stopped before answering")))
    }
}

/// The thread's own state.
pub(crate) struct Writer {
    conn: Connection,
    time: HostTime,
    feed: Arc<OnceLock<Arc<Feed>>>,
    history_ms: i64,
    history_events: u64,
    compacted_at_ms: i64,
    next_expiry_ms: Option<i64>,
}

/// Starts the writer thread.
pub(crate) fn spawn(
    conn: Connection,
    time: HostTime,
    feed: Arc<OnceLock<Arc<Feed>>>,
    options: &Options,
) -> Result<WriterHandle> {
    let (queue, requests) = sync_channel(QUEUE_KIB + 8);
    let mut writer = Writer {
        conn,
        time,
        feed,
        history_ms: i64::try_from(options.history.as_millis()).unwrap_or(i64::MAX),
        history_events: options.history_events,
        compacted_at_ms: i64::MIN,
        next_expiry_ms: None,
    };
    writer.next_expiry_ms = next_expiry(&writer.conn).map_err(definite)?;
    std::thread::Builder::new()
        .name("tenure-sqlite-writer".into())
        .spawn(move || writer.run(&requests))
        .map_err(|error| Error::unavailable(BACKEND, format!("no writer thread: {error}")))?;
    Ok(WriterHandle { queue, room: Arc::new(Semaphore::new(QUEUE_KIB)) })
}

impl Writer {
    fn run(&mut self, requests: &Receiver<Queued>) {
        loop {
            match requests.recv_timeout(self.idle()) {
                Ok(Queued { request: Request::Look, .. }) => {
                    self.next_expiry_ms = next_expiry(&self.conn).unwrap_or(self.next_expiry_ms);
                }
                Ok(first) => {
                    let (group, close) = gather(first, requests);
                    self.group(group);
                    if let Some(done) = close {
                        let _ = done.send(());
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.tidy();
        }
    }

    /// How long nothing needs to be done: until the next object expires.
    fn idle(&self) -> Duration {
        let ms = self.next_expiry_ms.map_or(60_000, |at| at - self.time.now_ms());
        Duration::from_millis(u64::try_from(ms.clamp(0, 60_000)).unwrap_or(0))
    }

    fn now(&self) -> Now {
        Now { store_ms: self.time.now_ms(), wall_ms: self.time.clock().wall_ms() }
    }

    /// One transaction for all that waits.
    fn group(&mut self, mut group: Vec<Queued>) {
        let result = self.transact(|writer, now, head| {
            let mut steps = Vec::new();
            for queued in &mut group {
                writer.one(&mut queued.request, now, head, &mut steps)?;
            }
            Ok(steps)
        });
        let failure = result.err();
        for queued in group {
            queued.request.answer(failure.as_ref());
        }
    }

    /// Decides and applies one request. An error is the transaction's, not the request's.
    fn one(&self, request: &mut Request, now: Now, head: u64, steps: &mut Vec<Step>) -> Result<()> {
        match request {
            Request::Commit { commit, answer, .. } => {
                let head = steps.last().map_or(head, |step| step.revision);
                *answer = match decide(&mut Rows(&self.conn), commit, now, head) {
                    // Deciding changes nothing, so what fails there fails alone, unless SQLite gave
                    // up the transaction over it.
                    Err(error) if self.conn.is_autocommit() => return Err(error),
                    Err(error) => Some(Err(error)),
                    Ok(decision) => {
                        for step in decision.steps {
                            apply(&self.conn, &step, now.store_ms).map_err(definite)?;
                            steps.push(step);
                        }
                        for (key, expires_at_ms) in &decision.refreshed {
                            extend(&self.conn, key, *expires_at_ms).map_err(definite)?;
                        }
                        Some(Ok(decision.committed))
                    }
                };
            }
            Request::Touch { touches, answer, .. } => {
                let touched = touches.iter().map(|touch| self.touch(touch, now));
                *answer = Some(Ok(touched.collect::<Result<Vec<_>>>()?));
            }
            Request::Look | Request::Close(_) => {}
        }
        Ok(())
    }

    fn touch(&self, touch: &Touch, now: Now) -> Result<Result<Touched>> {
        let row = find(&self.conn, &touch.key).map_err(|error| of_row(error, &touch.key))?;
        let decided = decide_touch(touch, row.as_ref(), now);
        if let Ok((expires_at_ms, _)) = &decided {
            extend(&self.conn, &touch.key, *expires_at_ms).map_err(definite)?;
        }
        Ok(decided.map(|(_, touched)| touched))
    }

    /// Runs `work` in one transaction, records the counter and the clock, and tells watchers.
    fn transact(
        &mut self,
        work: impl FnOnce(&mut Self, Now, u64) -> Result<Vec<Step>>,
    ) -> Result<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE").map_err(definite)?;
        // Read once the lock is held: an earlier instant could lie before another's commit.
        let now = self.now();
        let worked = revision(&self.conn).map_err(definite).and_then(|head| {
            let steps = work(self, now, head)?;
            self.record(&steps, now).map_err(definite)?;
            Ok((head, steps))
        });
        let (head, steps) = match worked {
            Ok(done) => done,
            Err(error) => {
                self.roll_back();
                return Err(error);
            }
        };
        if let Err(error) = self.conn.execute_batch("COMMIT") {
            self.roll_back();
            return Err(of_commit(error));
        }
        self.next_expiry_ms = next_expiry(&self.conn).unwrap_or(Some(now.store_ms + 1_000));
        self.publish(head, &steps);
        Ok(())
    }

    fn record(&self, steps: &[Step], now: Now) -> rusqlite::Result<()> {
        let head = steps.last().map(|step| step.revision);
        let sql = "UPDATE tenure_meta SET revision = coalesce(?1, revision),
                     last_ms = max(last_ms, ?2)";
        self.conn.prepare_cached(sql)?.execute((head, now.store_ms))?;
        Ok(())
    }

    fn roll_back(&self) {
        // SQLite may have rolled back by itself; then there is nothing left to do.
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "rolling back failed");
        }
    }

    fn publish(&self, head: u64, steps: &[Step]) {
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
            _ => Ok(()),
        };
        let compacted = match now - self.compacted_at_ms.max(i64::MIN / 2) >= COMPACT_EVERY_MS {
            true => {
                self.compacted_at_ms = now;
                self.compact()
            }
            false => Ok(()),
        };
        if let Err(error) = swept.and(compacted) {
            tracing::warn!(%error, "tidying up failed; it is tried again");
            self.next_expiry_ms = self.next_expiry_ms.map(|at| at.max(now + 1_000));
        }
    }

    fn sweep(&mut self) -> Result<()> {
        self.transact(|writer, now, head| {
            let rows = expired(&writer.conn, now.store_ms, SWEEP_ROWS).map_err(definite)?;
            let step = decide_sweep(rows, now, head);
            if let Some(step) = &step {
                apply(&writer.conn, step, now.store_ms).map_err(definite)?;
            }
            Ok(step.into_iter().collect())
        })
    }

    fn compact(&mut self) -> Result<()> {
        let Some(cut) = self.compaction().map_err(definite)? else { return Ok(()) };
        self.transact(|writer, _, _| {
            let conn = &writer.conn;
            conn.execute("DELETE FROM tenure_events WHERE seq < ?1", [first_seq(cut + 1)])
                .and_then(|_| {
                    let sql =
                        "UPDATE tenure_meta SET compacted_revision = max(compacted_revision, ?1)";
                    conn.execute(sql, [cut])
                })
                .map_err(definite)?;
            Ok(Vec::new())
        })
    }

    /// The revision up to which history may go now, if any.
    fn compaction(&self) -> rusqlite::Result<Option<u64>> {
        let head = revision(&self.conn)?;
        let oldest: Option<u64> =
            self.conn.query_row("SELECT min(seq) FROM tenure_events", [], |row| row.get(0))?;
        let Some(oldest) = oldest.map(|seq| seq / first_seq(1)) else { return Ok(None) };
        let last = head.min(oldest + COMPACT_REVISIONS);
        // Within the slice looked at, the newest revision that is too old, by time or by count.
        let sql = "SELECT max(seq) FROM tenure_events WHERE seq < ?1 AND recorded_ms < ?2";
        let before = self.time.now_ms().saturating_sub(self.history_ms);
        let aged: Option<u64> =
            self.conn.query_row(sql, (first_seq(last), before), |row| row.get(0))?;
        let aged = aged.map(|seq| seq / first_seq(1));
        let crowded = head.checked_sub(self.history_events).filter(|cut| *cut >= oldest);
        Ok(aged.max(crowded).map(|cut| cut.min(last)))
    }
}

pub(crate) fn revision(conn: &Connection) -> rusqlite::Result<u64> {
    conn.prepare_cached("SELECT revision FROM tenure_meta")?.query_row([], |row| row.get(0))
}

/// The first request and whatever else waits, within bounds, up to a request to close.
fn gather(
    first: Queued,
    requests: &Receiver<Queued>,
) -> (Vec<Queued>, Option<oneshot::Sender<()>>) {
    let mut group = Vec::new();
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(queued) = next {
        if let Request::Close(done) = queued.request {
            return (group, Some(done));
        }
        if matches!(queued.request, Request::Look) {
            // Every transaction ends with a look.
            next = requests.try_recv().ok();
            continue;
        }
        bytes += queued.bytes;
        group.push(queued);
        let full = group.len() >= GROUP_REQUESTS || bytes >= GROUP_BYTES;
        next = if full { None } else { requests.try_recv().ok() };
    }
    (group, None)
}
