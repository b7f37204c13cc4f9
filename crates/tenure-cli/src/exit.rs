//! Exit codes that scripts can rely on.

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

/// Shown by `tenure --help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0   done
  1   failed for another reason (a check that did not pass, a file that cannot be read)
  2   the command line is wrong
  3   the object is not there
  4   somebody was first: changed, already exists, or the name is taken
  5   the lease is lost: the one that fenced the write, or that the command ran under
  6   refused: invalid, over a limit, not supported by this store, or this program is too old
  7   the store cannot be reached or has no room; nothing was written
  8   the outcome is unknown; read again before you retry
  9   the store is damaged
  10  the history asked for is gone; list again
  11  somebody else holds it, and the wait is over
  of `tenure run`: the command's own; 126 if it cannot be run, 127 if it is not there, and 128 plus
  the number of the signal that ended it, or the wait

Environment:
  TENURE_STORE  the store, for instance sqlite:/var/lib/tenure.db or postgres://db/app
  TENURE_SERVER a server instead of a store, for instance http://127.0.0.1:8368
  TENURE_TOKEN  the token to show to it; TENURE_CA, TENURE_CERT and TENURE_KEY name PEM files for TLS
  TENURE_NAME   the name that others see of `tenure run`
  TENURE_LOG    what to log to standard error, for instance info or tenure=debug";

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
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
            assert!(HELP.contains(&format!("\n  {code:<3} ")), "{code}");
        }
    }
}
