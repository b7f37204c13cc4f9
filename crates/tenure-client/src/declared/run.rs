//! The end of work under a declared lease.

use std::fmt::Display;

use tenure::Error;

use super::acquired::Acquired;
use super::ended::Ended;

/// Why work under a declared lease has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// It did not begin: the lease was not to be had.
    #[error("the work did not begin: {0}")]
    NotAcquired(#[source] Error),
    /// It was stopped in the middle.
    #[error("the work was stopped: {0}")]
    Stopped(#[source] Ended),
    /// It failed by itself.
    #[error("the work failed: {0}")]
    Failed(E),
    /// It was done, and what the hooks were to change along with the release was not, or is not known to
    /// have been.
    #[error("the work was done, but not released with it: {0}")]
    NotReleased(#[source] Error),
}

/// Releases after the work has stopped, with what became of it.
pub(super) async fn let_go<T, E: Display>(
    acquired: Acquired,
    outcome: Result<Result<T, E>, Ended>,
    hooked: bool,
) -> Result<T, RunError<E>> {
    let id = acquired.lease().id().to_owned();
    let (released, result) = match outcome {
        Ok(Ok(output)) => (acquired.release_ok(&[]).await, Ok(output)),
        Ok(Err(error)) => {
            (acquired.release_fail(&error.to_string()).await, Err(RunError::Failed(error)))
        }
        Err(ended) => {
            (acquired.release_fail(&ended.to_string()).await, Err(RunError::Stopped(ended)))
        }
    };
    match (released, result) {
        (Ok(()), result) => result,
        (Err(error), Ok(_)) if hooked => Err(RunError::NotReleased(error)),
        (Err(error), result) => {
            // What the work did stands. The lease has ended, or ends by itself.
            tracing::debug!(lease = %id, %error, "was not released");
            result
        }
    }
}
