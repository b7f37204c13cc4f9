//! What a commit is judged on: the objects and names it concerns, as read or as guessed.

use std::sync::Arc;

use tenure::backend::decide::{Row, View};
use tenure::store::{Commit, Expect, Put, Write};
use tenure::{Error, Key, Labels, Object, Result};

use crate::BACKEND;
use crate::cache::Cache;
use crate::keys::Keys;
use crate::messages::{KeyValue, Operation, RangeRequest, RequestOp, ResponseOp};
use crate::stored::Stored;
use crate::writer_level::read_level;

/// Who has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) id: String,
    /// etcd's revision of the name's key.
    pub(crate) modified: i64,
}

type Name = (String, String);

/// Objects and names at one instant; all of them guessed, or all of them read. A commit concerns few,
/// so they are searched one by one.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    objects: Vec<(Key, Option<Arc<Stored>>)>,
    names: Vec<(Name, Option<Owner>)>,
    /// It was read, at one instant of this very call.
    pub(crate) read: bool,
    /// etcd's revision of the writer level's key, if it was read.
    pub(crate) writer: Option<i64>,
}

impl Snapshot {
    /// A guess by what the commit expects and by what is remembered; `None` if that is not enough.
    pub(crate) fn guess(commit: &Commit, cache: &Cache) -> Option<Self> {
        let mut this = Self::default();
        let checks = commit.checks.iter().map(|check| (&check.key, check.expect));
        let writes = commit.writes.iter().map(|write| (write.key(), write.expect()));
        for (key, expect) in checks.chain(writes) {
            if !this.objects.iter().any(|(stored, _)| stored == key) {
                let guess = guess(key, expect, cache)?;
                this.objects.push((key.clone(), guess));
            }
        }
        for (key, name) in named(commit) {
            let has_it = this.object(key).is_some_and(|stored| stored.object.name == *name);
            let owner = has_it.then(|| Owner { id: key.id.clone(), modified: 0 });
            this.names.push(((key.kind.clone(), name.clone().unwrap_or_default()), owner));
        }
        Some(this)
    }

    /// What to ask the server for, in the order that [`Snapshot::read`] expects. The writer level comes
    /// last, and a transaction that merely wants to know why it failed leaves it out: it hardly ever
    /// changes, and every operation costs the server something also if it is not needed.
    pub(crate) fn questions(commit: &Commit, keys: &Keys, level: bool) -> Vec<RequestOp> {
        let objects = concerned(commit).into_iter().map(|key| keys.object(key));
        let names = named(commit)
            .map(|(key, name)| keys.name(&key.kind, name.as_deref().unwrap_or_default()));
        let level = level.then(|| keys.writer());
        objects.chain(names).chain(level).map(get).collect()
    }

    /// What the server answered.
    pub(crate) fn read(commit: &Commit, answers: Vec<ResponseOp>, level: bool) -> Result<Self> {
        let short = || Error::unavailable(BACKEND, "the server answered less than was asked");
        let mut answers = answers.into_iter();
        let mut next = || -> Result<Option<KeyValue>> {
            let answer = answers.next().and_then(|answer| answer.range).ok_or_else(short)?;
            Ok(answer.kvs.into_iter().next())
        };
        let mut this = Self { read: true, ..Self::default() };
        for key in concerned(commit) {
            let stored = next()?.map(|kv| Stored::read(key.clone(), &kv)).transpose()?;
            this.objects.push((key.clone(), stored.map(Arc::new)));
        }
        for (key, name) in named(commit) {
            let owner = next()?.map(|kv| Owner {
                id: String::from_utf8_lossy(&kv.value).into_owned(),
                modified: kv.mod_revision,
            });
            this.names.push(((key.kind.clone(), name.clone().unwrap_or_default()), owner));
        }
        if level {
            let level = next()?;
            this.writer = Some(level.as_ref().map_or(0, |level| level.mod_revision));
            level.as_ref().map_or(Ok(0), read_level)?;
        }
        Ok(this)
    }

    pub(crate) fn object(&self, key: &Key) -> Option<&Arc<Stored>> {
        let found = self.objects.iter().find(|(stored, _)| stored == key);
        found.and_then(|(_, stored)| stored.as_ref())
    }

    fn owner(&self, kind: &str, name: &str) -> Option<&Owner> {
        let found = self.names.iter().find(|((k, n), _)| k == kind && n == name);
        found.and_then(|(_, owner)| owner.as_ref())
    }

    /// etcd's revision of an object, 0 if it is not there.
    pub(crate) fn modified(&self, key: &Key) -> i64 {
        self.object(key).map_or(0, |stored| stored.modified)
    }

    /// etcd's revision of a name's key, 0 if nobody has it.
    pub(crate) fn name_modified(&self, kind: &str, name: &str) -> i64 {
        self.owner(kind, name).map_or(0, |owner| owner.modified)
    }
}

fn guess(key: &Key, expect: Expect, cache: &Cache) -> Option<Option<Arc<Stored>>> {
    let stored = || cache.get(key);
    match expect {
        // The transaction finds out, and says what is there if this is wrong.
        Expect::Absent => Some(None),
        Expect::Any | Expect::Exists => stored().map(Some),
        Expect::Version(version) => stored().filter(|k| k.object.version == version).map(Some),
        Expect::Revision(revision) => stored().filter(|k| k.object.revision == revision).map(Some),
        Expect::Token(token) => stored().filter(|k| k.object.token == token).map(Some),
    }
}

/// Every object of a commit, once, in order.
pub(crate) fn concerned(commit: &Commit) -> Vec<&Key> {
    let mut keys: Vec<&Key> = Vec::with_capacity(commit.checks.len() + commit.writes.len());
    let checks = commit.checks.iter().map(|check| &check.key);
    for key in checks.chain(commit.writes.iter().map(Write::key)) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Every name that a commit claims.
fn named(commit: &Commit) -> impl Iterator<Item = (&Key, &Option<String>)> {
    commit.writes.iter().filter_map(|write| match write {
        Write::Put(Put { key, name, .. }) if name.is_some() => Some((key, name)),
        _ => None,
    })
}

pub(crate) fn get(key: Vec<u8>) -> RequestOp {
    let range = RangeRequest { key, range_end: vec![], limit: 0, count_only: false };
    RequestOp { request: Some(Operation::Range(range)) }
}

impl View for Snapshot {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        let row =
            |stored: &Arc<Stored>| Row { object: Arc::clone(&stored.object), expires_at_ms: None };
        Ok(self.object(key).map(row))
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        let owner = self.owner(kind, name);
        Ok(owner.map(|owner| Row { object: Arc::new(bare(kind, &owner.id)), expires_at_ms: None }))
    }
}

/// The owner of a name, of whom nothing but its key matters.
fn bare(kind: &str, id: &str) -> Object {
    Object {
        key: Key::new(kind, id),
        name: None,
        labels: Labels::new(),
        payload: bytes::Bytes::new(),
        version: 0,
        revision: 0,
        created_revision: 0,
        token: 0,
        created_at_ms: 0,
        updated_at_ms: 0,
        ttl: None,
        expires_in: None,
    }
}
