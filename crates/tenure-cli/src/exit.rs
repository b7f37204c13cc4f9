//! Exit codes that scripts can rely on, and the variables that every command heeds.

use std::fmt;

use tenure::Error;

pub(crate) const FAILED: u8 = 1;
const NOT_FOUND: u8 = 3;
const CONFLICT: u8 = 4;
pub(crate) const LOST: u8 = 5;
const REFUSED: u8 = 6;
const UNAVAILABLE: u8 = 7;
const UNKNOWN: u8 = 8;
const DAMAGED: u8 = 9;
const COMPACTED: u8 = 10;
const HELD: u8 = 11;

/// What each of them says.
pub(crate) const CODES: &[(u8, &str)] = &[
    (0, "done"),
    (FAILED, "failed for another reason (a check that did not pass, a file that cannot be read)"),
    (2, "the command line is wrong: a flag, a duration, a scope"),
    (NOT_FOUND, "the object is not there, nobody holds the lease, or nothing is left to reap"),
    (CONFLICT, "somebody was first: changed, already exists, or the name is taken"),
    (
        LOST,
        "the lease is lost: the one that fenced the write, that the command ran under (also if it ended before it heard of it), or whose token was given",
    ),
    (
        REFUSED,
        "refused: invalid, a path without a store, over a limit, not supported by this store, or this program is too old",
    ),
    (UNAVAILABLE, "the store cannot be reached or has no room; nothing was written"),
    (UNKNOWN, "the outcome is unknown; read again before you retry"),
    (DAMAGED, "the store is damaged"),
    (COMPACTED, "the history asked for is gone; list again"),
    (HELD, "somebody else holds it, and the wait is over"),
];

/// What `tenure run` ends with besides.
pub(crate) const OF_RUN: &str = "of `tenure run`: the command's own; 126 if it cannot be run, 127 if it is not there, and 128 plus the number of the signal that ended it, or that came before it began";

/// The environment of every command; what else some heed is told with their options.
pub(crate) const ENVIRONMENT: &[(&str, &str)] = &[
    ("TENURE_STORE", "the store, for instance sqlite:/var/lib/tenure.db or postgres://db/app"),
    (
        "TENURE_SERVER",
        "a server instead of a store, for instance http://127.0.0.1:8368, or several: https://a:8368,https://b:8368",
    ),
    ("TENURE_BEARER", "the token to show to the server"),
    ("TENURE_CA", "the file (PEM) with the authority that signed the server's certificate"),
    ("TENURE_CERT", "the file (PEM) with a certificate to show to the server"),
    ("TENURE_KEY", "the file (PEM) with the key of that certificate"),
    ("TENURE_LOG", "what to log to standard error, for instance info or tenure=debug"),
];

/// Why a command failed, in words that its user knows better than those of the store.
#[derive(Debug)]
pub(crate) struct Told {
    code: u8,
    message: String,
}

impl Told {
    /// Something is not there.
    pub(crate) fn not_found(message: String) -> Self {
        Self { code: NOT_FOUND, message }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Told {}

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    if let Some(told) = error.downcast_ref::<Told>() {
        return told.code;
    }
    match error.downcast_ref::<Error>() {
        None => FAILED,
        Some(Error::NotFound { .. }) => NOT_FOUND,
        Some(Error::AlreadyExists { .. } | Error::Conflict { .. } | Error::NameTaken { .. }) => {
            CONFLICT
        }
        Some(Error::Lost { .. }) => LOST,
        Some(
            Error::Unsupported { .. }
            | Error::Invalid { .. }
            | Error::LimitExceeded { .. }
            | Error::Refused { .. },
        ) => REFUSED,
        Some(Error::Unavailable { .. } | Error::Full { .. }) => UNAVAILABLE,
        Some(Error::Unknown { .. }) => UNKNOWN,
        Some(Error::Corrupt { .. }) => DAMAGED,
        Some(Error::Compacted { .. }) => COMPACTED,
        Some(Error::Held { .. }) => HELD,
        Some(_) => FAILED,
    }
}

/// Whether the reader of our output has gone, as `head` does; that is its right.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::Key;

    #[test]
    fn every_code_is_documented() {
        let key = Key::new("k", "1");
        let errors = [
            Error::NotFound { key },
            Error::unavailable("x", "y"),
            Error::unknown("x", "y"),
            Error::corrupt("x", "y"),
            Error::invalid("x", "y"),
            Error::Compacted { requested: 1, oldest: 2 },
        ];
        for error in errors {
            let code = code(&anyhow::Error::from(error));
            assert!(CODES.iter().any(|(known, _)| *known == code), "{code}");
        }
    }
}
