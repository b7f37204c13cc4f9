//! Why the server did not do what was asked: in the store's words, or in its own.

use std::borrow::Cow;
use std::time::Duration;

use tenure::Error;
use tenure_proto::status::{DENIED, OVERLOADED, UNAUTHENTICATED};
use tenure_proto::{status, v1};
use tonic::Status;

/// What to do about most permissions that somebody does not have.
pub(crate) const ASK_FOR_IT: &str = "ask whoever hands out permissions";

/// What becomes a gRPC status or an HTTP answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// The store, or the library, said no.
    #[error(transparent)]
    Store(#[from] Error),
    /// The same, where what the library would advise is wrong here.
    #[error("{message}")]
    Advised {
        /// What it said. In a box, or every answer would be large.
        error: Box<Error>,
        /// In these words.
        message: String,
    },
    /// Nobody we know.
    #[error("{0}")]
    Unauthenticated(String),
    /// Somebody we know, who may not do this.
    #[error("{subject} may not {action} {resource}; {advice}")]
    Denied {
        /// Who asked.
        subject: String,
        /// For instance `leases:hold`.
        action: &'static str,
        /// The scope, or kind and id.
        resource: String,
        /// What to do about it.
        advice: Cow<'static, str>,
    },
    /// Too much at once.
    #[error("{what}; ask again in {}s", retry_after.as_secs_f64())]
    Overloaded {
        /// Which limit was met.
        what: String,
        /// When to ask again.
        retry_after: Duration,
    },
}

impl Fault {
    /// What waits and streams end with when the server leaves.
    pub fn leaving() -> Self {
        Error::unavailable("server", "it is shutting down; ask another one").into()
    }

    /// The word and everything else about it.
    pub fn wire(&self) -> v1::Error {
        let own = |code: &str| v1::Error {
            code: code.into(),
            message: self.to_string(),
            ..v1::Error::default()
        };
        match self {
            Self::Store(error) => error.into(),
            Self::Advised { error, message } => {
                v1::Error { message: message.clone(), ..(&**error).into() }
            }
            Self::Unauthenticated(_) => own(UNAUTHENTICATED),
            Self::Denied { .. } => own(DENIED),
            Self::Overloaded { retry_after, .. } => v1::Error {
                retry_after_ms: u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX),
                ..own(OVERLOADED)
            },
        }
    }

    /// As HTTP says it.
    pub fn http_status(&self) -> ::http::StatusCode {
        use ::http::StatusCode as Code;
        match self {
            Self::Unauthenticated(_) => Code::UNAUTHORIZED,
            Self::Denied { .. } => Code::FORBIDDEN,
            Self::Overloaded { .. } => Code::TOO_MANY_REQUESTS,
            Self::Store(error) => of_store(error),
            Self::Advised { error, .. } => of_store(error),
        }
    }
}

fn of_store(error: &Error) -> ::http::StatusCode {
    use ::http::StatusCode as Code;
    match error.code() {
        "not_found" => Code::NOT_FOUND,
        "already_exists" | "name_taken" | "conflict" => Code::CONFLICT,
        "held" => Code::LOCKED,
        "lost" | "compacted" => Code::GONE,
        "unsupported" => Code::NOT_IMPLEMENTED,
        "invalid" => Code::BAD_REQUEST,
        "limit_exceeded" => Code::PAYLOAD_TOO_LARGE,
        "refused" | "unavailable" => Code::SERVICE_UNAVAILABLE,
        "full" => Code::INSUFFICIENT_STORAGE,
        // It may or may not have happened.
        "unknown" => Code::GATEWAY_TIMEOUT,
        _ => Code::INTERNAL_SERVER_ERROR,
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        status::status(fault.wire())
    }
}
