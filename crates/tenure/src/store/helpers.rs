//! Writes of one object, by the names people know: a commit with one [`Expect`], and no more.

use std::time::Duration;

use bytes::Bytes;

use super::{Commit, Expect, Put, Store, WriteResult, Written};
use crate::{Current, Error, Key, Result};

/// When a write may happen, for those who think in versions alone. It is an [`Expect`] with three of
/// its choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCondition {
    /// Only if the object is not there.
    MustCreate,
    /// Only if the object has this version.
    MatchResourceVersion(u64),
    /// Always: last writer wins.
    Unconditional,
}

impl From<WriteCondition> for Expect {
    fn from(condition: WriteCondition) -> Self {
        match condition {
            WriteCondition::MustCreate => Self::Absent,
            WriteCondition::MatchResourceVersion(version) => Self::Version(version),
            WriteCondition::Unconditional => Self::Any,
        }
    }
}

/// The answer of [`Store::create_if_absent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// It was absent and is now this.
    Created(WriteResult),
    /// It was there.
    Exists(Current),
}

/// The answer of [`Store::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasOutcome {
    /// It was absent, as expected, and is now this.
    Created(WriteResult),
    /// It had the expected revision and is now this.
    Updated(WriteResult),
    /// It was something else: this, or absent.
    Conflict(Option<Current>),
}

impl Store {
    /// Writes one object under a condition: an [`Expect`] or a [`WriteCondition`].
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if it was to be absent; [`Error::NotFound`] if the object is gone,
    /// [`Error::Conflict`] with what is there if it changed.
    pub async fn put_if(&self, put: Put, condition: impl Into<Expect>) -> Result<WriteResult> {
        let committed = self.commit(put.expect(condition.into())).await?;
        committed.first_put().ok_or_else(|| self.no_result())
    }

    /// Deletes one object if it has this version, and says whether it was there.
    ///
    /// # Errors
    /// [`Error::Conflict`] with what is there if it changed. An object that is gone is `Ok(false)`.
    pub async fn delete_if(&self, key: &Key, expected_version: u64) -> Result<bool> {
        let delete = Commit::new().delete(key.clone(), Expect::Version(expected_version));
        match self.commit(delete).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes one object whatever it is, and says whether it was there.
    pub async fn delete(&self, key: &Key) -> Result<bool> {
        let committed = self.commit(Commit::new().delete(key.clone(), Expect::Any)).await?;
        Ok(matches!(committed.writes.first(), Some(Written::Deleted { .. })))
    }

    /// Atomically creates an object that is not there. Of many callers, one is told `Created`.
    pub async fn create_if_absent(
        &self,
        key: &Key,
        value: impl Into<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<CreateOutcome> {
        let put = Put { ttl, ..Put::new(key.clone(), value) };
        match self.put_if(put, Expect::Absent).await {
            Ok(result) => Ok(CreateOutcome::Created(result)),
            Err(Error::AlreadyExists { current, .. }) => Ok(CreateOutcome::Exists(current)),
            Err(error) => Err(error),
        }
    }

    /// Replaces the payload of an object that is still exactly what was read; its name and labels
    /// stay. An expected revision of 0 means *absent*.
    pub async fn compare_and_set(
        &self,
        key: &Key,
        expected_revision: u64,
        value: impl Into<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<CasOutcome> {
        let mut put = Put { ttl, ..Put::new(key.clone(), value) };
        let (expect, done): (_, fn(WriteResult) -> CasOutcome) = match expected_revision {
            0 => (Expect::Absent, CasOutcome::Created),
            revision => match self.get(key).await? {
                Some(object) if object.revision == revision => {
                    (put.name, put.labels) = (object.name, object.labels);
                    (Expect::Revision(revision), CasOutcome::Updated)
                }
                other => {
                    self.metrics.conflicted(&key.kind);
                    return Ok(CasOutcome::Conflict(other.map(|object| object.current())));
                }
            },
        };
        match self.put_if(put, expect).await {
            Ok(result) => Ok(done(result)),
            Err(Error::AlreadyExists { current, .. } | Error::Conflict { current, .. }) => {
                Ok(CasOutcome::Conflict(Some(current)))
            }
            Err(Error::NotFound { .. }) => Ok(CasOutcome::Conflict(None)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn no_result(&self) -> Error {
        // A backend that answers a put without a result broke the contract; what it did is anyone's
        // guess, so the caller is told to look.
        Error::unknown(self.capabilities().backend, "the store confirmed a put without its result")
    }
}
