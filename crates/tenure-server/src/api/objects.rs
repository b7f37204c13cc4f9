//! Objects, as a caller may read and write them.
//!
//! Leases are objects too, and a client that runs the library over the wire reads and writes them as
//! such. What that means for permissions is decided here: whoever may hold a scope may write the records
//! of that scope, and nobody else. A watch of leases shows what its caller may see.

use std::borrow::Cow;
use std::sync::Arc;

use futures::StreamExt as _;
use tenure::lease::{LEASE, READERS, REMAINS, REVOKED, SLOTS, WAITER};
use tenure::store::{
    Batch, Commit, Committed, Event, Expect, Page, Put, Query, Touch, Touched, Watch, WatchRequest,
    Write,
};
use tenure::{Key, Object};

use super::View;
use crate::Fault;
use crate::auth::Action;

/// Whether a kind belongs to leases.
fn is_of_leases(kind: &str) -> bool {
    matches!(kind, LEASE | WAITER | REMAINS | SLOTS | READERS | REVOKED)
}

/// What the id of a record of leases is about, as permissions see it: its scope, which is what comes
/// before a tag, or everything in its group.
fn about(id: &str) -> Cow<'_, str> {
    let about = id.rsplit_once('#').map_or(id, |(about, _)| about);
    if about.contains('/') { about.into() } else { group(about).into() }
}

/// How many slots a group's record says there are.
fn count(payload: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(payload).ok()?.get("count")?.as_u64()
}

/// A group of slots, as permissions see it: all of its slots.
pub(super) fn group(group: &str) -> String {
    format!("{group}/*")
}

/// A write of a group's record that may or may not change its count.
fn recounts(write: &Write) -> Option<&Put> {
    let Write::Put(put) = write else { return None };
    let told = matches!(put.expect, Expect::Any | Expect::Absent);
    (put.key.kind == SLOTS && !told).then_some(put)
}

/// Something for the audit log: what was allowed, on what, and what was done.
type Notable = (Action, String, &'static str);

impl View {
    /// One object.
    pub async fn get(&self, key: &Key) -> Result<Option<Object>, Fault> {
        self.may_read(&key.kind, &key.id, false)?;
        Ok(self.part.store.get(key).await?)
    }

    /// A page of objects.
    pub async fn list(&self, query: &Query) -> Result<Page, Fault> {
        self.may_read(&query.kind, &query.range.prefix, true)?;
        Ok(self.part.store.list(query).await?)
    }

    /// Checks and writes, all or nothing.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, Fault> {
        for check in &commit.checks {
            self.may_read(&check.key.kind, &check.key.id, false)?;
        }
        let mut notable = Vec::new();
        for write in &commit.writes {
            notable.extend(self.may_write(write)?);
            if let Some(put) = recounts(write) {
                notable.extend(Box::pin(self.may_recount(put)).await?);
            }
        }
        let committed = self.part.store.commit(commit).await;
        // What may have happened is told too.
        if !committed.as_ref().is_err_and(tenure::Error::is_refusal) {
            for (action, resource, what) in &notable {
                self.audit(*action, resource, what);
            }
        }
        Ok(committed?)
    }

    /// Prolongs lives, many at once.
    pub async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<tenure::Result<Touched>>, Fault> {
        for touch in &touches {
            self.may_change(&touch.key)?;
        }
        Ok(self.part.store.touch(touches).await?)
    }

    /// What happens from now on or from a revision on.
    pub async fn watch(&self, request: &WatchRequest) -> Result<Watch, Fault> {
        match &request.kind {
            Some(kind) if is_of_leases(kind) && self.sees_some_of(&request.prefix) => {
                return Ok(self.seen(self.part.store.watch(request).await?));
            }
            Some(kind) => self.may_read(kind, &request.prefix, true)?,
            None => {
                self.require(Action::ObjectsRead, "*")?;
                self.require(Action::LeasesRead, "*")?;
            }
        }
        Ok(self.part.store.watch(request).await?)
    }

    /// Whether the caller may see some of the leases with this prefix, though perhaps not all.
    fn sees_some_of(&self, prefix: &str) -> bool {
        let all = format!("{prefix}*");
        !self.caller.may(Action::LeasesRead, &all) && self.caller.may_some(Action::LeasesRead)
    }

    /// The part of a watch of leases that the caller may see. A coordinator over the wire has one watch
    /// for all that it waits for, and waits for nothing that its caller may not hold.
    fn seen(&self, watch: Watch) -> Watch {
        let (start, caller) = (watch.start(), self.caller.clone());
        let may_see = move |event: &&Event| caller.may(Action::LeasesRead, &about(&event.key().id));
        let seen = watch.filter_map(move |batch| {
            let seen = batch.map(|batch| {
                let events: Vec<_> = batch.events.iter().filter(&may_see).cloned().collect();
                let revision = batch.revision;
                (!events.is_empty()).then(|| Arc::new(Batch { revision, events }))
            });
            std::future::ready(seen.transpose())
        });
        Watch::new(start, seen.boxed())
    }

    fn may_read(&self, kind: &str, id: &str, prefix: bool) -> Result<(), Fault> {
        match (is_of_leases(kind), prefix) {
            // A prefix with a tag in it is about one line.
            (true, true) if id.contains('#') => self.require(Action::LeasesRead, &about(id)),
            (true, true) => self.require(Action::LeasesRead, &format!("{id}*")),
            (true, false) => self.require(Action::LeasesRead, &about(id)),
            (false, true) => self.require(Action::ObjectsRead, &format!("{kind}/{id}*")),
            (false, false) => self.require(Action::ObjectsRead, &format!("{kind}/{id}")),
        }
    }

    fn may_change(&self, key: &Key) -> Result<(), Fault> {
        if is_of_leases(&key.kind) {
            return self.require(Action::LeasesHold, &about(&key.id));
        }
        self.require(Action::ObjectsWrite, &format!("{}/{}", key.kind, key.id))
    }

    /// Whoever takes a slot of a group that has shrunk writes the group's record, and leaves its count as
    /// it is. A write that does not is a resize, whatever it expects.
    async fn may_recount(&self, put: &Put) -> Result<Option<Notable>, Fault> {
        // If it changes before the commit, the commit's own expectation fails.
        let now = self.part.store.get(&put.key).await?;
        if now.is_none_or(|now| count(&now.payload) == count(&put.payload)) {
            return Ok(None);
        }
        let resource = group(&put.key.id);
        self.require(Action::SlotsResize, &resource)?;
        Ok(Some((Action::SlotsResize, resource, "resized")))
    }

    /// Refuses what the caller may not write, and tells what the audit log has to know of the rest.
    fn may_write(&self, write: &Write) -> Result<Option<Notable>, Fault> {
        let key = write.key();
        let (action, resource, what) = match (key.kind.as_str(), write) {
            // The word left for the holder: only whoever revokes writes it.
            (REVOKED, _) => (Action::LeasesRevoke, about(&key.id), "revoked"),
            // Whoever takes a slot expects the group as it was; whoever resizes it does not care.
            (SLOTS, write) if write.expect() == Expect::Any => {
                (Action::SlotsResize, Cow::Owned(group(&key.id)), "resized")
            }
            _ => return self.may_change(key).map(|()| None),
        };
        self.require(action, &resource)?;
        Ok(Some((action, resource.into_owned(), what)))
    }
}
