//! Rows that the writer has read or written, so that it need not ask for them again.
//!
//! They are true for as long as nobody else writes to the file, which SQLite tells at the start of every
//! transaction. Their number is bounded by what they weigh.

use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use rusqlite::Connection;
use tenure::backend::decide::Row;
use tenure::{Key, Object};

/// Bytes of rows that are kept.
const BYTES: usize = 8 * 1024 * 1024;
/// A row with a larger payload is read again each time.
const ROW_BYTES: usize = 16 * 1024;
/// What an entry costs beside its texts, about.
const ENTRY_BYTES: usize = 256;
/// The share of the room for rows that were used more than once. The rest is for the latest.
const USED_AGAIN: f64 = 0.5;

/// What is known of the rows, absent ones included.
pub(crate) struct Known {
    rows: Cache<Key, Option<Row>, Bytes>,
    data_version: Option<i64>,
}

/// What a row weighs.
struct Bytes;

impl Weighter<Key, Option<Row>> for Bytes {
    fn weight(&self, key: &Key, row: &Option<Row>) -> u64 {
        size(key, row.as_ref()) as u64
    }
}

impl Default for Known {
    fn default() -> Self {
        let options = OptionsBuilder::new()
            .weight_capacity(BYTES as u64)
            .estimated_items_capacity(BYTES / ENTRY_BYTES)
            .hot_allocation(USED_AGAIN)
            .build()
            .expect("both capacities are given");
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self { rows: Cache::with_options(options, Bytes, hasher, lifecycle), data_version: None }
    }
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
        self.data_version = None;
    }

    /// The row, or that there is none; `None` if nothing is known.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Row>> {
        self.rows.get(key).cloned()
    }

    /// This is how the row is now.
    pub(crate) fn set(&mut self, key: &Key, row: Option<Row>) {
        if row.as_ref().is_none_or(|row| fits(&row.object)) {
            self.rows.insert(key.clone(), row);
        } else {
            self.rows.remove(key);
        }
    }

    /// A life was prolonged.
    pub(crate) fn extend(&mut self, key: &Key, expires_at_ms: i64) {
        if let Some(mut known) = self.rows.peek_mut(key)
            && let Some(row) = &mut *known
        {
            row.expires_at_ms = Some(expires_at_ms);
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
