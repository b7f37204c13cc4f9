//! What a failed call means: whether anything can have happened, and whether to ask another server.

use tenure::Error;
use tonic::{Code, ConnectError, Status};

use crate::BACKEND;
use crate::connection::MAX_ANSWER;

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// This server certainly did nothing; another one, or a new connection, may do better.
    TryElsewhere(String),
    /// This server certainly did nothing, or nothing that counts, and would a little later, on the same
    /// connection: it has too much to do, or has just begun or ceased to lead.
    TryLater(String),
    /// It may have been done: the request left and its answer did not come, or does not say.
    Unknown(String),
    /// The etcd lease it names is gone; nothing was done.
    LeaseNotFound,
    /// A definite no, for which no server is better than another.
    Final(Error),
}

impl CallError {
    /// What was said, for a message that names etcd itself.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::TryElsewhere(why) | Self::TryLater(why) | Self::Unknown(why) => why.clone(),
            Self::LeaseNotFound => "an etcd lease ended while it was used".into(),
            Self::Final(error) => error.to_string(),
        }
    }

    /// The answer to a request that may have changed something.
    pub(crate) fn into_write_error(self) -> Error {
        match self {
            Self::TryElsewhere(why) | Self::TryLater(why) => Error::unavailable(BACKEND, why),
            Self::Unknown(why) => Error::unknown(BACKEND, why),
            Self::LeaseNotFound => {
                Error::unavailable(BACKEND, "an etcd lease ended while it was used")
            }
            Self::Final(error) => error,
        }
    }

    /// The answer to a request that changes nothing.
    pub(crate) fn into_read_error(self) -> Error {
        match self {
            Self::Unknown(why) => Error::unavailable(BACKEND, why),
            other => other.into_write_error(),
        }
    }
}

/// Errors that etcd gives before it has proposed anything, or instead of it.
const DID_NOTHING: [&str; 8] = [
    "etcdserver: no leader",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
    "raft proposal dropped",
    "raft: proposal dropped",
];

/// A call that tonic made sure not to send: no connection was there, or it ended while the call waited
/// for its turn.
fn was_not_sent(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| {
        cause.is::<ConnectError>()
            || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
    })
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// What is behind an error; the outer layers only say that the transport failed.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map_or_else(String::new, ToString::to_string)
}

/// What tonic calls an answer that is larger than it may be.
const TOO_LARGE: &str = "message length too large";

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // Only what did not come from the server has a source.
        if let Some(error) = std::error::Error::source(&status) {
            let reason = format!("no answer: {}", innermost(error));
            return if was_not_sent(error) {
                Self::TryElsewhere(reason)
            } else {
                Self::Unknown(reason)
            };
        }
        let text = status.message();
        let told = || text.to_owned();
        if status.code() == Code::OutOfRange && text.contains(TOO_LARGE) {
            let max = MAX_ANSWER as u64;
            let numbers = text.split(|c: char| !c.is_ascii_digit());
            let got = numbers.filter_map(|number| number.parse().ok()).next().unwrap_or(max + 1);
            return Self::Final(Error::LimitExceeded { limit: "answer_bytes", max, got });
        }
        if text.contains("requested lease not found") {
            return Self::LeaseNotFound;
        }
        if text.contains("etcdserver: too many requests") {
            return Self::TryLater(told());
        }
        if DID_NOTHING.iter().any(|known| text.contains(known)) {
            return Self::TryElsewhere(told());
        }
        if text.contains("database space exceeded") {
            return Self::Final(Error::Full { backend: BACKEND, reason: told() });
        }
        if text.contains("request is too large")
            || text.contains("too many operations")
            || text.contains("received message larger than max")
        {
            return Self::Final(Error::invalid(
                "commit",
                format!("{text}; the server allows less than etcd's defaults"),
            ));
        }
        if text.contains("corrupt") {
            return Self::Final(Error::corrupt(BACKEND, text));
        }
        match status.code() {
            // A wrong password, or a role that does not reach this far.
            Code::PermissionDenied | Code::InvalidArgument => {
                Self::Final(Error::Refused { backend: BACKEND, reason: told() })
            }
            Code::FailedPrecondition if text.contains("authentication is not enabled") => {
                let reason = format!("{text}; leave user and password out of the address");
                Self::Final(Error::Refused { backend: BACKEND, reason })
            }
            Code::Unauthenticated => Self::TryElsewhere(told()),
            _ => Self::Unknown(told()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_what_certainly_did_nothing_counts_as_nothing() {
        let fault = |code, text: &str| CallError::from(Status::new(code, text));
        let none = fault(Code::Unavailable, "etcdserver: no leader");
        assert!(matches!(none.into_write_error(), Error::Unavailable { .. }));
        let busy = fault(Code::ResourceExhausted, "etcdserver: too many requests");
        assert!(matches!(busy, CallError::TryLater(_)));
        assert!(matches!(busy.into_write_error(), Error::Unavailable { .. }));
        for text in [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "transport error",
        ] {
            assert!(fault(Code::Unavailable, text).into_write_error().is_unknown(), "{text}");
        }
        let unread = fault(Code::Unavailable, "etcdserver: request timed out");
        assert!(matches!(unread.into_read_error(), Error::Unavailable { .. }));
        assert!(matches!(
            fault(Code::NotFound, "etcdserver: requested lease not found"),
            CallError::LeaseNotFound
        ));
        let full = fault(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full.into_write_error(), Error::Full { .. }));
        let denied = fault(Code::PermissionDenied, "etcdserver: permission denied");
        assert!(matches!(denied.into_write_error(), Error::Refused { .. }));
    }

    #[test]
    fn what_tonic_did_not_send_counts_as_nothing_and_all_else_is_unknown() {
        let ended = || io::Error::new(io::ErrorKind::NotConnected, "it has ended");
        let unsent = Status::from_error(Box::new(ConnectError(Box::new(ended()))));
        assert!(
            matches!(CallError::from(unsent), CallError::TryElsewhere(why) if why.contains("it has ended"))
        );
        let broke = Status::from_error(Box::new(ended()));
        assert!(matches!(CallError::from(broke), CallError::Unknown(_)));
        let text =
            "Error, decoded message length too large: found 70000000 bytes, the limit is: 7 bytes";
        let large = CallError::from(Status::new(Code::OutOfRange, text)).into_read_error();
        assert!(matches!(large, Error::LimitExceeded { got: 70_000_000, .. }), "{large:?}");
    }
}
