//! Commits in the words of the history.

use tenure::Key;
use tenure::store::{Commit, Committed, Write};

/// What a commit asks for.
pub(crate) fn brief(commit: &Commit) -> String {
    let write = |write: &Write| match write {
        Write::Put(put) => format!("put {} if {}", short(&put.key), put.expect),
        Write::Delete(delete) => format!("delete {} if {}", short(&delete.key), delete.expect),
    };
    let checks = commit.checks.iter().map(|c| format!("check {} is {}", short(&c.key), c.expect));
    let all: Vec<String> = commit.writes.iter().map(write).chain(checks).collect();
    all.join(", ")
}

/// What a commit did.
pub(crate) fn describe(commit: &Commit, committed: &Committed) -> String {
    match committed.revision {
        Some(revision) => format!("{} applied, revision {revision}", brief(commit)),
        None => format!("{} changed nothing", brief(commit)),
    }
}

/// A key with its nonce cut short, for people.
fn short(key: &Key) -> String {
    let text = key.to_string();
    match text.rsplit_once('#') {
        Some((head, nonce)) if nonce.len() > 12 => {
            format!("{head}#{}", &nonce[..nonce.len().min(11)])
        }
        _ => text,
    }
}
