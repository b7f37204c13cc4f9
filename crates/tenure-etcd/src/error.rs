//! What a failed call means: whether anything can have happened, and whether to ask elsewhere.

use tenure::Error;
use tonic::{Code, Status};

use crate::BACKEND;

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// This server certainly did nothing; another one, or a new connection, may do better.
    Elsewhere(String),
    /// This server certainly did nothing, or nothing that counts, and would a little later, on the same
    /// connection: it has too much to do, or has just begun or ceased to lead.
    Later(String),
    /// It may have been done: the request left and its answer did not come, or does not say.
    Unclear(String),
    /// The etcd lease it names is gone; nothing was done.
    NoLease,
    /// A definite no, for which no server is better than another.
    No(Error),
}

impl Fault {
    /// What was said, for a message that names etcd itself.
    pub(crate) fn why(&self) -> String {
        match self {
            Self::Elsewhere(why) | Self::Later(why) | Self::Unclear(why) => why.clone(),
            Self::NoLease => "an etcd lease ended while it was used".into(),
            Self::No(error) => error.to_string(),
        }
    }

    /// The answer to a request that may have changed something.
    pub(crate) fn of_write(self) -> Error {
        match self {
            Self::Elsewhere(why) | Self::Later(why) => Error::unavailable(BACKEND, why),
            Self::Unclear(why) => Error::unknown(BACKEND, why),
            Self::NoLease => Error::unavailable(BACKEND, "an etcd lease ended while it was used"),
            Self::No(error) => error,
        }
    }

    /// The answer to a request that changes nothing.
    pub(crate) fn of_read(self) -> Error {
        match self {
            Self::Unclear(why) => Error::unavailable(BACKEND, why),
            other => other.of_write(),
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

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        let text = status.message();
        let told = || text.to_owned();
        if text.contains("requested lease not found") {
            return Self::NoLease;
        }
        if text.contains("etcdserver: too many requests") {
            return Self::Later(told());
        }
        if DID_NOTHING.iter().any(|known| text.contains(known)) {
            return Self::Elsewhere(told());
        }
        if text.contains("database space exceeded") {
            return Self::No(Error::Full { backend: BACKEND, reason: told() });
        }
        if text.contains("request is too large")
            || text.contains("too many operations")
            || text.contains("received message larger than max")
        {
            return Self::No(Error::invalid(
                "commit",
                format!("{text}; the server allows less than etcd's defaults"),
            ));
        }
        if text.contains("corrupt") {
            return Self::No(Error::corrupt(BACKEND, text));
        }
        match status.code() {
            // A wrong password, or a role that does not reach this far.
            Code::PermissionDenied | Code::InvalidArgument => {
                Self::No(Error::Refused { backend: BACKEND, reason: told() })
            }
            Code::FailedPrecondition if text.contains("authentication is not enabled") => {
                let reason = format!("{text}; leave user and password out of the address");
                Self::No(Error::Refused { backend: BACKEND, reason })
            }
            Code::Unauthenticated => Self::Elsewhere(told()),
            _ => Self::Unclear(told()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_certainly_did_nothing_counts_as_nothing() {
        let fault = |code, text: &str| Fault::from(Status::new(code, text));
        let none = fault(Code::Unavailable, "etcdserver: no leader");
        assert!(matches!(none.of_write(), Error::Unavailable { .. }));
        let busy = fault(Code::ResourceExhausted, "etcdserver: too many requests");
        assert!(matches!(busy, Fault::Later(_)));
        assert!(matches!(busy.of_write(), Error::Unavailable { .. }));
        for text in [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "transport error",
        ] {
            assert!(fault(Code::Unavailable, text).of_write().is_unknown(), "{text}");
        }
        let unread = fault(Code::Unavailable, "etcdserver: request timed out");
        assert!(matches!(unread.of_read(), Error::Unavailable { .. }));
        assert!(matches!(
            fault(Code::NotFound, "etcdserver: requested lease not found"),
            Fault::NoLease
        ));
        let full = fault(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full.of_write(), Error::Full { .. }));
        let denied = fault(Code::PermissionDenied, "etcdserver: permission denied");
        assert!(matches!(denied.of_write(), Error::Refused { .. }));
    }
}
