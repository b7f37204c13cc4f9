//! Commits, and what became of them.

use std::time::Duration;

use tenure::Error;
use tenure::store::{Check, Commit, Committed, Delete, Expect, Put, Write, WriteResult, Written};

use super::object::key;
use super::{ms_up, need};
use crate::v1;

/// An expectation on the wire; none stands for anything.
pub(crate) fn expected(expect: Expect) -> Option<v1::Expect> {
    use v1::expect::What;
    let what = match expect {
        Expect::Any => return None,
        Expect::Absent => What::Absent(true),
        Expect::Exists => What::Exists(true),
        Expect::Version(version) => What::Version(version),
        Expect::Revision(revision) => What::Revision(revision),
        Expect::Token(token) => What::Token(token),
    };
    Some(v1::Expect { what: Some(what) })
}

/// An expectation that names nothing would be met by everything, so it is refused.
pub(crate) fn expect(expect: Option<v1::Expect>) -> tenure::Result<Expect> {
    use v1::expect::What;
    let Some(expect) = expect else { return Ok(Expect::Any) };
    Ok(match need(expect.what, "expect")? {
        What::Absent(true) => Expect::Absent,
        What::Exists(true) => Expect::Exists,
        What::Absent(false) | What::Exists(false) => {
            return Err(Error::invalid("expect", "absent and exists can only be true"));
        }
        What::Version(version) => Expect::Version(version),
        What::Revision(revision) => Expect::Revision(revision),
        What::Token(token) => Expect::Token(token),
    })
}

impl From<Commit> for v1::CommitRequest {
    fn from(commit: Commit) -> Self {
        let check = |check: Check| v1::Check {
            key: Some(check.key.into()),
            expect: expected(check.expect),
        };
        Self {
            checks: commit.checks.into_iter().map(check).collect(),
            writes: commit.writes.into_iter().map(v1::Write::from).collect(),
        }
    }
}

impl From<Write> for v1::Write {
    fn from(write: Write) -> Self {
        let write = match write {
            Write::Put(put) => v1::write::Write::Put(v1::Put {
                key: Some(put.key.into()),
                expect: expected(put.expect),
                name: put.name,
                labels: put.labels,
                payload: put.payload,
                ttl_ms: put.ttl.map(ms_up),
                new_token: put.new_token,
            }),
            Write::Delete(delete) => v1::write::Write::Delete(v1::Delete {
                key: Some(delete.key.into()),
                expect: expected(delete.expect),
            }),
        };
        Self { write: Some(write) }
    }
}

impl TryFrom<v1::CommitRequest> for Commit {
    type Error = Error;

    fn try_from(request: v1::CommitRequest) -> Result<Self, Error> {
        let check =
            |check: v1::Check| Ok(Check { key: key(check.key)?, expect: expect(check.expect)? });
        Ok(Self {
            checks: request.checks.into_iter().map(check).collect::<Result<_, Error>>()?,
            writes: request.writes.into_iter().map(Write::try_from).collect::<Result<_, _>>()?,
            attachments: Vec::new(),
        })
    }
}

impl TryFrom<v1::Write> for Write {
    type Error = Error;

    fn try_from(write: v1::Write) -> Result<Self, Error> {
        Ok(match need(write.write, "write")? {
            v1::write::Write::Put(put) => Self::Put(Put {
                key: key(put.key)?,
                expect: expect(put.expect)?,
                name: put.name,
                labels: put.labels,
                payload: put.payload,
                ttl: put.ttl_ms.map(Duration::from_millis),
                new_token: put.new_token,
            }),
            v1::write::Write::Delete(delete) => {
                Self::Delete(Delete { key: key(delete.key)?, expect: expect(delete.expect)? })
            }
        })
    }
}

impl From<WriteResult> for v1::WriteResult {
    fn from(result: WriteResult) -> Self {
        Self {
            version: result.version,
            revision: result.revision,
            created_revision: result.created_revision,
            token: result.token,
            created_at_ms: result.created_at_ms,
            updated_at_ms: result.updated_at_ms,
            ttl_ms: result.ttl.map(ms_up),
        }
    }
}

impl From<v1::WriteResult> for WriteResult {
    fn from(result: v1::WriteResult) -> Self {
        Self {
            version: result.version,
            revision: result.revision,
            created_revision: result.created_revision,
            token: result.token,
            created_at_ms: result.created_at_ms,
            updated_at_ms: result.updated_at_ms,
            ttl: result.ttl_ms.map(Duration::from_millis),
        }
    }
}

impl From<Committed> for v1::CommitResponse {
    fn from(committed: Committed) -> Self {
        use v1::written::Outcome;
        let written = |written: Written| v1::Written {
            outcome: Some(match written {
                Written::Put(result) => Outcome::Put(result.into()),
                Written::Unchanged(result) => Outcome::Unchanged(result.into()),
                Written::Deleted { revision } => Outcome::Deleted(revision),
                Written::Absent => Outcome::Absent(true),
            }),
        };
        Self {
            revision: committed.revision,
            writes: committed.writes.into_iter().map(written).collect(),
        }
    }
}

impl TryFrom<v1::CommitResponse> for Committed {
    type Error = Error;

    fn try_from(response: v1::CommitResponse) -> Result<Self, Error> {
        use v1::written::Outcome;
        let written = |written: v1::Written| {
            Ok(match need(written.outcome, "outcome of a write")? {
                Outcome::Put(result) => Written::Put(result.into()),
                Outcome::Unchanged(result) => Written::Unchanged(result.into()),
                Outcome::Deleted(revision) => Written::Deleted { revision },
                Outcome::Absent(_) => Written::Absent,
            })
        };
        Ok(Self {
            revision: response.revision,
            writes: response.writes.into_iter().map(written).collect::<Result<_, Error>>()?,
        })
    }
}
