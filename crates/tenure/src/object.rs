//! What the store keeps: an object, and the key that finds it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::Current;
use crate::store::{Expect, Put};

/// Labels are small and read by people; a sorted map keeps their order stable everywhere.
pub type Labels = BTreeMap<String, String>;

/// What identifies an object: its kind and its id. Ids sort bytewise within a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The type of thing, for instance `order`. Lists and watches go by kind.
    pub kind: String,
    /// The stable identity within the kind.
    pub id: String,
}

impl Key {
    /// A key from its two parts. They are validated when the store is asked, not here.
    pub fn new(kind: impl Into<String>, id: impl Into<String>) -> Self {
        Self { kind: kind.into(), id: id.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.id)
    }
}

/// A stored object as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Kind and id.
    pub key: Key,
    /// Unique within the kind where set.
    pub name: Option<String>,
    /// Small key–value pairs to select by.
    pub labels: Labels,
    /// The caller's bytes; the store never looks inside.
    pub payload: Bytes,
    /// 1 when created, plus one with every change: the documents' `resource_version`. It restarts
    /// when an object is deleted and created again, so compare [`Object::revision`] where that
    /// matters.
    pub version: u64,
    /// Drawn from one counter for the whole store at the last change. Never reused.
    pub revision: u64,
    /// The revision at which this object was created.
    pub created_revision: u64,
    /// The revision at which the present tenure of this object began: its creation, or the last
    /// put that asked for [`crate::store::Put::new_token`]. It outlives puts and touches, it never
    /// repeats, and it is what a lease hands out as its fencing token.
    pub token: u64,
    /// Wall-clock label of the creation, for people. Nothing is ever decided by it.
    pub created_at_ms: i64,
    /// Wall-clock label of the last change, for people. Nothing is ever decided by it.
    pub updated_at_ms: i64,
    /// The life granted at the last put; `None` lives until deleted.
    pub ttl: Option<Duration>,
    /// How much of that life was left when the store answered. Set by reads only: an event tells
    /// what was written, and a touch may have prolonged it since.
    pub expires_in: Option<Duration>,
}

impl Object {
    /// Roughly how many bytes this object occupies; buffers are bounded by it.
    pub fn size(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(k, v)| k.len() + v.len()).sum();
        let name = self.name.as_ref().map_or(0, String::len);
        128 + self.key.kind.len() + self.key.id.len() + name + labels + self.payload.len()
    }

    /// The numbers a conflict would report.
    pub fn current(&self) -> Current {
        Current { version: self.version, revision: self.revision, token: self.token }
    }

    /// A put that would write this object again as it is. Change what you mean to change, and
    /// expect the revision you read.
    pub fn to_put(&self) -> Put {
        Put {
            key: self.key.clone(),
            expect: Expect::Any,
            name: self.name.clone(),
            labels: self.labels.clone(),
            payload: self.payload.clone(),
            ttl: self.ttl,
            new_token: false,
        }
    }
}
