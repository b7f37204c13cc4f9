//! A store that keeps leases only, dressed up as one that keeps any object.
//!
//! What the contract says of objects, it says of leases too: versions, conditions, lives, watches. So
//! the behaviours about objects are asked of leases there: an object of kind `k` with id `i` is the
//! lease `object.k/i`. Leases proper pass through as they are.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use tenure::backend::Backend;
use tenure::lease::LEASE;
use tenure::store::{
    Batch, Capabilities, Commit, Committed, Delete, Event, Kinds, Page, Put, Query, Store, Touch,
    Touched, Watch, WatchRequest, Write,
};
use tenure::{Error, Key, Object, Result};

const MARK: &str = "object.";

/// The store itself, or in disguise if it needs one.
pub(crate) fn disguise(store: Store) -> Store {
    if store.capabilities().kinds == Kinds::Any {
        return store;
    }
    let inner = Arc::clone(store.backend());
    let capabilities = Capabilities { kinds: Kinds::Any, ..store.capabilities().clone() };
    let (clock, random) = (Arc::clone(store.clock()), Arc::clone(store.random()));
    Store::new(Disguise { inner, capabilities }).with_clock(clock, random)
}

struct Disguise {
    inner: Arc<dyn Backend>,
    capabilities: Capabilities,
}

impl Disguise {
    /// Kinds of the lease machinery are what they are.
    fn passes(kind: &str) -> bool {
        kind == LEASE || kind.starts_with("lease-")
    }

    fn inner_key(key: Key) -> Key {
        if Self::passes(&key.kind) {
            return key;
        }
        Key::new(LEASE, format!("{MARK}{}/{}", key.kind, key.id))
    }

    fn outer_key(key: Key) -> Key {
        let marked = key.id.strip_prefix(MARK).filter(|_| key.kind == LEASE);
        match marked.and_then(|rest| rest.split_once('/')) {
            Some((kind, id)) => Key::new(kind, id),
            None => key,
        }
    }

    fn outer_object(mut object: Object) -> Object {
        object.key = Self::outer_key(object.key);
        object
    }

    fn outer_error(error: Error) -> Error {
        let outer = Self::outer_key;
        match error {
            Error::NotFound { key } => Error::NotFound { key: outer(key) },
            Error::AlreadyExists { key, current } => {
                Error::AlreadyExists { key: outer(key), current }
            }
            Error::Conflict { key, expected, current } => {
                Error::Conflict { key: outer(key), expected, current }
            }
            Error::Lost { key, token, current } => Error::Lost { key: outer(key), token, current },
            error => error,
        }
    }

    fn outer_event(event: &Event) -> Event {
        match event {
            Event::Put(object) => Event::Put(Arc::new(Self::outer_object(Object::clone(object)))),
            Event::Delete { key, cause, last } => Event::Delete {
                key: Self::outer_key(key.clone()),
                cause: *cause,
                last: last.as_ref().map(|last| Arc::new(Self::outer_object(Object::clone(last)))),
            },
        }
    }
}

#[async_trait]
impl Backend for Disguise {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let object = self.inner.get(&Self::inner_key(key.clone())).await;
        object.map(|object| object.map(Self::outer_object)).map_err(Self::outer_error)
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let mut inner = query.clone();
        let mark = match Self::passes(&query.kind) {
            true => String::new(),
            false => format!("{MARK}{}/", query.kind),
        };
        if !mark.is_empty() {
            inner.kind = LEASE.into();
            let marked = |id: &String| format!("{mark}{id}");
            inner.range.prefix.insert_str(0, &mark);
            inner.range.from = query.range.from.as_ref().map(marked);
            inner.range.until = query.range.until.as_ref().map(marked);
            inner.after = query.after.as_ref().map(marked);
        }
        let mut page = self.inner.list(&inner).await.map_err(Self::outer_error)?;
        page.next = page.next.map(|next| next.strip_prefix(&mark).unwrap_or(&next).to_owned());
        page.objects = page.objects.into_iter().map(Self::outer_object).collect();
        Ok(page)
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed> {
        for check in &mut commit.checks {
            check.key = Self::inner_key(check.key.clone());
        }
        for write in &mut commit.writes {
            let (Write::Put(Put { key, .. }) | Write::Delete(Delete { key, .. })) = write;
            *key = Self::inner_key(key.clone());
        }
        self.inner.commit(commit).await.map_err(Self::outer_error)
    }

    async fn touch(&self, mut touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        for touch in &mut touches {
            touch.key = Self::inner_key(touch.key.clone());
        }
        let answers = self.inner.touch(touches).await.map_err(Self::outer_error)?;
        Ok(answers.into_iter().map(|answer| answer.map_err(Self::outer_error)).collect())
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let mut inner = request.clone();
        if let Some(kind) = request.kind.as_ref().filter(|kind| !Self::passes(kind)) {
            inner.kind = Some(LEASE.into());
            inner.prefix = format!("{MARK}{kind}/{}", request.prefix);
        }
        let watch = self.inner.watch(&inner).await.map_err(Self::outer_error)?;
        let outer = |batch: Result<Arc<Batch>>| {
            let batch = batch?;
            let events = batch.events.iter().map(Self::outer_event).collect();
            Ok(Arc::new(Batch { revision: batch.revision, events }))
        };
        Ok(watch.through(|watch| watch.map(outer).boxed()))
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
