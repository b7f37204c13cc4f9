//! What the server's errors mean to a caller.
//!
//! Everything here is about one question: was something applied? As long as `COMMIT` has not been
//! sent, or the server itself refused a statement, nothing was.

use tenure::Error;
use tokio_postgres::error::SqlState;

use crate::BACKEND;
use crate::commit::apply::CHANGED;

/// An exchange that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What to tell the caller.
    pub(crate) error: Error,
    /// Worth another attempt on a fresh connection, since nothing was applied.
    pub(crate) transient: bool,
    /// The server choked on a value, not on the state it is in: another request may fare better.
    pub(crate) blames_request: bool,
    /// A row was not where it had been read: somebody changed it who takes no part in the counter.
    pub(crate) moved: bool,
}

impl Failure {
    /// An exchange that took too long, before anything could be applied.
    pub(crate) fn timeout(what: &str, after: std::time::Duration) -> Self {
        Self {
            error: Error::unavailable(BACKEND, format!("{what} got no answer within {after:?}")),
            transient: false,
            blames_request: false,
            moved: false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, transient: false, blames_request: false, moved: false }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            let error = Error::unavailable(BACKEND, format!("the connection failed: {error}"));
            return Self { error, transient: true, blames_request: false, moved: false };
        };
        let code = db.code();
        let class = &code.code()[..2];
        // Connection, deadlock, operator intervention; and having been idle for too long.
        let transient = matches!(class, "08" | "40" | "57")
            || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT;
        let blames_request = matches!(class, "22" | "23" | "54");
        let moved = db.message().contains(CHANGED);
        Self { error: meaning(db), transient, blames_request, moved }
    }
}

fn meaning(db: &tokio_postgres::error::DbError) -> Error {
    let (code, message) = (db.code(), db.message());
    let told = || format!("{message} (SQLSTATE {})", code.code());
    match code.code() {
        "53100" => Error::Full { backend: BACKEND, reason: told() },
        "XX001" | "XX002" => Error::corrupt(
            BACKEND,
            format!("{}; check the server's disk and restore a backup if need be", told()),
        ),
        "25006" => Error::unavailable(
            BACKEND,
            format!(
                "{}; the server is a standby or set read-only: connect to the primary, or list all \
                 hosts and add target_session_attrs=read-write",
                told()
            ),
        ),
        "42501" if message.contains("too old to write") => {
            Error::Refused { backend: BACKEND, reason: message.to_owned() }
        }
        "42501" => Error::Refused {
            backend: BACKEND,
            reason: format!("{}; grant this user the rights on the schema and its tables", told()),
        },
        "42P01" | "42703" => Error::Refused {
            backend: BACKEND,
            reason: format!("{}; the tables changed under this program, restart it", told()),
        },
        "55P03" => Error::unavailable(
            BACKEND,
            "another session holds the commit lock, or that of a row, for too long; look in \
             pg_stat_activity for one that is idle in transaction",
        ),
        _ => Error::unavailable(BACKEND, told()),
    }
}

/// Why connecting failed, with the next step. `target` names host and database, never a password.
pub(crate) fn connecting(target: &str, error: &tokio_postgres::Error) -> Error {
    let Some(db) = error.as_db_error() else {
        // The interesting part ("connection refused", "no such host") is the source.
        let source = std::error::Error::source(error);
        let why = source.map_or_else(|| error.to_string(), ToString::to_string);
        let next = match why.contains("support TLS") {
            true => "turn on ssl there, or say sslmode=disable on a network you trust",
            false => "is the server running and reachable?",
        };
        let reason = format!("cannot connect to {target}: {why}; {next}");
        return Error::unavailable(BACKEND, reason);
    };
    let refused = |next: &str| Error::Refused {
        backend: BACKEND,
        reason: format!("{target}: {}; {next}", db.message()),
    };
    match db.code().code() {
        "28P01" | "28000" => refused("check user and password, and the server's pg_hba.conf"),
        "3D000" => refused("create the database first, or correct its name"),
        "53300" => Error::unavailable(
            BACKEND,
            format!("{target}: {}; raise max_connections or use fewer", db.message()),
        ),
        _ => Error::unavailable(BACKEND, format!("{target}: {}", db.message())),
    }
}

/// What to tell callers whose `COMMIT` was sent and whose answer never came.
pub(crate) fn commit_unanswered(why: &str) -> Error {
    Error::unknown(BACKEND, format!("the connection failed while committing: {why}"))
}

/// Whether the server itself has said no to a statement. Class 08 is what a pooler in between says of a
/// server that it has lost, and that may have done what it was asked.
pub(crate) fn refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db| !is_connection(db.code()))
}

fn is_connection(code: &SqlState) -> bool {
    code.code().starts_with("08")
}

/// Whether an error in answer to `COMMIT` itself proves that nothing was applied: the server ended
/// the transaction before it looked at the `COMMIT`, or refused it.
pub(crate) fn commit_refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db| {
        let code = db.code().code();
        code == "25P03" || matches!(&code[..2], "23" | "40" | "53")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pooler_says_of_a_server_it_has_lost_is_no_refusal() {
        for (code, connection) in [("08P01", true), ("08006", true), ("23505", false)] {
            assert_eq!(is_connection(&SqlState::from_code(code)), connection, "{code}");
        }
    }
}
