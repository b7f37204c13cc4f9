//! The caller's own SQL in a commit's transaction.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt as _;
use tenure::store::Attachment;
use tenure::{Error, Result};
use tokio_postgres::Client;

use crate::BACKEND;
use crate::error::Failure;

/// How errors call it.
pub(crate) const WHAT: &str = "SQL in a commit";

/// What a closure of [`sql()`] returns: `Box::pin(async move { … })`.
pub type SqlFuture<'a> = Pin<Box<dyn Future<Output = Result<(), SqlError>> + Send + 'a>>;

type Closure = dyn Fn(&Client) -> SqlFuture<'_> + Send + Sync;

/// What an attachment of this backend holds.
struct Work(Box<Closure>);

/// Why a closure of [`sql()`] wants its commit undone: `?` makes one of the driver's errors and of
/// [`tenure::Error`] alike.
#[derive(Debug)]
#[non_exhaustive]
pub enum SqlError {
    /// A statement failed.
    Postgres(tokio_postgres::Error),
    /// The closure said no; the commit is answered with exactly this.
    Veto(Error),
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(error) => error.fmt(f),
            Self::Veto(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SqlError {}

impl From<tokio_postgres::Error> for SqlError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<Error> for SqlError {
    fn from(error: Error) -> Self {
        Self::Veto(error)
    }
}

/// Attaches SQL on the caller's own tables, in the same database, to a commit: both apply, or neither
/// does.
///
/// ```no_run
/// # async fn example(store: tenure::store::Store) -> tenure::Result<()> {
/// use tenure::{Error, Key, store::{Commit, Put}};
///
/// let item = "chair".to_owned();
/// let order = Commit::from(Put::new(Key::new("order", "1001"), "one chair"));
/// store
///     .commit(order.attach(tenure_postgres::sql(move |client| {
///         let item = item.clone();
///         Box::pin(async move {
///             let sql = "update stock set remaining = remaining - 1 \
///                        where item = $1 and remaining > 0";
///             match client.execute(sql, &[&item]).await? {
///                 1 => Ok(()),
///                 _ => Err(Error::invalid("order", "none are left").into()),
///             }
///         })
///     })))
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// The closure runs **before** the commit's conditions are looked at, on a session of its own in a
/// transaction at `read committed`; then the store's counter is locked, the commit decided, and all of
/// it committed or rolled back. So it may wait for locks of the caller's without holding up anybody
/// else's commits, and it does not see the commit's own writes. Several attachments run in order.
///
/// - An error undoes the commit. A statement that fails is [`Error::Invalid`], unless the server is in
///   trouble; a deadlock or serialization failure is [`Error::Unavailable`], and the commit may simply
///   be tried again. An [`Error`] of the closure's own is passed on as it is.
/// - A panic does the same as an error, unless the program aborts on panics.
/// - **It may run more than once** for one commit, so it should touch nothing but the client.
/// - It runs in the caller's task, at most four at a time in a process; others wait their turn. After
///   [`Options::sql_timeout`](crate::Options::sql_timeout) it is cut off and the commit is
///   [`Error::Unavailable`].
/// - Writes to `objects` fail: they belong into the commit. It must leave the store's other tables
///   alone, and lock no row of `objects`, be it by a foreign key: the store could wait for it.
/// - It must not end the transaction. That is noticed before anything of the commit is written, but
///   what it committed itself stays.
/// - Settings, temporary tables and advisory locks do not outlive the commit.
pub fn sql<F>(work: F) -> Attachment
where
    F: for<'a> Fn(&'a Client) -> SqlFuture<'a> + Send + Sync + 'static,
{
    Attachment::new(BACKEND, Work(Box::new(work)))
}

/// Why attachments did not come to a good end.
pub(crate) struct Stopped {
    pub(crate) error: Error,
    /// A statement may still be running on the session.
    pub(crate) midway: bool,
}

/// Runs the attachments of one commit, on a session with an open transaction.
pub(crate) async fn run(
    client: &Client,
    attachments: &[Attachment],
    limit: Duration,
) -> Result<(), Stopped> {
    let all = async {
        for attachment in attachments {
            let Some(Work(work)) = attachment.work() else {
                let reason = "it was not made by this version's tenure_postgres::sql";
                return Err(Error::invalid(WHAT, reason).into());
            };
            work(client).await?;
        }
        Ok(())
    };
    // What the closure shares with others is its own affair; of ours it sees the client alone.
    let all = AssertUnwindSafe(all).catch_unwind();
    match tokio::time::timeout(limit, all).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(SqlError::Veto(error)))) => Err(Stopped { error, midway: false }),
        Ok(Ok(Err(SqlError::Postgres(error)))) => {
            Err(Stopped { error: of_statement(error, limit), midway: false })
        }
        Ok(Err(panic)) => {
            let error = Error::invalid(WHAT, format!("it panicked: {}", text_of(&*panic)));
            Err(Stopped { error, midway: true })
        }
        Err(_) => Err(Stopped { error: too_long(limit), midway: true }),
    }
}

fn too_long(limit: Duration) -> Error {
    let reason = format!(
        "the SQL of this commit took more than {limit:?}, and was rolled back; does it wait for a \
         lock? make it shorter or raise sql_timeout"
    );
    Error::unavailable(BACKEND, reason)
}

/// What is wrong with the statement is the caller's to mend; what is wrong with the server is not.
pub(crate) fn of_statement(error: tokio_postgres::Error, limit: Duration) -> Error {
    let Some(db) = error.as_db_error() else {
        let source = std::error::Error::source(&error);
        let broken = error.is_closed() || source.is_some_and(|source| source.is::<io::Error>());
        return match broken {
            true => Failure::from(error).error,
            false => Error::invalid(WHAT, with_source(&error)),
        };
    };
    let (code, message) = (db.code().code(), db.message());
    let told = format!("{message} (SQLSTATE {code})");
    match (code, &code[..2]) {
        ("57014", _) => too_long(limit),
        ("55P03", _) | (_, "40") => {
            let reason = format!("the SQL of this commit met others' work: {told}; try again");
            Error::unavailable(BACKEND, reason)
        }
        ("42501", _) if message.contains("too old to write") => {
            Error::invalid(WHAT, "it may not write to objects; put the write into the commit")
        }
        ("25P02", _) => Error::invalid(WHAT, "it went on after a statement of it had failed"),
        ("25006", _) | (_, "08" | "53" | "57" | "58" | "XX") => Failure::from(error).error,
        _ => Error::invalid(WHAT, told),
    }
}

/// What a failure between the closure's end and the commit means: a constraint that is looked at
/// only then is the closure's affair.
pub(crate) fn of_commit(failure: Failure) -> Error {
    match failure.error {
        Error::Unavailable { reason, .. } if failure.blames_request => Error::invalid(WHAT, reason),
        error => error,
    }
}

/// The driver says "error deserializing column 0" and keeps the reason for those who ask.
fn with_source(error: &tokio_postgres::Error) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
