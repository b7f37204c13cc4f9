//! Rows that the writer has seen or written, so that it need not ask for them again.
//!
//! True for as long as nobody else writes to the file, which SQLite tells at the start of every
//! transaction. Bounded: what does not fit any more makes it start over.

use foldhash::HashMap;
use rusqlite::Connection;
use tenure::backend::decide::Row;
use tenure::{Key, Object};

/// Bytes of rows that are kept.
const BYTES: usize = 8 * 1024 * 1024;
/// A row with a larger payload is read again each time.
const ROW_BYTES: usize = 16 * 1024;
/// What an entry costs beside its texts, about.
const ENTRY_BYTES: usize = 256;

/// What is known of the rows, absent ones included.
#[derive(Default)]
pub(crate) struct Known {
    rows: HashMap<Key, Option<Row>>,
    bytes: usize,
    data_version: Option<i64>,
}

impl Known {
    /// Looks whether the file is as this connection left it; whether it still is. Inside a
    /// transaction, since only there nobody else can write.
    pub(crate) fn begin(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let sql = "PRAGMA data_version";
        let version = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        let same = self.data_version == Some(version);
        if !same {
            self.clear();
            self.data_version = Some(version);
        }
        Ok(same)
    }

    /// Forgets everything: what was written may have been undone. Whoever begins next has to look at the
    /// file as if it were new, so that what refused it once refuses it again.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.bytes = 0;
        self.data_version = None;
    }

    /// The row, or that there is none; `None` if nothing is known.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Row>> {
        self.rows.get(key).cloned()
    }

    /// This is how the row is now.
    pub(crate) fn set(&mut self, key: &Key, row: Option<Row>) {
        if row.as_ref().is_some_and(|row| !fits(&row.object)) {
            self.forget(key);
            return;
        }
        self.bytes += size(key, row.as_ref());
        match self.rows.get_mut(key) {
            Some(known) => {
                self.bytes -= size(key, known.as_ref());
                *known = row;
            }
            None => {
                self.rows.insert(key.clone(), row);
            }
        }
        if self.bytes > BYTES {
            self.clear();
        }
    }

    /// A life was prolonged.
    pub(crate) fn extend(&mut self, key: &Key, expires_at_ms: i64) {
        if let Some(Some(row)) = self.rows.get_mut(key) {
            row.expires_at_ms = Some(expires_at_ms);
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(known) = self.rows.remove(key) {
            self.bytes -= size(key, known.as_ref());
        }
    }
}

fn size(key: &Key, row: Option<&Row>) -> usize {
    let texts = |object: &Object| -> usize {
        let labels: usize =
            object.labels.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        labels + object.payload.len() + object.name.as_ref().map_or(0, String::len)
    };
    ENTRY_BYTES + 2 * (key.kind.len() + key.id.len()) + row.map_or(0, |row| texts(&row.object))
}

/// Whether a row is small, and is kept in the file just as it is here: lives there have whole
/// milliseconds.
fn fits(object: &Object) -> bool {
    object.payload.len() <= ROW_BYTES
        && object.ttl.is_none_or(|ttl| ttl.subsec_nanos() % 1_000_000 == 0)
}
