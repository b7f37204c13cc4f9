//! The user's table that the suite counts in, on connections of the user's own.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension as _};
use tenure::Error;
use tenure::store::Attachment;
use tenure_conformance::{SharedTable, Then, UserTable};
use tenure_sqlite::SqlError;

struct Table {
    path: String,
}

/// The table in this file, made where it is missing.
pub(crate) async fn open(path: String) -> tenure::Result<SharedTable> {
    let table = Table { path };
    let create = "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, n INTEGER NOT NULL)";
    table.connect().and_then(|conn| conn.execute_batch(create)).map_err(trouble)?;
    Ok(Arc::new(table))
}

fn trouble(error: rusqlite::Error) -> Error {
    Error::unavailable("sqlite", error)
}

impl Table {
    fn connect(&self) -> rusqlite::Result<Connection> {
        let conn = Connection::open(&self.path)?;
        conn.busy_timeout(Duration::from_secs(10))?;
        Ok(conn)
    }
}

fn number(conn: &Connection, row: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT n FROM counts WHERE name = ?1";
    Ok(conn.query_row(sql, [row], |row| row.get(0)).optional()?.unwrap_or(0))
}

fn count(conn: &Connection, row: &str, then: &Then) -> Result<(), SqlError> {
    let next = number(conn, row)? + 1;
    let sql = "INSERT INTO counts VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET n = ?2";
    conn.execute(sql, (row, next))?;
    match then {
        Then::Apply => Ok(()),
        Then::Veto(error) => Err(error.clone().into()),
        Then::Fail => Ok(conn.execute_batch("SELECT * FROM no_such_table")?),
        // Without the words that a panic hook would print.
        Then::Panic => std::panic::resume_unwind(Box::new("as the test wants it")),
    }
}

impl UserTable for Table {
    fn count(&self, row: &str, then: Then) -> Attachment {
        let row = row.to_owned();
        tenure_sqlite::sql(move |conn| count(conn, &row, &then))
    }

    fn read(&self, row: &str) -> BoxFuture<'static, tenure::Result<u64>> {
        let number = self.connect().and_then(|conn| number(&conn, row)).map_err(trouble);
        Box::pin(async { number })
    }
}
