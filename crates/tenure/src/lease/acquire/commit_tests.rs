//! An acquisition whose answer was lost, on a store that granted less than it was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::Backend;
use crate::clock::{Clock, SystemClock};
use crate::lease::record::LEASE;
use crate::lease::{Coordinator, Scope, Terms};
use crate::store::memory::MemoryStore;
use crate::store::{
    Capabilities, Commit, Committed, Page, Query, Store, Touch, Touched, Watch, WatchRequest, Write,
};
use crate::{Error, Key, Object, Result};

/// Applies the first commit with half of the lives, and says that it does not know. So does etcd when
/// an object hangs on a lease that has lost part of its life, and the keep-alive is not answered.
struct HalfLives {
    inner: Arc<dyn Backend>,
    doubtful: AtomicBool,
}

#[async_trait]
impl Backend for HalfLives {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.inner.list(query).await
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed> {
        if !self.doubtful.swap(false, Ordering::AcqRel) {
            return self.inner.commit(commit).await;
        }
        for write in &mut commit.writes {
            if let Write::Put(put) = write {
                put.ttl = put.ttl.map(|ttl| ttl / 2);
            }
        }
        self.inner.commit(commit).await?;
        Err(Error::unknown("memory", "it was written, but with which life?"))
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.inner.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.inner.watch(request).await
    }
}

#[tokio::test]
async fn a_grant_that_was_found_again_has_a_full_life() {
    let doubtful = AtomicBool::new(true);
    let store = Store::new(HalfLives { inner: Arc::new(MemoryStore::new()), doubtful });
    let coordinator = Coordinator::builder(store.clone()).name("w").start().unwrap();
    let scope: Scope = "jobs/x".parse().unwrap();
    let terms = Terms::new().ttl(Duration::from_secs(60));
    let lease = coordinator.acquire(&scope, &terms).await.unwrap();
    let before = SystemClock.uptime();
    let object = store.get(&Key::new(LEASE, scope.as_str())).await.unwrap().unwrap();
    let freed = before + object.expires_in.unwrap();
    let believed = lease.valid_until();
    assert!(believed <= freed, "believed for {:?} longer than it is granted", believed - freed);
    lease.release().await.unwrap();
}
