//! Why work under a lease was stopped, and how that is told to a caller elsewhere.

use tenure::Error;
use tenure::lease::Loss;
use tenure_proto::{status, v1};
use tonic::Status;

use super::carried::CarriedLease;

/// Why nothing may be done under a [`super::LeaseContext`] any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// One of its leases is no longer held.
    #[error("lease {lease} (token {token}) is lost: {loss}")]
    Lost {
        /// Which, as people write it.
        lease: String,
        /// The token under which it was held.
        token: u64,
        /// How it ended.
        loss: Loss,
    },
    /// The work took longer than it was declared to take.
    #[error("the work under lease {} took longer than it may", .lease.as_deref().unwrap_or("(none)"))]
    Deadline {
        /// The innermost lease.
        lease: Option<String>,
    },
    /// The work was done, or nobody waits for it any more.
    #[error("the work that this was part of has ended")]
    Over,
}

impl Ended {
    pub(super) fn lost(lease: &CarriedLease, loss: Loss) -> Self {
        Self::Lost { lease: lease.id().to_owned(), token: lease.token(), loss }
    }

    /// The status for a handler that goes on after the end.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Lost { lease, token, loss } => {
                let current = match loss {
                    Loss::Taken { token, .. } => Some(*token),
                    _ => None,
                };
                let key = tenure::Key::new(tenure::lease::LEASE, lease.clone());
                let mut error = v1::Error::from(&Error::Lost { key, token: *token, current });
                error.message = self.to_string();
                status::status(error)
            }
            Self::Deadline { .. } => Status::deadline_exceeded(self.to_string()),
            Self::Over => Status::cancelled(self.to_string()),
        }
    }
}
