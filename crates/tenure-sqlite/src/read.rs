//! Reads, each on a connection of its own: SQLite's readers block neither the writer nor each other.
//!
//! A row that looks expired may be about to be prolonged by a transaction that was begun in time and is not on
//! disk yet. An object must never seem gone and then be there again. So such a read says that it is in doubt,
//! unless a transaction was begun after that life ended: by then all earlier ones are over.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rusqlite::Connection;
use tenure::backend::History;
use tenure::backend::decide::Row;
use tenure::backend::hosttime::HostTime;
use tenure::store::{Batch, Page, Query};
use tenure::{Error, Key, Object, Result};
use tokio::sync::Semaphore;

use crate::Options;
use crate::apply::{by_name, find, of_row};
use crate::error::{BACKEND, definite};
use crate::history::batches_after;
use crate::rows::{stored, with_columns};
use crate::schema::connect;
use crate::transaction::revision;

/// Connections for reading, and so the most reads at a time.
const READERS: usize = 8;
/// Rows one page may look at: a selector that matches little is answered in bounded steps.
const SCAN_ROWS: usize = 5_000;

fn closed() -> Error {
    Error::unavailable(BACKEND, "the store was closed")
}

/// A bounded pool of read connections.
pub(crate) struct Readers {
    idle: Mutex<Vec<Connection>>,
    turns: Semaphore,
    options: Options,
    time: HostTime,
    settled_ms: Arc<AtomicI64>,
}

/// What a reader judges lives by; both are looked at before the rows are.
struct Judge {
    now_ms: i64,
    /// Whatever prolonged a life before this instant is visible.
    settled_ms: i64,
    /// A life looked over that may yet be prolonged.
    in_doubt: bool,
}

impl Judge {
    fn read(&mut self, row: &Row) -> Option<Object> {
        let object = row.read(self.now_ms);
        let unsettled = row.expires_at_ms.is_some_and(|at| at > self.settled_ms);
        self.in_doubt |= object.is_none() && unsettled;
        object
    }
}

/// What was read, and whether that is in doubt.
pub(crate) type Found<T> = (T, bool);

impl Readers {
    /// The writer says in `settled_ms` when it last began a transaction.
    pub(crate) fn new(options: Options, time: HostTime, settled_ms: Arc<AtomicI64>) -> Arc<Self> {
        let turns = Semaphore::new(READERS);
        Arc::new(Self { idle: Mutex::default(), turns, options, time, settled_ms })
    }

    fn judge(&self) -> Judge {
        let settled_ms = self.settled_ms.load(Ordering::Acquire);
        Judge { now_ms: self.time.now_ms(), settled_ms, in_doubt: false }
    }

    /// Refuses all reads from here on.
    pub(crate) fn close(&self) {
        self.turns.close();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Runs `read` in one read transaction on a thread that may block.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection, &HostTime) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _turn = self.turns.acquire().await.map_err(|_| closed())?;
        let pool = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || pool.run_blocking(read));
        work.await
            .map_err(|error| Error::unavailable(BACKEND, format!("a read failed: {error}")))?
    }

    /// The same on this thread.
    pub(crate) fn run_blocking<T>(
        &self,
        read: impl FnOnce(&Connection, &HostTime) -> Result<T>,
    ) -> Result<T> {
        if self.turns.is_closed() {
            return Err(closed());
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let conn = match idle {
            Some(conn) => conn,
            None => connect(&self.options, false).map_err(definite)?,
        };
        // A connection whose transaction failed to end is not used again.
        conn.execute_batch("BEGIN").map_err(definite)?;
        let result = read(&conn, &self.time);
        conn.execute_batch("COMMIT").map_err(definite)?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < READERS {
            idle.push(conn);
        }
        result
    }

    pub(crate) async fn get(self: &Arc<Self>, key: &Key) -> Result<Found<Option<Object>>> {
        let (key, readers) = (key.clone(), Arc::clone(self));
        self.run(move |conn, _| {
            // Before the row is read: a touch that comes in between must not be missed, or an
            // object that lives would seem gone.
            let mut judge = readers.judge();
            let row = find(conn, &key).map_err(|error| of_row(error, &key))?;
            let object = row.and_then(|row| judge.read(&row));
            Ok((object, judge.in_doubt))
        })
        .await
    }

    pub(crate) async fn list(self: &Arc<Self>, query: &Query) -> Result<Found<Page>> {
        let (query, readers) = (query.clone(), Arc::clone(self));
        self.run(move |conn, _| {
            let mut judge = readers.judge();
            let page = page(conn, &query, &mut judge)?;
            Ok((page, judge.in_doubt))
        })
        .await
    }
}

fn page(conn: &Connection, query: &Query, judge: &mut Judge) -> Result<Page> {
    let place = Key::new(&query.kind, query.after.as_deref().unwrap_or("…"));
    let revision = revision(conn).map_err(definite)?;
    let mut page = Page { objects: Vec::new(), next: None, revision };
    if let Some(name) = &query.name {
        let row = by_name(conn, &query.kind, name).map_err(|error| of_row(error, &place))?;
        let object = row.and_then(|row| judge.read(&row));
        let object = object.filter(|object| {
            query.matches(object) && query.after.as_ref().is_none_or(|after| object.key.id > *after)
        });
        page.objects.extend(object);
        return Ok(page);
    }
    scan(conn, query, judge, &mut page).map_err(|error| of_row(error, &place))?;
    Ok(page)
}

fn scan(
    conn: &Connection,
    query: &Query,
    judge: &mut Judge,
    page: &mut Page,
) -> rusqlite::Result<()> {
    let start = query.range.start();
    let (from, sql) = match query.after.as_deref() {
        Some(after) if after >= start => (
            after,
            with_columns!(
                "SELECT ",
                ", expires_at_ms FROM objects WHERE object_type = ?1 AND id > ?2 ORDER BY id"
            ),
        ),
        _ => (
            start,
            with_columns!(
                "SELECT ",
                ", expires_at_ms FROM objects WHERE object_type = ?1 AND id >= ?2 ORDER BY id"
            ),
        ),
    };
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query((&query.kind, from))?;
    let mut looked_at = 0;
    let mut last = None;
    while let Some(row) = rows.next()? {
        let row = stored(row)?;
        let id = &row.object.key.id;
        if query.range.is_past(id) {
            return Ok(());
        }
        if page.objects.len() == query.limit || looked_at == SCAN_ROWS {
            page.next = last;
            return Ok(());
        }
        looked_at += 1;
        last = Some(id.clone());
        if query.matches(&row.object) {
            page.objects.extend(judge.read(&row));
        }
    }
    Ok(())
}

#[async_trait]
impl History for Readers {
    async fn read_after(&self, after: u64, limit: usize) -> Result<Vec<Arc<Batch>>> {
        // Short and from the cache as a rule; a watcher this far behind can wait for a turn.
        let _turn = self.turns.acquire().await.map_err(|_| closed())?;
        self.run_blocking(|conn, _| batches_after(conn, after, limit))
    }
}
