//! The caller's own SQL in a commit's transaction.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, ErrorCode};
use tenure::store::Attachment;
use tenure::{Error, Result};

use crate::error::{BACKEND, definite};
use crate::guard::{Guard, Seen};

/// How errors call it.
const WHAT: &str = "SQL in a commit";

type Closure = dyn Fn(&Connection) -> Result<(), SqlError> + Send + Sync;

/// What an attachment of this backend holds.
struct Work(Box<Closure>);

/// Why a closure of [`sql()`] wants its commit undone: `?` makes one of SQLite's errors and of
/// [`tenure::Error`] alike.
#[derive(Debug)]
#[non_exhaustive]
pub enum SqlError {
    /// A statement failed.
    Sqlite(rusqlite::Error),
    /// The closure said no; the commit is answered with exactly this.
    Veto(Error),
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => error.fmt(f),
            Self::Veto(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SqlError {}

impl From<rusqlite::Error> for SqlError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for SqlError {
    fn from(error: Error) -> Self {
        Self::Veto(error)
    }
}

/// Attaches SQL on the caller's own tables, in the same file, to a commit: both apply, or neither
/// does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("app.db");
/// use tenure::{Error, Key, store::{Commit, Put}};
/// use tenure_sqlite::SqliteStore;
///
/// let store = SqliteStore::open(&path)?.into_store();
/// let own = tenure_sqlite::rusqlite::Connection::open(&path)?;
/// own.execute_batch("CREATE TABLE stock (item TEXT PRIMARY KEY, left INTEGER NOT NULL);
///                    INSERT INTO stock VALUES ('chair', 1)")?;
///
/// let order = |id: &str| {
///     let put = Put::new(Key::new("order", id), "one chair");
///     Commit::from(put).attach(tenure_sqlite::sql(|connection| {
///         let sql = "UPDATE stock SET left = left - 1 WHERE item = ?1 AND left > 0";
///         match connection.execute(sql, ["chair"])? {
///             1 => Ok(()),
///             _ => Err(Error::invalid("order", "no chairs are left").into()),
///         }
///     }))
/// };
/// store.commit(order("1")).await?;
/// let error = store.commit(order("2")).await.unwrap_err();
/// assert_eq!(error.to_string(), "invalid order: no chairs are left");
/// assert!(store.get(&Key::new("order", "2")).await?.is_none());
/// # Ok(())
/// # }
/// ```
///
/// The closure runs after the commit's conditions were met and its writes applied, so it sees them in
/// `objects`; a refused commit never gets there. Several attachments run in order.
///
/// - An error undoes the commit, and it alone. A statement that fails is [`Error::Invalid`], unless
///   the store itself is in trouble; an [`Error`] of the closure's own is passed on as it is.
/// - A panic does the same as an error, unless the program aborts on panics.
/// - **It may run more than once** for one commit, so it should touch nothing but the connection:
///   commits share a transaction, which starts over when the SQL of one of them breaks it.
/// - It runs on the store's writer thread and holds up every other writer, so it must be short: no
///   waiting, no calls to the store. After [`Options::sql_timeout`](crate::Options::sql_timeout) it
///   is stopped and the commit is [`Error::Unavailable`]; what it does outside of SQLite cannot be
///   stopped, but counts.
/// - It cannot commit or roll back, write to the store's tables or change them, make temporary
///   tables, attach databases or set most pragmas: those statements fail. Savepoints are fine.
pub fn sql<F>(work: F) -> Attachment
where
    F: Fn(&Connection) -> Result<(), SqlError> + Send + Sync + 'static,
{
    Attachment::new(BACKEND, Work(Box::new(work)))
}

/// Runs the attachments of one commit. Afterwards the connection may have lost its transaction.
pub(crate) fn run(conn: &Connection, guard: &Guard, attachments: &[Attachment]) -> Result<()> {
    let guarded = guard.during(conn, || {
        // What the closure shares with others is its own affair; of ours it sees the connection
        // alone, whose statements are finished as they are dropped.
        catch_unwind(AssertUnwindSafe(|| attachments.iter().try_for_each(|one| run_one(conn, one))))
    });
    let (done, seen) = guarded.map_err(definite)?;
    if let Some(limit) = seen.late {
        let reason = format!(
            "the SQL of this commit took more than {limit:?}, and was rolled back; make it shorter \
             or raise sql_timeout"
        );
        return Err(Error::unavailable(BACKEND, reason));
    }
    let outcome = match done {
        Ok(Ok(())) => Ok(()),
        Ok(Err(SqlError::Veto(error))) => Err(error),
        Ok(Err(SqlError::Sqlite(error))) => Err(of_statement(error, seen)),
        Err(panic) => Err(Error::invalid(WHAT, format!("it panicked: {}", text_of(&*panic)))),
    };
    if outcome.is_ok() && conn.is_autocommit() {
        let reason = "a conflict clause or trigger of its own rolled the transaction back";
        return Err(Error::invalid(WHAT, reason));
    }
    outcome
}

fn run_one(conn: &Connection, attachment: &Attachment) -> Result<(), SqlError> {
    let Some(Work(work)) = attachment.work() else {
        let reason = "it was not made by this version's tenure_sqlite::sql";
        return Err(Error::invalid(WHAT, reason).into());
    };
    work(conn)
}

/// What is wrong with the statement is the caller's to mend; what is wrong with the store is not.
fn of_statement(error: rusqlite::Error, seen: Seen) -> Error {
    match (error.sqlite_error_code(), seen.refused) {
        (Some(ErrorCode::AuthorizationForStatementDenied), Some(refused)) => {
            Error::invalid(WHAT, refused)
        }
        (
            Some(
                ErrorCode::DiskFull
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::SystemIoFailure
                | ErrorCode::OutOfMemory,
            ),
            _,
        ) => definite(error),
        _ => Error::invalid(WHAT, error.to_string()),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
