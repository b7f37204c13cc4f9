//! Errors that tell the caller what to do next.

use std::fmt;
use std::time::Duration;

use crate::Key;
use crate::store::{Capability, Expect};

/// What every operation returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The state that a condition met instead of the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// The object's version now.
    pub version: u64,
    /// The object's revision now.
    pub revision: u64,
    /// The object's token now.
    pub token: u64,
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Somebody else was first: read again, re-apply your change, write again.
    Reread,
    /// Nothing happened and the same call may succeed later.
    RetryLater,
    /// It may or may not have happened: read and compare before you try again.
    Resolve,
    /// The call itself must change.
    Fix,
    /// A person has to look at the store.
    Repair,
}

/// Why an operation did not do what was asked.
///
/// All of these except [`Error::Unknown`] mean that nothing was applied.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object is not there: never created, deleted, or expired.
    #[error("{key} not found; it may have been deleted or have expired")]
    NotFound {
        /// The missing object.
        key: Key,
    },
    /// The object was to be created and is there.
    #[error("{key} already exists (version {})", current.version)]
    AlreadyExists {
        /// The object.
        key: Key,
        /// What is there.
        current: Current,
    },
    /// Another object of the kind has the name.
    #[error(
        "name {name:?} of kind {kind:?} is taken by id {id:?}; choose another or free it first"
    )]
    NameTaken {
        /// The kind within which names are unique.
        kind: String,
        /// The name asked for.
        name: String,
        /// Who has it.
        id: String,
    },
    /// The object changed since the caller read it.
    #[error("{key} changed: expected {expected}, found version {} (revision {}); read it again and re-apply", current.version, current.revision)]
    Conflict {
        /// The object.
        key: Key,
        /// What the caller expected.
        expected: Expect,
        /// What is there.
        current: Current,
    },
    /// The lease that fenced the commit is no longer held.
    #[error("{key} with token {token} is lost: {}", match current { Some(t) => format!("token {t} holds it now"), None => "it expired, or was released or revoked".into() })]
    Lost {
        /// The lease object.
        key: Key,
        /// The token the caller had.
        token: u64,
        /// The token that holds it now, if any.
        current: Option<u64>,
    },
    /// Somebody else holds what was asked for, and the wait for it (if any) is over.
    #[error("{scope} is held{}; ask again with a longer wait", match holder { Some(holder) => format!(" by {holder} (token {token}) for at least {:.1}s", expires_in.as_secs_f64()), None => " up by others who wait for it".into() })]
    Held {
        /// What was asked for.
        scope: String,
        /// Who has it, as far as it could be found out.
        holder: Option<String>,
        /// The holder's token.
        token: u64,
        /// How much of its life was left; it may have been renewed since.
        expires_in: Duration,
    },
    /// The backend cannot do this atomically, so it does not do it at all.
    #[error("{backend} does not support {capability}; stores that do: {}", capability.supported_by())]
    Unsupported {
        /// What was asked for.
        capability: Capability,
        /// Who said no.
        backend: &'static str,
    },
    /// The request makes no sense as it is.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// The offending thing.
        what: String,
        /// Why, and what to do instead.
        reason: String,
    },
    /// A stated limit was met.
    #[error("{limit} is limited to {max}, got {got}")]
    LimitExceeded {
        /// The field of [`crate::Limits`].
        limit: &'static str,
        /// Its value.
        max: u64,
        /// What was asked for.
        got: u64,
    },
    /// The history asked for is gone.
    #[error(
        "history after revision {requested} is gone, the oldest kept is after {oldest}; list again and watch from that page's revision"
    )]
    Compacted {
        /// The revision the caller had.
        requested: u64,
        /// The oldest revision from which a watch can start.
        oldest: u64,
    },
    /// This program is too old (or too new) for what is stored.
    #[error("{backend} store refuses this program: {reason}")]
    Refused {
        /// The backend.
        backend: &'static str,
        /// What the store demands and what to do.
        reason: String,
    },
    /// The store cannot be reached or did not answer; nothing was applied.
    #[error("{backend} is unavailable: {reason}")]
    Unavailable {
        /// The backend.
        backend: &'static str,
        /// Why, in the words of the store or server that knows.
        reason: String,
    },
    /// The disk or the quota is full; nothing was applied.
    #[error("{backend} has no room left: {reason}; free space and try again")]
    Full {
        /// The backend.
        backend: &'static str,
        /// What exactly is full.
        reason: String,
    },
    /// What is stored cannot be understood.
    #[error("{backend} store is damaged: {reason}")]
    Corrupt {
        /// The backend.
        backend: &'static str,
        /// What is damaged, and the next step.
        reason: String,
    },
    /// It may or may not have happened. Read again and compare before trying again; never resend.
    #[error("outcome unknown on {backend}: {reason}; read again before you retry")]
    Unknown {
        /// The backend.
        backend: &'static str,
        /// What was lost.
        reason: String,
    },
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), reason: reason.into() }
    }

    /// An [`Error::Unavailable`].
    pub fn unavailable(backend: &'static str, reason: impl fmt::Display) -> Self {
        Self::Unavailable { backend, reason: reason.to_string() }
    }

    /// An [`Error::Unknown`].
    pub fn unknown(backend: &'static str, reason: impl fmt::Display) -> Self {
        Self::Unknown { backend, reason: reason.to_string() }
    }

    /// An [`Error::Corrupt`].
    pub fn corrupt(backend: &'static str, reason: impl fmt::Display) -> Self {
        Self::Corrupt { backend, reason: reason.to_string() }
    }

    /// Somebody else changed or created the thing first.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::AlreadyExists { .. } | Self::NameTaken { .. })
    }

    /// The thing is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// It may or may not have happened.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// The store understood the request and said no. A refusal concerns one commit; anything else
    /// concerns the store, and so every commit that shared a transaction with it.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. }
                | Self::AlreadyExists { .. }
                | Self::NameTaken { .. }
                | Self::Conflict { .. }
                | Self::Lost { .. }
                | Self::Held { .. }
                | Self::Unsupported { .. }
                | Self::Invalid { .. }
                | Self::LimitExceeded { .. }
        )
    }

    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::Conflict { .. }
            | Self::Lost { .. }
            | Self::Compacted { .. } => Advice::Reread,
            Self::NameTaken { .. }
            | Self::Unsupported { .. }
            | Self::Invalid { .. }
            | Self::LimitExceeded { .. }
            | Self::Refused { .. } => Advice::Fix,
            Self::Unavailable { .. } | Self::Full { .. } | Self::Held { .. } => Advice::RetryLater,
            Self::Unknown { .. } => Advice::Resolve,
            Self::Corrupt { .. } => Advice::Repair,
        }
    }

    /// A short stable word for metrics, exit codes and the wire.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::AlreadyExists { .. } => "already_exists",
            Self::NameTaken { .. } => "name_taken",
            Self::Conflict { .. } => "conflict",
            Self::Lost { .. } => "lost",
            Self::Held { .. } => "held",
            Self::Unsupported { .. } => "unsupported",
            Self::Invalid { .. } => "invalid",
            Self::LimitExceeded { .. } => "limit_exceeded",
            Self::Compacted { .. } => "compacted",
            Self::Refused { .. } => "refused",
            Self::Unavailable { .. } => "unavailable",
            Self::Full { .. } => "full",
            Self::Corrupt { .. } => "corrupt",
            Self::Unknown { .. } => "unknown",
        }
    }
}
