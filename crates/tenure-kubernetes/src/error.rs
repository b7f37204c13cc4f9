//! What the API server's refusals and silences mean to a caller.
//!
//! One question matters for a write: can it have been applied? Only an answer that says otherwise, or
//! the certainty that the request never left, makes it [`Error::Unavailable`]; all the rest is
//! [`Error::Unknown`].

use kube::core::Status;
use tenure::Error;

use crate::BACKEND;

/// The reasons of a 409: a PUT or DELETE of an older state, and a POST of what is there.
const OVERTAKEN: [&str; 2] = ["Conflict", "AlreadyExists"];

/// How a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// 409 because of a conflict, or because it already exists: somebody was faster. Nothing was
    /// applied.
    Overtaken,
    /// 404.
    Missing(String),
    /// 404 of a namespace in which something was to be created. Nothing was applied.
    Nowhere(String),
    /// 410: what was asked for is too old.
    Gone,
    /// 429: not now. Nothing was applied.
    Busy(String),
    /// 401: the credentials do not count, perhaps just now. Nothing was applied.
    Unauthenticated(String),
    /// 403: a right is missing. Nothing was applied.
    Forbidden(String),
    /// Whatever else a repetition cannot change. Nothing was applied.
    Refused(String),
    /// Nothing was sent.
    Unsent(String),
    /// No answer, or one that does not settle it.
    Unsettled(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(*status),
            kube::Error::Auth(error) => Self::Unsent(format!("no credentials: {error}")),
            kube::Error::BuildRequest(error) => Self::Refused(error.to_string()),
            error => {
                let why = chain(&error);
                if never_connected(&error) { Self::Unsent(why) } else { Self::Unsettled(why) }
            }
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let why = format!("{} ({} {})", status.message, status.code, status.reason);
        match status.code {
            401 => Self::Unauthenticated(why),
            403 => Self::Forbidden(why),
            404 if is_namespace(&status) => Self::Nowhere(why),
            404 => Self::Missing(why),
            409 if OVERTAKEN.contains(&&*status.reason) => Self::Overtaken,
            // Not in the words of an API server about a Lease, so who knows what it means.
            409 => Self::Unsettled(why),
            410 => Self::Gone,
            429 => Self::Busy(why),
            400..=499 => Self::Refused(why),
            _ => Self::Unsettled(why),
        }
    }
}

fn is_namespace(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

impl Failure {
    /// The error of a read.
    pub(crate) fn of_read(self) -> Error {
        self.error(false)
    }

    /// The error of a write.
    pub(crate) fn of_write(self) -> Error {
        self.error(true)
    }

    fn error(self, write: bool) -> Error {
        match self {
            Self::Overtaken => Error::unavailable(BACKEND, "somebody was faster; try again"),
            Self::Gone => Error::unavailable(BACKEND, "the list changed while it was read"),
            Self::Missing(why) => Error::unavailable(
                BACKEND,
                format!("{why}; is the namespace there, and does the cluster have Leases?"),
            ),
            Self::Nowhere(why) => Error::Refused {
                backend: BACKEND,
                reason: format!("{why}; create it, or name another one in the URL"),
            },
            Self::Busy(why) => Error::unavailable(BACKEND, format!("it is overloaded: {why}")),
            Self::Unauthenticated(why) => Error::unavailable(
                BACKEND,
                format!("{why}; check the credentials of the kubeconfig or service account"),
            ),
            Self::Refused(reason) => Error::Refused { backend: BACKEND, reason },
            Self::Forbidden(why) => Error::Refused {
                backend: BACKEND,
                reason: format!(
                    "{why}; the verbs needed on leases are in deploy/kubernetes/rbac.yaml"
                ),
            },
            Self::Unsent(why) => Error::unavailable(BACKEND, why),
            Self::Unsettled(why) if write => Error::unknown(BACKEND, why),
            Self::Unsettled(why) => Error::unavailable(BACKEND, why),
        }
    }
}

/// Refused connections, those that take too long and names that do not resolve: whatever the request was,
/// nobody got it.
fn never_connected(error: &(dyn std::error::Error + 'static)) -> bool {
    use hyper_util::client::legacy::Error;
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<Error>().is_some_and(Error::is_connect) {
            return true;
        }
        next = error.source();
    }
    false
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_found_nobody_to_talk_to_was_not_sent() {
        // Nobody listens there, and the other one is nowhere.
        for server in ["http://127.0.0.1:1", "http://no-such-host.invalid:80"] {
            let client =
                kube::Client::try_from(kube::Config::new(server.parse().unwrap())).unwrap();
            let request = http::Request::put("/").body(Vec::new()).unwrap();
            let error = client.request::<serde_json::Value>(request).await.unwrap_err();
            let failure = Failure::from(error);
            assert!(matches!(failure, Failure::Unsent(_)), "{server}: {failure:?}");
        }
    }
}
