//! What requests about objects look like. Fields that nobody knows are an error, so that a misspelt
//! condition is never taken for none.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use tenure::lease::LEASE;
use tenure::store::{Check, Commit, Delete, Expect, Fence, Put, Touch, Write};
use tenure::{Error, Key, Labels, Result};
use utoipa::{IntoParams, ToSchema};

/// Creates an object or replaces all of it. Exactly one of `payload` and `payload_base64`, at most one
/// of `expect_…`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PutRequest {
    payload: Option<String>,
    payload_base64: Option<String>,
    name: Option<String>,
    #[serde(default)]
    labels: Labels,
    ttl_ms: Option<u64>,
    expect_version: Option<u64>,
    expect_revision: Option<u64>,
    expect_token: Option<u64>,
    expect_absent: Option<bool>,
    expect_exists: Option<bool>,
    fence: Option<FenceRequest>,
}

/// A put among the writes of a commit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PutWrite {
    kind: String,
    id: String,
    payload: Option<String>,
    payload_base64: Option<String>,
    name: Option<String>,
    #[serde(default)]
    labels: Labels,
    ttl_ms: Option<u64>,
    expect_version: Option<u64>,
    expect_revision: Option<u64>,
    expect_token: Option<u64>,
    expect_absent: Option<bool>,
    expect_exists: Option<bool>,
}

/// A condition on an object; also a delete, which applies if the condition holds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    kind: String,
    id: String,
    expect_version: Option<u64>,
    expect_revision: Option<u64>,
    expect_token: Option<u64>,
    expect_absent: Option<bool>,
    expect_exists: Option<bool>,
}

/// A lease that must still be held under this token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FenceRequest {
    scope: String,
    token: u64,
}

/// One write of a commit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum WriteRequest {
    /// Creates or replaces.
    Put(PutWrite),
    /// Deletes.
    Delete(Condition),
}

/// Checks and writes, all or nothing.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitRequest {
    #[serde(default)]
    checks: Vec<Condition>,
    #[serde(default)]
    writes: Vec<WriteRequest>,
    #[serde(default)]
    fences: Vec<FenceRequest>,
}

/// Lives to start anew.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TouchesRequest {
    touches: Vec<TouchRequest>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TouchRequest {
    kind: String,
    id: String,
    /// The revision it must still have.
    revision: u64,
    ttl_ms: u64,
}

/// On what condition to delete; at most one.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteParams {
    expect_version: Option<u64>,
    expect_revision: Option<u64>,
}

/// Which objects to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only ids that start with this.
    #[serde(default)]
    pub(super) prefix: String,
    /// Only the object with this name.
    pub(super) name: Option<String>,
    /// For instance `app=web,tier!=test`.
    #[serde(default)]
    pub(super) selector: String,
    /// The `next` of the page before.
    pub(super) after: Option<String>,
    /// Objects a page; 100 unless given.
    pub(super) limit: Option<usize>,
}

/// What to watch.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchParams {
    /// Only this kind.
    pub(super) kind: Option<String>,
    /// Only ids that start with this.
    #[serde(default)]
    pub(super) prefix: String,
    /// Everything after this revision; from now on unless given.
    pub(super) after: Option<u64>,
    /// Of a long poll: how long to wait for something to happen; 30 seconds unless given.
    pub(super) wait_ms: Option<u64>,
}

/// The conditions of a request, of which at most one may be given.
struct Expected {
    version: Option<u64>,
    revision: Option<u64>,
    token: Option<u64>,
    absent: Option<bool>,
    exists: Option<bool>,
}

impl Expected {
    fn only(self) -> Result<Option<Expect>> {
        let flag = |field, given: Option<bool>, expect| match given {
            Some(false) => Err(Error::invalid(field, "it can only be true; leave it out instead")),
            Some(true) => Ok(Some(expect)),
            None => Ok(None),
        };
        let given = [
            self.version.map(Expect::Version),
            self.revision.map(Expect::Revision),
            self.token.map(Expect::Token),
            flag("expect_absent", self.absent, Expect::Absent)?,
            flag("expect_exists", self.exists, Expect::Exists)?,
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (first, None) => Ok(first),
            (Some(first), Some(second)) => {
                let reason = format!("both {first} and {second} are expected; give at most one");
                Err(Error::invalid("expect", reason))
            }
            (None, Some(_)) => Ok(None),
        }
    }
}

macro_rules! expected {
    ($from:expr) => {
        Expected {
            version: $from.expect_version,
            revision: $from.expect_revision,
            token: $from.expect_token,
            absent: $from.expect_absent,
            exists: $from.expect_exists,
        }
        .only()
    };
}

/// One of a condition in the request and one in its headers.
fn one_of(body: Option<Expect>, header: Option<Expect>) -> Result<Expect> {
    match (body, header) {
        (Some(_), Some(_)) => {
            let reason = "there is a condition in the headers and one in the request; give one";
            Err(Error::invalid("expect", reason))
        }
        (body, header) => Ok(body.or(header).unwrap_or_default()),
    }
}

fn payload(text: Option<String>, base64: Option<String>) -> Result<Bytes> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(base64)) => match STANDARD.decode(base64) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(Error::invalid("payload_base64", error.to_string())),
        },
        _ => Err(Error::invalid("payload", "give exactly one of payload and payload_base64")),
    }
}

impl FenceRequest {
    fn fence(self) -> Fence {
        Fence::new(Key::new(LEASE, self.scope), self.token)
    }
}

impl PutRequest {
    /// The commit that it asks for.
    pub(super) fn commit(self, key: Key, header: Option<Expect>) -> Result<Commit> {
        let expect = one_of(expected!(self)?, header)?;
        let put = Put {
            key,
            expect,
            name: self.name,
            labels: self.labels,
            payload: payload(self.payload, self.payload_base64)?,
            ttl: self.ttl_ms.map(Duration::from_millis),
            new_token: false,
        };
        let commit = Commit::from(put);
        Ok(match self.fence {
            Some(fence) => commit.fenced_by(fence.fence()),
            None => commit,
        })
    }
}

impl DeleteParams {
    /// The commit that it asks for.
    pub(super) fn commit(self, key: Key, header: Option<Expect>) -> Result<Commit> {
        let given = Expected {
            version: self.expect_version,
            revision: self.expect_revision,
            token: None,
            absent: None,
            exists: None,
        };
        Ok(Commit::new().delete(key, one_of(given.only()?, header)?))
    }
}

impl PutWrite {
    fn put(self) -> Result<Put> {
        Ok(Put {
            expect: expected!(self)?.unwrap_or_default(),
            key: Key { kind: self.kind, id: self.id },
            name: self.name,
            labels: self.labels,
            payload: payload(self.payload, self.payload_base64)?,
            ttl: self.ttl_ms.map(Duration::from_millis),
            new_token: false,
        })
    }
}

impl Condition {
    fn parts(self) -> Result<(Key, Expect)> {
        let expect = expected!(self)?.unwrap_or_default();
        Ok((Key { kind: self.kind, id: self.id }, expect))
    }
}

impl CommitRequest {
    /// The commit that it asks for.
    pub(super) fn commit(self) -> Result<Commit> {
        let mut commit = Commit::new();
        for check in self.checks {
            let (key, expect) = check.parts()?;
            commit.checks.push(Check { key, expect });
        }
        for fence in self.fences {
            commit = commit.fenced_by(fence.fence());
        }
        for write in self.writes {
            commit.writes.push(match write {
                WriteRequest::Put(put) => Write::Put(put.put()?),
                WriteRequest::Delete(delete) => {
                    let (key, expect) = delete.parts()?;
                    Write::Delete(Delete { key, expect })
                }
            });
        }
        Ok(commit)
    }
}

impl From<TouchesRequest> for Vec<Touch> {
    fn from(request: TouchesRequest) -> Self {
        let touch = |touch: TouchRequest| Touch {
            key: Key { kind: touch.kind, id: touch.id },
            revision: touch.revision,
            ttl: Duration::from_millis(touch.ttl_ms),
        };
        request.touches.into_iter().map(touch).collect()
    }
}
