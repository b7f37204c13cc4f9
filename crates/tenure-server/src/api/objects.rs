//! Objects, as a caller may read and write them.
//!
//! Leases are objects too, and a client that runs the library over the wire reads and writes them as
//! such. What it takes to write them is in `records`. A watch of leases shows what its caller may see.

use std::borrow::Cow;
use std::sync::Arc;

use futures::StreamExt as _;
use tenure::store::{
    Batch, Commit, Committed, Event, Page, Query, Touch, Touched, Watch, WatchRequest,
};
use tenure::{Key, Object};

use super::records::{about, is_of_leases};
use super::{StreamAuthorisation, View};
use crate::Fault;
use crate::auth::Action;

impl View {
    /// One object.
    pub async fn get(&self, key: &Key) -> Result<Option<Object>, Fault> {
        self.may_read(&key.kind, &key.id, false)?;
        Ok(self.part.store.get(key).await?)
    }

    /// A page of objects.
    pub async fn list(&self, query: &Query) -> Result<Page, Fault> {
        match only(query) {
            Some(id) => self.may_read(&query.kind, id, false)?,
            None => self.may_read(&query.kind, &query.range.prefix, true)?,
        }
        Ok(self.part.store.list(query).await?)
    }

    /// Checks and writes, all or nothing.
    pub async fn commit(&self, mut commit: Commit) -> Result<Committed, Fault> {
        let notable = self.may_commit(&mut commit).await?;
        let noting = self.noting(notable);
        let committed = self.part.store.commit(commit).await;
        noting.end(&committed);
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
    pub async fn watch(
        &self,
        request: &WatchRequest,
    ) -> Result<(Watch, StreamAuthorisation), Fault> {
        let authorisation = match &request.kind {
            Some(kind) if is_of_leases(kind) && self.sees_some_of(&request.prefix) => {
                let watch = self.seen(self.opening(self.part.store.watch(request)).await?);
                return Ok((watch, self.authorise_some(Action::LeasesRead)));
            }
            Some(kind) => self.authorise([reading(kind, &request.prefix, true)])?,
            None => {
                let all = |action| (action, Cow::Borrowed("*"));
                self.authorise([all(Action::ObjectsRead), all(Action::LeasesRead)])?
            }
        };
        Ok((self.opening(self.part.store.watch(request)).await?, authorisation))
    }

    /// Whether the caller may see some of the leases with this prefix, though perhaps not all.
    fn sees_some_of(&self, prefix: &str) -> bool {
        let all = format!("{prefix}*");
        !self.caller.may(Action::LeasesRead, &all) && self.caller.may_some(Action::LeasesRead)
    }

    /// The part of a watch of leases that the caller may see. A coordinator over the wire has one watch
    /// for all that it waits for, and waits for nothing that its caller may not hold.
    fn seen(&self, watch: Watch) -> Watch {
        let caller = self.caller.clone();
        let may_see = move |event: &&Event| caller.may(Action::LeasesRead, &about(&event.key().id));
        let seen = move |batch: tenure::Result<Arc<Batch>>| {
            let seen = batch.map(|batch| {
                let events: Vec<_> = batch.events.iter().filter(&may_see).cloned().collect();
                let revision = batch.revision;
                (!events.is_empty()).then(|| Arc::new(Batch { revision, events }))
            });
            std::future::ready(seen.transpose())
        };
        watch.through(|watch| watch.filter_map(seen).boxed())
    }

    pub(super) fn may_read(&self, kind: &str, id: &str, prefix: bool) -> Result<(), Fault> {
        let (action, resource) = reading(kind, id, prefix);
        self.require(action, &resource)
    }

    pub(super) fn may_change(&self, key: &Key) -> Result<(), Fault> {
        if is_of_leases(&key.kind) {
            return self.require(Action::LeasesHold, &about(&key.id));
        }
        self.require(Action::ObjectsWrite, &format!("{}/{}", key.kind, key.id))
    }
}

/// The id that a list is about, if there is room for one only: a coordinator over the wire looks that way
/// for the lease that it was handed, and may perhaps see no other.
fn only(query: &Query) -> Option<&str> {
    let (from, until) = (query.range.from.as_deref()?, query.range.until.as_deref()?);
    // An id holds no control characters, so nothing lies between it and that.
    (until.strip_suffix('\u{1}') == Some(from)).then_some(from)
}

/// What it takes to read an object, or all whose ids begin so.
fn reading<'a>(kind: &str, id: &'a str, prefix: bool) -> (Action, Cow<'a, str>) {
    match (is_of_leases(kind), prefix) {
        // A prefix with a tag in it is about one line.
        (true, true) if id.contains('#') => (Action::LeasesRead, about(id)),
        (true, true) => (Action::LeasesRead, format!("{id}*").into()),
        (true, false) => (Action::LeasesRead, about(id)),
        (false, true) => (Action::ObjectsRead, format!("{kind}/{id}*").into()),
        (false, false) => (Action::ObjectsRead, format!("{kind}/{id}").into()),
    }
}
