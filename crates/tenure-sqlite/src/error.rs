//! What SQLite says, in the contract's words.

use rusqlite::ErrorCode;
use tenure::Error;

pub(crate) const BACKEND: &str = "sqlite";

/// An error before anything was committed: nothing was applied.
pub(crate) fn definite(error: rusqlite::Error) -> Error {
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full { backend: BACKEND, reason },
        Some(ErrorCode::NotADatabase) => Error::corrupt(
            BACKEND,
            format!("{reason}; is the path right? If it is, keep a copy, and restore a backup"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => Error::corrupt(
            BACKEND,
            format!("{reason}; stop all users, keep a copy, and restore a backup or `.recover` it"),
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::unavailable(
            BACKEND,
            "another process has held the write lock for too long; is it stopped or stuck?",
        ),
        Some(ErrorCode::ReadOnly) => Error::unavailable(
            BACKEND,
            format!("{reason}; this user needs write permission on the file and its folder"),
        ),
        Some(ErrorCode::CannotOpen) => Error::unavailable(
            BACKEND,
            format!("{reason}; does the folder exist, and may this user write to it?"),
        ),
        _ => Error::unavailable(BACKEND, reason),
    }
}

/// An error of a write to `objects`. What others have made a rule there concerns whoever breaks it.
pub(crate) fn of_write(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) => Error::invalid(
            "write",
            format!("{error}: an index or trigger on `objects` that is not the store's refuses it"),
        ),
        _ => definite(error),
    }
}

/// An error of the commit itself. Out of space, contention and violated constraints are certain;
/// whether a failed flush left the transaction behind is not.
pub(crate) fn of_commit(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            definite(error)
        }
        // SQLite looks at deferred foreign keys first, and commits nothing if one is violated.
        Some(ErrorCode::ConstraintViolation) => Error::invalid(
            "commit",
            format!("{error}: a deferred constraint of a table of your own is violated"),
        ),
        _ => Error::unknown(BACKEND, format!("the commit could not be flushed: {error}")),
    }
}
