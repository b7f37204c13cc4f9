//! A wrapper that counts calls, to show what something costs the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Commit, Committed, Page, Query, Store, Touch, Touched, Watch, WatchRequest,
};
use tenure::{Key, Object, Result};

/// How often each operation was called; clones share the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(Arc<[AtomicU64; 5]>);

impl Calls {
    fn count(&self, operation: usize) {
        self.0[operation].fetch_add(1, Ordering::Relaxed);
    }

    /// Gets, lists, commits, touches, watches.
    pub(crate) fn all(&self) -> [u64; 5] {
        [0, 1, 2, 3, 4].map(|n| self.0[n].load(Ordering::Relaxed))
    }

    pub(crate) fn commits(&self) -> u64 {
        self.all()[2]
    }
}

/// The same store, with its calls counted.
pub(crate) fn counted(store: &Store) -> (Store, Calls) {
    let calls = Calls::default();
    let counting = Counting { inner: Arc::clone(store.backend()), calls: calls.clone() };
    (Store::new(counting), calls)
}

struct Counting {
    inner: Arc<dyn Backend>,
    calls: Calls,
}

#[async_trait]
impl Backend for Counting {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.calls.count(0);
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.calls.count(1);
        self.inner.list(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.calls.count(2);
        self.inner.commit(commit).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.calls.count(3);
        self.inner.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.calls.count(4);
        self.inner.watch(request).await
    }
}
