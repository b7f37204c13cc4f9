//! A part of a store that looks like a whole one: only what begins with a prefix, which it hides.
//!
//! Ids and names gain the prefix on the way in and lose it on the way out, in objects, pages, events
//! and errors alike; kinds stay. So those who share a store, each behind a prefix of its own, are
//! apart by construction: their leases, lines and slots too, which are objects like any other. The
//! prefix ends in a `~` and has no other, so that none can be the beginning of another.
//!
//! What they do share is the counter of revisions: a gap tells that something else changed, not
//! who changed it or what.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;

use super::{
    Batch, Capabilities, Commit, Committed, Delete, Event, Page, Put, Query, Store, Touch, Touched,
    Watch, WatchRequest, Write,
};
use crate::backend::Backend;
use crate::{Error, Key, Limits, Object, Result};

/// What every prefix ends in.
pub const SEPARATOR: char = '~';
/// The longest prefix: it leaves room in an id for the longest scope and a waiter's nonce.
pub const MAX_BYTES: usize = 64;

/// The part of a store whose ids and names begin with a prefix.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::Key;
/// use tenure::store::{Put, memory::MemoryStore, prefixed::Prefixed};
///
/// let whole = MemoryStore::new().into_store();
/// let acme = Prefixed::tenant(&whole, "acme")?.into_store();
/// acme.commit(Put::new(Key::new("order", "7"), "paid")).await?;
/// assert!(acme.get(&Key::new("order", "7")).await?.is_some());
/// assert!(whole.get(&Key::new("order", "acme~7")).await?.is_some());
/// # Ok(())
/// # }
/// ```
pub struct Prefixed {
    whole: Store,
    inner: Arc<dyn Backend>,
    view: View,
    capabilities: Capabilities,
}

impl Prefixed {
    /// The part of `whole` that begins with `prefix`, which ends in [`SEPARATOR`].
    pub fn new(whole: &Store, prefix: &str) -> Result<Self> {
        check(prefix)?;
        let inner = whole.capabilities();
        let shorter = |max: usize| max.saturating_sub(prefix.len());
        let limits = Limits {
            id_bytes: shorter(inner.limits.id_bytes),
            name_bytes: shorter(inner.limits.name_bytes),
            ..inner.limits.clone()
        };
        if limits.id_bytes == 0 || limits.name_bytes == 0 {
            let (max, got) = (inner.limits.id_bytes.min(inner.limits.name_bytes), prefix.len());
            let limit = "prefix_bytes";
            return Err(Error::LimitExceeded { limit, max: max as u64, got: got as u64 });
        }
        Ok(Self {
            whole: whole.clone(),
            inner: Arc::clone(whole.backend()),
            view: View { prefix: prefix.into() },
            capabilities: Capabilities { limits, ..inner.clone() },
        })
    }

    /// The part of `whole` that belongs to this tenant: the prefix is its name and a `~`.
    pub fn tenant(whole: &Store, name: &str) -> Result<Self> {
        Self::new(whole, &format!("{name}{SEPARATOR}"))
    }

    /// A store of it, with the clock and the habits of the whole one. Closing it leaves the whole one
    /// open.
    pub fn into_store(self) -> Store {
        let whole = self.whole.clone();
        whole.with_backend(Arc::new(self))
    }
}

/// A prefix that cannot begin another one and leaves scopes what they are.
fn check(prefix: &str) -> Result<()> {
    let wrong = |reason: &str| Err(Error::invalid(format!("prefix {prefix:?}"), reason));
    let Some(name) = prefix.strip_suffix(SEPARATOR) else {
        return wrong("it must end in '~', which tells it apart from longer ones");
    };
    if prefix.len() > MAX_BYTES {
        let (max, got) = (MAX_BYTES as u64, prefix.len() as u64);
        return Err(Error::LimitExceeded { limit: "prefix_bytes", max, got });
    }
    if let Some(bad) = name.chars().find(|c| matches!(c, '~' | '/' | '#') || c.is_control()) {
        return wrong(&format!("{bad:?} may not be in it; use letters, digits and dashes"));
    }
    if name.split('.').any(str::is_empty) {
        return wrong("it needs a name before the '~', with single dots inside at most");
    }
    Ok(())
}

/// Text as the whole store has it, and as those behind the prefix see it.
#[derive(Clone)]
struct View {
    prefix: Arc<str>,
}

impl View {
    fn inside(&self, text: &str) -> String {
        format!("{}{text}", self.prefix)
    }

    fn inside_key(&self, key: &mut Key) {
        key.id.insert_str(0, &self.prefix);
    }

    fn has(&self, key: &Key) -> bool {
        key.id.starts_with(&*self.prefix)
    }

    /// What is not ours cannot come out; if it did, it would be seen for what it is.
    fn outside(&self, text: String) -> String {
        text.strip_prefix(&*self.prefix).map(str::to_owned).unwrap_or(text)
    }

    fn outside_key(&self, key: Key) -> Key {
        Key { id: self.outside(key.id), kind: key.kind }
    }

    fn outside_object(&self, mut object: Object) -> Object {
        object.key = self.outside_key(object.key);
        object.name = object.name.map(|name| self.outside(name));
        object
    }

    fn outside_event(&self, event: &Event) -> Event {
        let object = |object: &Arc<Object>| Arc::new(self.outside_object(Object::clone(object)));
        match event {
            Event::Put(put) => Event::Put(object(put)),
            Event::Delete { key, cause, last } => Event::Delete {
                key: self.outside_key(key.clone()),
                cause: *cause,
                last: last.as_ref().map(object),
            },
        }
    }

    /// The part of a batch that is ours; `None` if there is none.
    fn outside_batch(&self, batch: &Batch) -> Option<Arc<Batch>> {
        let ours = batch.events.iter().filter(|event| self.has(event.key()));
        let events: Vec<Event> = ours.map(|event| self.outside_event(event)).collect();
        let revision = batch.revision;
        (!events.is_empty()).then(|| Arc::new(Batch { revision, events }))
    }

    /// Where a page that ended here goes on.
    fn outside_next(&self, next: Option<String>) -> Option<String> {
        let next = next?;
        match next.strip_prefix(&*self.prefix) {
            Some(rest) => Some(rest.to_owned()),
            // Before us: the next page begins where we begin. Behind us: there is no more.
            None => (*next < *self.prefix).then(String::new),
        }
    }

    fn outside_error(&self, error: Error) -> Error {
        match error {
            Error::NotFound { key } => Error::NotFound { key: self.outside_key(key) },
            Error::AlreadyExists { key, current } => {
                Error::AlreadyExists { key: self.outside_key(key), current }
            }
            Error::NameTaken { kind, name, id } => {
                Error::NameTaken { kind, name: self.outside(name), id: self.outside(id) }
            }
            Error::Conflict { key, expected, current } => {
                Error::Conflict { key: self.outside_key(key), expected, current }
            }
            Error::Lost { key, token, current } => {
                Error::Lost { key: self.outside_key(key), token, current }
            }
            error => error,
        }
    }

    fn inside_query(&self, query: &Query) -> Query {
        let mut inner = query.clone();
        // The prefix bounds the range on both sides, whatever else does.
        inner.range.prefix.insert_str(0, &self.prefix);
        for id in [&mut inner.range.from, &mut inner.range.until, &mut inner.after] {
            *id = id.take().map(|id| self.inside(&id));
        }
        inner.name = inner.name.map(|name| self.inside(&name));
        inner
    }

    fn inside_commit(&self, commit: &mut Commit) {
        for check in &mut commit.checks {
            self.inside_key(&mut check.key);
        }
        for write in &mut commit.writes {
            match write {
                Write::Put(Put { key, name, .. }) => {
                    self.inside_key(key);
                    *name = name.take().map(|name| self.inside(&name));
                }
                Write::Delete(Delete { key, .. }) => self.inside_key(key),
            }
        }
    }
}

#[async_trait]
impl Backend for Prefixed {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let view = &self.view;
        let found = self.inner.get(&Key::new(key.kind.clone(), view.inside(&key.id))).await;
        let found = found.map_err(|error| view.outside_error(error))?;
        Ok(found.map(|object| view.outside_object(object)))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let view = &self.view;
        let page = self.inner.list(&view.inside_query(query)).await;
        let mut page = page.map_err(|error| view.outside_error(error))?;
        page.objects.retain(|object| view.has(&object.key));
        page.objects = page.objects.into_iter().map(|object| view.outside_object(object)).collect();
        page.next = view.outside_next(page.next);
        Ok(page)
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed> {
        self.view.inside_commit(&mut commit);
        self.inner.commit(commit).await.map_err(|error| self.view.outside_error(error))
    }

    fn commit_within(&self) -> Option<Duration> {
        self.inner.commit_within()
    }

    async fn touch(&self, mut touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let view = &self.view;
        for touch in &mut touches {
            view.inside_key(&mut touch.key);
        }
        let answers = self.inner.touch(touches).await;
        let answers = answers.map_err(|error| view.outside_error(error))?;
        let outside = |answer: Result<_>| answer.map_err(|error| view.outside_error(error));
        Ok(answers.into_iter().map(outside).collect())
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let mut inner = request.clone();
        inner.prefix.insert_str(0, &self.view.prefix);
        let watch = self.inner.watch(&inner).await.map_err(|e| self.view.outside_error(e))?;
        let view = self.view.clone();
        let ours = move |batch: Result<Arc<Batch>>| {
            let ours = match batch {
                Ok(batch) => view.outside_batch(&batch).map(Ok),
                Err(error) => Some(Err(view.outside_error(error))),
            };
            std::future::ready(ours)
        };
        Ok(watch.through(|watch| watch.filter_map(ours).boxed()))
    }

    /// Others use the rest.
    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[test]
    fn a_prefix_cannot_begin_another_and_breaks_no_scope() {
        let store = MemoryStore::new().into_store();
        for good in ["acme~", "acme.com~", "a-b_1~", "ü~"] {
            Prefixed::new(&store, good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        let long = format!("{}~", "a".repeat(MAX_BYTES));
        for bad in ["", "~", "acme", "a~b~", "a/b~", "a#b~", "a\n~", ".a~", "a..b~", "a.~", &long] {
            assert!(Prefixed::new(&store, bad).is_err(), "{bad:?}");
        }
        let tenant = Prefixed::tenant(&store, "acme").unwrap_or_else(|error| panic!("{error}"));
        let (whole, part) = (&store.capabilities().limits, &tenant.capabilities().limits);
        assert_eq!((part.id_bytes, part.name_bytes), (whole.id_bytes - 5, whole.name_bytes - 5));
        assert!(Prefixed::tenant(&store, "a~b").is_err());
    }

    #[test]
    fn a_page_goes_on_within_the_prefix_and_ends_behind_it() {
        let view = View { prefix: "m~".into() };
        let next = |text: &str| view.outside_next(Some(text.into()));
        assert_eq!(next("m~7").as_deref(), Some("7"));
        assert_eq!(next("a~7").as_deref(), Some(""));
        assert_eq!((next("z"), view.outside_next(None)), (None, None));
    }
}
