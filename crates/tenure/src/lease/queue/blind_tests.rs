//! Waiters whose store tells them nothing: it cannot be watched, or its handle was closed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::clock::ManualClock;
use crate::lease::{Coordinator, Lease, Scope, Terms};
use crate::random::SystemRandom;
use crate::store::memory::MemoryStore;
use crate::store::{
    Capabilities, Commit, Committed, Page, Query, Store, Touch, Touched, Watch, WatchRequest,
};
use crate::{Error, Key, Object, Result};

const SECOND: Duration = Duration::from_secs(1);
/// Whatever is bound to happen is waited for this long.
const BOUND: Duration = Duration::from_secs(20);

/// Everything but watches, from when it is told so.
struct Blind {
    inner: Arc<dyn Backend>,
    blind: watch::Receiver<bool>,
}

#[async_trait]
impl Backend for Blind {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.inner.list(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.inner.commit(commit).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.inner.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        if *self.blind.borrow() {
            return Err(Error::unavailable("memory", "there are too many watches"));
        }
        let watch = self.inner.watch(request).await?;
        let mut blind = self.blind.clone();
        let blinded = async move {
            let _ = blind.wait_for(|blind| *blind).await;
        };
        Ok(Watch::new(watch.start(), watch.take_until(blinded.boxed()).boxed()))
    }
}

struct Scene {
    holder: Coordinator,
    waiter: Coordinator,
    clock: ManualClock,
    blind: watch::Sender<bool>,
    scope: Scope,
}

impl Scene {
    fn new(scope: &str) -> Self {
        let open = MemoryStore::new().into_store();
        let (blind, told) = watch::channel(false);
        let clock = ManualClock::new();
        let store = Store::new(Blind { inner: Arc::clone(open.backend()), blind: told })
            .with_clock(Arc::new(clock.clone()), SystemRandom::shared());
        let holder = Coordinator::new(open).unwrap();
        let waiter = Coordinator::new(store).unwrap();
        Self { holder, waiter, clock, blind, scope: scope.parse().unwrap() }
    }

    async fn held(&self) -> Lease {
        let terms = Terms::new().ttl(60 * SECOND);
        self.holder.acquire(&self.scope, &terms).await.unwrap()
    }

    fn waits(&self) -> JoinHandle<Result<Lease>> {
        let (waiter, scope) = (self.waiter.clone(), self.scope.clone());
        tokio::spawn(async move { waiter.acquire(&scope, &Terms::new().wait_forever()).await })
    }

    async fn queued(&self) {
        while self.holder.status(&self.scope).await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    /// Gets it within two minutes of its own clock.
    async fn gets_it(&self, waits: JoinHandle<Result<Lease>>) {
        for _ in 0..1_200 {
            if waits.is_finished() {
                break;
            }
            self.clock.advance(SECOND / 10);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let got = tokio::time::timeout(BOUND, waits).await.expect("nobody calls it");
        drop(got.unwrap().unwrap());
    }
}

#[tokio::test]
async fn whoever_waits_as_watches_end_for_good_looks_by_itself() {
    let scene = Scene::new("a/blinded");
    let lease = scene.held().await;
    let waits = scene.waits();
    scene.queued().await;
    scene.blind.send_replace(true);
    lease.release().await.unwrap();
    scene.gets_it(waits).await;
}

#[tokio::test]
async fn whoever_comes_where_nothing_can_be_watched_looks_by_itself() {
    let scene = Scene::new("a/blind");
    let lease = scene.held().await;
    scene.blind.send_replace(true);
    let waits = scene.waits();
    while scene.waiter.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    lease.release().await.unwrap();
    scene.gets_it(waits).await;
}

#[tokio::test]
async fn a_store_that_was_closed_is_waited_for_by_nobody() {
    let scene = Scene::new("a/closed");
    let lease = scene.held().await;
    let waits = scene.waits();
    scene.queued().await;
    scene.waiter.store().close().await;
    let told = tokio::time::timeout(BOUND, waits).await.expect("it waits for ever").unwrap();
    let told = told.map(drop).unwrap_err();
    assert!(told.to_string().contains("was closed"), "{told}");
    // Whoever comes later is told as well.
    let told = tokio::time::timeout(BOUND, scene.waits()).await.expect("it waits for ever");
    assert!(told.unwrap().is_err());
    lease.release().await.unwrap();
}
