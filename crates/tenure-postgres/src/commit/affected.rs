//! The keys and names that a group of commits touches or looks at, so that their rows can be read.

use std::collections::BTreeSet;

use tenure::Key;
use tenure::store::{Put, Write};

use crate::commit::apply::Keys;
use crate::commit::committer::Work;

type Pair<'a> = (&'a str, &'a str);

/// What a group is about, each once and in order.
#[derive(Default)]
pub(crate) struct Affected<'a> {
    mortal: BTreeSet<Pair<'a>>,
    other: BTreeSet<Pair<'a>>,
    names: BTreeSet<Pair<'a>>,
}

impl<'a> Affected<'a> {
    pub(crate) fn by(jobs: &[&'a Work]) -> Self {
        let mut affected = Self::default();
        let pair = |key: &'a Key| (key.kind.as_str(), key.id.as_str());
        for job in jobs {
            match job {
                Work::Commit(commit) => {
                    // Checks and deletes are mostly about leases.
                    affected.mortal.extend(commit.checks.iter().map(|check| pair(&check.key)));
                    for write in &commit.writes {
                        match write {
                            Write::Put(Put { key, ttl: None, .. }) => {
                                affected.other.insert(pair(key))
                            }
                            write => affected.mortal.insert(pair(write.key())),
                        };
                        if let Write::Put(Put { key, name: Some(name), .. }) = write {
                            affected.names.insert((&key.kind, name));
                        }
                    }
                }
                Work::Sweep { keys, .. } => affected.mortal.extend(keys.iter().map(pair)),
                Work::Record { .. } => {}
            }
        }
        affected.other.retain(|pair| !affected.mortal.contains(pair));
        affected
    }

    /// Keys of rows that probably have a time to live.
    pub(crate) fn mortal(&self) -> Keys<'a> {
        columns(&self.mortal)
    }

    /// All other keys.
    pub(crate) fn other(&self) -> Keys<'a> {
        columns(&self.other)
    }

    /// Kinds and names that are claimed.
    pub(crate) fn names(&self) -> Keys<'a> {
        columns(&self.names)
    }
}

fn columns<'a>(pairs: &BTreeSet<Pair<'a>>) -> Keys<'a> {
    let mut columns = Keys::default();
    pairs.iter().for_each(|(kind, second)| columns.push(kind, second));
    columns
}
