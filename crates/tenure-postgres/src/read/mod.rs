//! Reads: one statement each, so one snapshot each, on a few connections that everybody shares.
//!
//! Rows come back with their expiry and the time, and are judged here. A row that looks expired is
//! looked at once more under a lock: a touch or a put that is just being committed may have saved it,
//! and an object must never seem gone and then be there again.

mod list;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Guarded, PoisonError};
use std::time::Duration;

use tenure::backend::decide::Row;
use tenure::{Error, Key, Object, Result};
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row as SqlRow, Statement};

use crate::commit::apply::Keys;
use crate::connect::session::{Connector, Role, Session};
use crate::error::Failure;
use crate::row::{COLUMNS, decode_joined, unsigned};
use crate::shared::Shared;
use crate::time::{Reading, Sample, WALL_MS};

/// After a failed attempt to connect, further callers share its error for so long.
const CALM: Duration = Duration::from_millis(100);

/// Where every reading statement starts: the counter row and the clock.
pub(crate) fn meta_columns() -> String {
    format!("m.revision, m.next_expiry_ms, m.clock_offset_ms, m.clock_last_ms, {WALL_MS}")
}

/// How many they are.
pub(crate) const META_COUNT: usize = 5;

/// The counter row as a reader saw it, and the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) revision: u64,
    pub(crate) next_expiry_ms: i64,
    pub(crate) reading: Reading,
}

impl Meta {
    /// Decodes the first columns of a row that was asked for at `sent` and has just arrived.
    pub(crate) fn received(shared: &Shared, sent: Duration, row: &SqlRow) -> Self {
        let sample = Sample { wall_ms: row.get(4), offset_ms: row.get(2), last_ms: row.get(3) };
        Self {
            revision: unsigned(row.get(0)),
            next_expiry_ms: row.get(1),
            reading: shared.time.received(sent, sample),
        }
    }
}

/// The reading connections. Requests on one are pipelined, so nobody waits for a free one.
pub(crate) struct Readers {
    slots: Vec<Mutex<Slot>>,
    next: AtomicUsize,
}

#[derive(Default)]
struct Slot {
    reader: Option<Arc<Reader>>,
    failed: Option<(Duration, Error)>,
}

/// One reading connection and its prepared statements.
pub(crate) struct Reader {
    session: Session,
    statements: Guarded<HashMap<String, Statement>>,
    /// Nobody was answered on it in time.
    hangs: AtomicBool,
}

impl Readers {
    pub(crate) fn new(connections: usize) -> Self {
        let slots = (0..connections).map(|_| Mutex::default()).collect();
        Self { slots, next: AtomicUsize::new(0) }
    }

    async fn reader(&self, connector: &Connector) -> Result<Arc<Reader>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let mut slot = self.slots[turn].lock().await;
        if let Some(reader) = &slot.reader
            && !reader.is_lost()
        {
            return Ok(Arc::clone(reader));
        }
        let uptime = connector.options.clock.uptime();
        if let Some((at, error)) = &slot.failed
            && uptime < *at + CALM
        {
            return Err(error.clone());
        }
        match connector.open(Role::Read).await {
            Ok(session) => {
                let reader = Arc::new(Reader::new(session));
                *slot = Slot { reader: Some(Arc::clone(&reader)), failed: None };
                Ok(reader)
            }
            Err(error) => {
                let at = connector.options.clock.uptime();
                *slot = Slot { reader: None, failed: Some((at, error.clone())) };
                Err(error)
            }
        }
    }
}

impl Reader {
    fn new(session: Session) -> Self {
        Self { session, statements: Guarded::default(), hangs: AtomicBool::new(false) }
    }

    fn is_lost(&self) -> bool {
        self.session.client.is_closed() || self.hangs.load(Ordering::Relaxed)
    }

    async fn statement(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let known =
            self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.session.client.prepare(sql).await?;
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Shared {
    /// Runs a reading statement and tells when it was sent. A connection that turns out to be dead
    /// is replaced once: reading twice harms nobody.
    pub(crate) async fn read(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(Duration, Vec<SqlRow>)> {
        self.check_open()?;
        let mut retried = false;
        loop {
            let reader = self.readers.reader(&self.connector).await?;
            let patience = self.connector.options.reply_timeout;
            let work = async {
                let statement = reader.statement(sql).await?;
                let sent = self.time.sent();
                let rows = reader.session.client.query(&statement, parameters).await?;
                Ok((sent, rows))
            };
            let failure: Failure = match tokio::time::timeout(patience, work).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) => tokio_postgres::Error::into(error),
                Err(_) => {
                    // The next one tries another.
                    reader.hangs.store(true, Ordering::Relaxed);
                    Failure::timeout("a read", patience)
                }
            };
            if retried || !failure.transient {
                return Err(failure.error);
            }
            retried = true;
        }
    }

    /// The counter row and the time.
    pub(crate) async fn meta(&self) -> Result<Meta> {
        let sql = format!("select {} from tenure_meta m", meta_columns());
        let (sent, rows) = self.read(&sql, &[]).await?;
        let row = rows.first().ok_or_else(empty_meta)?;
        Ok(Meta::received(self, sent, row))
    }

    /// The object, if it is there and has not expired.
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let sql = format!(
            "select {}, {COLUMNS} from tenure_meta m \
             left join objects o on o.object_type = $1 and o.id = $2",
            meta_columns()
        );
        let (sent, rows) = self.read(&sql, &[&key.kind, &key.id]).await?;
        let found = rows.first().ok_or_else(empty_meta)?;
        let meta = Meta::received(self, sent, found);
        let Some(row) = decode_joined(found, META_COUNT)? else { return Ok(None) };
        if let Some(object) = row.read(meta.reading.store_ms) {
            return Ok(Some(object));
        }
        let (saved, reading) = self.look_again(&[&row]).await?;
        Ok(saved.first().and_then(|row| row.read(reading.store_ms)))
    }

    /// The rows among these that a touch or a put has saved from expiring, read under a lock that waits
    /// for those in flight. One that was created anew meanwhile had expired before.
    pub(crate) async fn look_again(&self, expired: &[&Row]) -> Result<(Vec<Row>, Reading)> {
        let mut keys = Keys::default();
        expired.iter().for_each(|row| keys.push(&row.object.key.kind, &row.object.key.id));
        let parameters = keys.parameters();
        // Two statements: the second one's snapshot must be younger than the locks of the first.
        let wait = "select count(*) from (select from \
                    unnest($1::text[], $2::text[]) as k (object_type, id) \
                    join objects o on o.object_type = k.object_type and o.id = k.id \
                    order by o.object_type, o.id for share of o) as locked";
        self.read(wait, &parameters).await?;
        let sql = format!(
            "select {}, {COLUMNS} from tenure_meta m left join ( \
             unnest($1::text[], $2::text[]) as k (object_type, id) \
             join objects o on o.object_type = k.object_type and o.id = k.id) on true",
            meta_columns()
        );
        let (sent, rows) = self.read(&sql, &parameters).await?;
        let first = rows.first().ok_or_else(empty_meta)?;
        let reading = Meta::received(self, sent, first).reading;
        let rows = rows.iter().map(|row| decode_joined(row, META_COUNT));
        let rows = rows.collect::<Result<Vec<_>>>()?.into_iter().flatten();
        let same = |row: &Row| {
            expired.iter().any(|old| {
                old.object.key == row.object.key
                    && old.object.created_revision == row.object.created_revision
            })
        };
        Ok((rows.filter(same).collect(), reading))
    }
}

pub(crate) fn empty_meta() -> Error {
    Error::corrupt(crate::BACKEND, "table tenure_meta is empty; restore it from a backup")
}
