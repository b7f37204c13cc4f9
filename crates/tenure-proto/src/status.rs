//! A whole [`tenure::Error`] across the wire.
//!
//! The message [`v1::Error`] has every field that any error has; it rides in the details of a gRPC
//! status, packed as every gRPC library expects them (`rpc`). What a server says on its own account (not logged in, not allowed, overloaded) has codes of
//! its own and arrives as the error that asks the caller to do the right thing about it.

use std::time::Duration;

use tenure::store::{Capability, Expect};
use tenure::{Current, Error, Key};
use tonic::{Code, Status};

use crate::convert::{backend, ms_down};
use crate::{rpc, v1};

/// Not logged in, or with what does not count.
pub const UNAUTHENTICATED: &str = "unauthenticated";
/// Known, but not allowed.
pub const DENIED: &str = "denied";
/// Too much at once; ask again later.
pub const OVERLOADED: &str = "overloaded";

const CAPABILITIES: [(&str, Capability); 7] = [
    ("objects", Capability::Objects),
    ("multi_object_commits", Capability::MultiObjectCommits),
    ("names", Capability::Names),
    ("labels", Capability::Labels),
    ("ttl", Capability::Ttl),
    ("history", Capability::History),
    ("user_sql", Capability::UserSql),
];

/// Fields of limits, which the library knows as constants.
const LIMITS: [&str; 20] = [
    "kind_bytes",
    "id_bytes",
    "name_bytes",
    "labels",
    "label_bytes",
    "payload_bytes",
    "commit_operations",
    "commit_bytes",
    "touches",
    "page_objects",
    "ttl_max (seconds)",
    "scope",
    "namespace",
    "slots of a group",
    "answer_bytes",
    "scopes at once",
    "owner_bytes",
    "prefix_bytes",
    "leases of a session",
    "leases of a call",
];

/// The gRPC code for a short stable word.
pub fn grpc_code(code: &str) -> Code {
    match code {
        "not_found" => Code::NotFound,
        "already_exists" | "name_taken" => Code::AlreadyExists,
        "conflict" => Code::Aborted,
        "lost" | "held" | "refused" => Code::FailedPrecondition,
        "unsupported" => Code::Unimplemented,
        "invalid" | "limit_exceeded" => Code::InvalidArgument,
        "compacted" => Code::OutOfRange,
        "unavailable" => Code::Unavailable,
        "full" | OVERLOADED => Code::ResourceExhausted,
        "corrupt" => Code::DataLoss,
        UNAUTHENTICATED => Code::Unauthenticated,
        DENIED => Code::PermissionDenied,
        _ => Code::Unknown,
    }
}

/// The status for an error message, with the whole of it in its details.
pub fn status(error: v1::Error) -> Status {
    rpc::status(grpc_code(&error.code), error)
}

/// The status for an error.
pub fn of(error: &Error) -> Status {
    status(error.into())
}

/// The error in a status, if a server of ours put one in.
pub fn error(status: &Status) -> Option<v1::Error> {
    if status.details().is_empty() {
        return None;
    }
    rpc::error(status).filter(|error| !error.code.is_empty())
}

impl From<&Error> for v1::Error {
    fn from(error: &Error) -> Self {
        let mut wire =
            Self { code: error.code().into(), message: error.to_string(), ..Self::default() };
        let current = |current: &Current| v1::Current {
            version: current.version,
            revision: current.revision,
            token: current.token,
        };
        match error {
            Error::NotFound { key } => wire.key = Some(key.into()),
            Error::AlreadyExists { key, current: found } => {
                (wire.key, wire.current) = (Some(key.into()), Some(current(found)));
            }
            Error::NameTaken { kind, name, id } => {
                wire.key = Some(v1::Key { kind: kind.clone(), id: String::new() });
                (wire.name, wire.id) = (name.clone(), id.clone());
            }
            Error::Conflict { key, expected, current: found } => {
                (wire.key, wire.current) = (Some(key.into()), Some(current(found)));
                wire.expected = crate::convert::expected(*expected);
            }
            Error::Lost { key, token, current } => {
                (wire.key, wire.token, wire.current_token) = (Some(key.into()), *token, *current);
            }
            Error::Held { scope, holder, token, expires_in } => {
                (wire.scope, wire.holder) = (scope.clone(), holder.clone());
                (wire.token, wire.expires_in_ms) = (*token, ms_down(*expires_in));
            }
            Error::Unsupported { capability, backend } => {
                let name = CAPABILITIES.iter().find(|(_, known)| known == capability);
                wire.capability = name.map_or("", |(name, _)| name).into();
                wire.backend = (*backend).into();
            }
            Error::Invalid { what, reason } => {
                (wire.what, wire.reason) = (what.clone(), reason.clone());
            }
            Error::LimitExceeded { limit, max, got } => {
                (wire.limit, wire.max, wire.got) = ((*limit).into(), *max, *got);
            }
            Error::Compacted { requested, oldest } => {
                (wire.requested, wire.oldest) = (*requested, *oldest);
            }
            Error::Refused { backend, reason }
            | Error::Unavailable { backend, reason }
            | Error::Full { backend, reason }
            | Error::Corrupt { backend, reason }
            | Error::Unknown { backend, reason } => {
                (wire.backend, wire.reason) = ((*backend).into(), reason.clone());
            }
            // The enum may grow; its word and its text travel all the same.
            _ => {}
        }
        wire
    }
}

impl From<v1::Error> for Error {
    fn from(wire: v1::Error) -> Self {
        let key = || wire.key.clone().map_or_else(|| Key::new("", ""), Key::from);
        let backend = backend(&wire.backend);
        let current =
            wire.current.as_ref().map_or(Current { version: 0, revision: 0, token: 0 }, |c| {
                Current { version: c.version, revision: c.revision, token: c.token }
            });
        match wire.code.as_str() {
            "not_found" => Self::NotFound { key: key() },
            "already_exists" => Self::AlreadyExists { key: key(), current },
            "name_taken" => Self::NameTaken { kind: key().kind, name: wire.name, id: wire.id },
            "conflict" => {
                let expected = crate::convert::expectation(wire.expected).unwrap_or(Expect::Any);
                Self::Conflict { key: key(), expected, current }
            }
            "lost" => Self::Lost { key: key(), token: wire.token, current: wire.current_token },
            "held" => Self::Held {
                scope: wire.scope,
                holder: wire.holder,
                token: wire.token,
                expires_in: Duration::from_millis(wire.expires_in_ms),
            },
            "unsupported" => match CAPABILITIES.iter().find(|(name, _)| *name == wire.capability) {
                Some((_, capability)) => Self::Unsupported { capability: *capability, backend },
                None => Self::Refused { backend: "server", reason: wire.message },
            },
            "invalid" => Self::Invalid { what: wire.what, reason: wire.reason },
            "limit_exceeded" => match LIMITS.into_iter().find(|known| *known == wire.limit) {
                Some(limit) => Self::LimitExceeded { limit, max: wire.max, got: wire.got },
                None => Self::invalid("request", wire.message),
            },
            "compacted" => Self::Compacted { requested: wire.requested, oldest: wire.oldest },
            "refused" => Self::Refused { backend, reason: wire.reason },
            "unavailable" => Self::Unavailable { backend, reason: wire.reason },
            "full" => Self::Full { backend, reason: wire.reason },
            "corrupt" => Self::Corrupt { backend, reason: wire.reason },
            UNAUTHENTICATED | DENIED => Self::Refused { backend: "server", reason: wire.message },
            // Nothing was done; the same call may succeed later.
            OVERLOADED => Self::unavailable("server", wire.message),
            _ if wire.reason.is_empty() => Self::unknown(backend, wire.message),
            _ => Self::unknown(backend, wire.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// One of each.
    fn all() -> Vec<Error> {
        let (key, backend) = (Key::new("order", "7"), "postgres");
        let current = Current { version: 3, revision: 9, token: 2 };
        let reason = || String::from("because");
        vec![
            Error::NotFound { key: key.clone() },
            Error::AlreadyExists { key: key.clone(), current },
            Error::NameTaken { kind: "order".into(), name: "n".into(), id: "8".into() },
            Error::Conflict { key: key.clone(), expected: Expect::Version(2), current },
            Error::Conflict { key: key.clone(), expected: Expect::Revision(2), current },
            Error::Lost { key: key.clone(), token: 4, current: Some(5) },
            Error::Lost { key, token: 4, current: None },
            Error::Held {
                scope: "a/b".into(),
                holder: Some("w#1".into()),
                token: 4,
                expires_in: Duration::from_millis(1500),
            },
            Error::Unsupported { capability: Capability::Names, backend: "nats" },
            Error::invalid("this", "of that"),
            Error::LimitExceeded { limit: "payload_bytes", max: 1, got: 2 },
            Error::Compacted { requested: 3, oldest: 7 },
            Error::Refused { backend, reason: reason() },
            Error::Unavailable { backend, reason: reason() },
            Error::Full { backend, reason: reason() },
            Error::Corrupt { backend, reason: reason() },
            Error::Unknown { backend, reason: reason() },
        ]
    }

    #[test]
    fn every_error_survives_the_journey_whole() {
        for before in all() {
            let after = Error::from(error(&of(&before)).expect("details"));
            assert_eq!(format!("{before:?}"), format!("{after:?}"));
        }
    }

    #[test]
    fn every_capability_and_limit_has_a_name_on_the_wire() {
        for (_, capability) in CAPABILITIES {
            let before = Error::Unsupported { capability, backend: "nats" };
            let after = Error::from(v1::Error::from(&before));
            assert_eq!(before.to_string(), after.to_string());
        }
        for limit in LIMITS {
            let before = Error::LimitExceeded { limit, max: 1, got: 2 };
            assert_eq!(before.to_string(), Error::from(v1::Error::from(&before)).to_string());
        }
    }

    #[test]
    fn a_status_that_is_not_ours_has_no_error_in_it() {
        assert!(error(&Status::unavailable("transport")).is_none());
        assert!(error(&Status::with_details(Code::Internal, "x", Bytes::from("junk"))).is_none());
    }
}
