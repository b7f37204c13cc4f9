//! What a failed call means: whether anything can have happened.

use std::error::Error as _;

use tenure::Error;
use tenure_proto::status;
use tonic::{Code, ConnectError, Status};

use crate::BACKEND;

/// What to do about a call that was refused for want of credentials.
const GIVE_A_TOKEN: &str = "give the client a token (the command line takes it from TENURE_BEARER)";

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Nothing left this machine.
    NotSent(String),
    /// The server said that it did nothing, since it leaves or is full. Another may do better.
    Declined(String),
    /// It may have been done: it left, and its answer did not come.
    Unknown(String),
    /// The server's definite answer.
    No(Error),
}

impl Fault {
    /// What it means for a call that may have changed something.
    pub(crate) fn of_write(self) -> Error {
        match self {
            Self::NotSent(why) | Self::Declined(why) => Error::unavailable(BACKEND, why),
            Self::Unknown(why) => Error::unknown(BACKEND, why),
            Self::No(error) => error,
        }
    }

    /// The reason alone.
    pub(crate) fn why(self) -> String {
        match self {
            Self::NotSent(why) | Self::Declined(why) | Self::Unknown(why) => why,
            Self::No(error) => error.to_string(),
        }
    }

    /// What it means for a call that changes nothing.
    pub(crate) fn of_read(self) -> Error {
        match self {
            Self::Unknown(why) => Error::unavailable(BACKEND, why),
            other => other.of_write(),
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        if let Some(error) = status::error(&status) {
            if error.code == status::UNAUTHENTICATED {
                let reason = format!("{}; {GIVE_A_TOKEN}", error.message);
                return Self::No(Error::Refused { backend: BACKEND, reason });
            }
            return match Error::from(error) {
                // The server itself is leaving or has no room; its store's troubles are everybody's.
                Error::Unavailable { backend: BACKEND, reason } => Self::Declined(reason),
                error => Self::No(error),
            };
        }
        if never_sent(&status) {
            return Self::NotSent(describe(&status));
        }
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
                let reason = format!("{}; is it a server of Tenure?", status.message());
                Self::No(Error::Refused { backend: BACKEND, reason })
            }
            Code::OutOfRange if status.message().contains("too large") => {
                Self::No(Error::invalid("message", status.message()))
            }
            _ => Self::Unknown(describe(&status)),
        }
    }
}

/// Whether the connection was never made, so that no request can have left.
fn never_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The status with all that lies behind it.
pub(crate) fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
