//! The one way to change anything: conditions and writes, applied together or not at all.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::Attachment;
use crate::flaws::{Flaw, planted};
use crate::{Key, Labels, Object};

/// What an object must be like for a commit to apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// Anything goes.
    #[default]
    Any,
    /// It must not be there (or have expired).
    Absent,
    /// It must be there.
    Exists,
    /// It must have this version. Restarts when an object is re-created; see [`Expect::Revision`].
    Version(u64),
    /// It must have this revision: exactly the state that was read, whatever happened since.
    Revision(u64),
    /// The lease must still be held under this token. Failing is [`crate::Error::Lost`].
    Token(u64),
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("anything"),
            Self::Absent => f.write_str("no object"),
            Self::Exists => f.write_str("an object"),
            Self::Version(v) => write!(f, "version {v}"),
            Self::Revision(r) => write!(f, "revision {r}"),
            Self::Token(t) => write!(f, "token {t}"),
        }
    }
}

/// Proof of tenure to put on a commit: the lease and the token under which it must still be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The lease object.
    pub key: Key,
    /// The token that must still hold it.
    pub token: u64,
}

impl Fence {
    /// The lease under this key, held under this token.
    pub fn new(key: Key, token: u64) -> Self {
        Self { key, token }
    }
}

/// A condition on an object that the commit need not write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The object.
    pub key: Key,
    /// What it must be like.
    pub expect: Expect,
}

/// Creates an object or replaces all of it.
///
/// A put that equals what is stored changes nothing: version and revision stay and no watcher is
/// woken. If it has a time to live, that life starts anew, as with a touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The object.
    pub key: Key,
    /// What it must be like before.
    pub expect: Expect,
    /// Unique within the kind.
    pub name: Option<String>,
    /// All its labels.
    pub labels: Labels,
    /// All its payload.
    pub payload: Bytes,
    /// How long it lives from this commit on, by the store's clock.
    pub ttl: Option<Duration>,
    /// Draw a new token: the object passes to a new holder.
    pub new_token: bool,
}

impl Put {
    /// Writes `payload` whatever was there before; narrow it with [`Put::expect`].
    pub fn new(key: Key, payload: impl Into<Bytes>) -> Self {
        Self {
            key,
            expect: Expect::Any,
            name: None,
            labels: Labels::new(),
            payload: payload.into(),
            ttl: None,
            new_token: false,
        }
    }

    /// What the object must be like before.
    #[must_use]
    pub fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Replaces all labels.
    #[must_use]
    pub fn labels(mut self, labels: Labels) -> Self {
        self.labels = labels;
        self
    }

    /// Sets the time to live.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Draws a new token, for a change of holder without a gap. A created object always gets one.
    #[must_use]
    pub fn new_token(mut self) -> Self {
        self.new_token = true;
        self
    }
}

/// Deletes an object. With [`Expect::Any`], deleting what is absent is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The object.
    pub key: Key,
    /// What it must be like before.
    pub expect: Expect,
}

/// One write of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Create or replace.
    Put(Put),
    /// Delete.
    Delete(Delete),
}

impl Write {
    /// The object written.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(put) => &put.key,
            Self::Delete(delete) => &delete.key,
        }
    }

    /// What it must be like before.
    pub fn expect(&self) -> Expect {
        match self {
            Self::Put(put) => put.expect,
            Self::Delete(delete) => delete.expect,
        }
    }
}

impl From<Put> for Commit {
    fn from(put: Put) -> Self {
        Self::new().put(put)
    }
}

/// Checks and writes, all or nothing. An object may be checked often but written once.
///
/// ```
/// use tenure::{Key, store::{Commit, Expect, Put}};
///
/// // Attach a provider to a sandbox, unless somebody deletes the provider at that moment.
/// let commit = Commit::new()
///     .check(Key::new("provider", "gpu-1"), Expect::Exists)
///     .put(Put::new(Key::new("sandbox", "a"), "providers: gpu-1").expect(Expect::Version(4)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Conditions on objects, written or not.
    pub checks: Vec<Check>,
    /// Writes, each with its own condition.
    pub writes: Vec<Write>,
    /// Work of the caller's own in the same transaction, where the backend has one to share.
    pub attachments: Vec<Attachment>,
}

impl Commit {
    /// An empty commit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Demands that an object be as expected.
    #[must_use]
    pub fn check(mut self, key: Key, expect: Expect) -> Self {
        self.checks.push(Check { key, expect });
        self
    }

    /// Demands that a lease still be held, at the very instant of the commit: give it a held lease,
    /// or a [`Fence`] that came from elsewhere.
    #[must_use]
    pub fn fenced_by(self, fence: impl Into<Fence>) -> Self {
        let fence = fence.into();
        if planted(Flaw::FencesNobody) {
            return self;
        }
        self.check(fence.key, Expect::Token(fence.token))
    }

    /// Adds everything of another commit behind what is here.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.checks.extend(other.checks);
        self.writes.extend(other.writes);
        self.attachments.extend(other.attachments);
        self
    }

    /// Runs this in the same transaction, on a store that can.
    #[must_use]
    pub fn attach(mut self, attachment: Attachment) -> Self {
        self.attachments.push(attachment);
        self
    }

    /// Adds a put.
    #[must_use]
    pub fn put(mut self, put: Put) -> Self {
        self.writes.push(Write::Put(put));
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: Key, expect: Expect) -> Self {
        self.writes.push(Write::Delete(Delete { key, expect }));
        self
    }

    /// Roughly how many bytes it occupies; queues and groups are bounded by it.
    pub fn size(&self) -> usize {
        let put = |write: &Write| match write {
            Write::Put(put) => 256 + put.payload.len(),
            Write::Delete(_) => 128,
        };
        128 * self.checks.len() + self.writes.iter().map(put).sum::<usize>()
    }
}

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision all changes of this commit share; `None` if it changed nothing.
    pub revision: Option<u64>,
    /// One entry for each write, in order.
    pub writes: Vec<Written>,
}

impl Committed {
    /// The result of the only put of a commit; `None` if the first write was not a put.
    pub fn first_put(&self) -> Option<WriteResult> {
        match self.writes.first() {
            Some(Written::Put(result) | Written::Unchanged(result)) => Some(*result),
            _ => None,
        }
    }
}

/// What one write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The object was created or changed.
    Put(WriteResult),
    /// The put equalled what was there; nothing was bumped.
    Unchanged(WriteResult),
    /// The object was deleted, at this revision.
    Deleted {
        /// The revision of the delete.
        revision: u64,
    },
    /// There was nothing to delete.
    Absent,
}

impl From<&Object> for WriteResult {
    fn from(object: &Object) -> Self {
        Self {
            version: object.version,
            revision: object.revision,
            created_revision: object.created_revision,
            token: object.token,
            created_at_ms: object.created_at_ms,
            updated_at_ms: object.updated_at_ms,
            ttl: object.ttl,
        }
    }
}

/// An object's numbers and labels in time after a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteResult {
    /// The version now: the documents' `resource_version`.
    pub version: u64,
    /// The revision now.
    pub revision: u64,
    /// The revision of its creation.
    pub created_revision: u64,
    /// The token now.
    pub token: u64,
    /// Wall-clock label of the creation.
    pub created_at_ms: i64,
    /// Wall-clock label of the last change.
    pub updated_at_ms: i64,
    /// The life granted, at least the one asked for.
    pub ttl: Option<Duration>,
}
