//! What a behaviour gets: the store, kinds that nobody else uses, and time.
//!
//! The store may be a user's, with other data and other writers in it. So a behaviour only ever
//! writes kinds that it drew here, and everything of those kinds is deleted when it ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::Key;
use tenure::clock::{Clock, SystemClock};
use tenure::lease::{
    Coordinator, HAND_OVER, LEASE, Namespace, ORPHAN, READERS, REVOKED, SLOTS, Scope, WAITER,
};
use tenure::random::{SystemRandom, nonce};
use tenure::store::faulty::{FaultPlan, Faulty};
use tenure::store::{Capabilities, Commit, Expect, ExpiryClock, Put, Query, Reach, Store};
use tokio::time::timeout;

use crate::disguise::disguise;
use crate::{Failure, SharedTable, Subject, WorkerCommand};

/// How long a behaviour waits for something that is bound to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A behaviour's surroundings; clones share them.
#[derive(Clone)]
pub(crate) struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    subject: Subject,
    table: Option<SharedTable>,
    store: Store,
    /// The same as it is, where it keeps leases only and behaviours see it in disguise.
    undisguised: Store,
    nonce: String,
    /// Lives are this many times as long as they would be on a machine that keeps up.
    stretch: u32,
    kinds: Mutex<BTreeSet<String>>,
    adopted: Mutex<BTreeSet<Key>>,
    opened: Mutex<Vec<Store>>,
    namespaces: Mutex<BTreeSet<String>>,
}

impl Context {
    pub(crate) async fn open_new(subject: &Subject) -> Result<Self, Failure> {
        Self::open_with(subject, None, 1).await
    }

    /// The same with a table of the user's beside the store, and with longer lives.
    pub(crate) async fn open_with(
        subject: &Subject,
        table: Option<SharedTable>,
        stretch: u32,
    ) -> Result<Self, Failure> {
        let undisguised = open(subject).await?;
        let store = disguise(undisguised.clone());
        let mut nonce = nonce(&SystemRandom);
        nonce.truncate(12);
        let inner = Inner {
            subject: subject.clone(),
            table,
            store,
            undisguised,
            nonce,
            stretch,
            kinds: Mutex::default(),
            adopted: Mutex::default(),
            opened: Mutex::default(),
            namespaces: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The handle that this behaviour began with.
    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The same handle as the store's user sees it: one that keeps leases only says so.
    pub(crate) fn undisguised(&self) -> &Store {
        &self.inner.undisguised
    }

    pub(crate) fn caps(&self) -> &Capabilities {
        self.store().capabilities()
    }

    /// Another handle onto the same store; closed at the end.
    pub(crate) async fn open(&self) -> Result<Store, Failure> {
        let store = disguise(open(&self.inner.subject).await?);
        lock(&self.inner.opened).push(store.clone());
        Ok(store)
    }

    /// The same for a handle that the caller closes.
    pub(crate) async fn open_brief(&self) -> Result<Store, Failure> {
        Ok(disguise(open(&self.inner.subject).await?))
    }

    /// Closes such a handle, unless it is a clone of a store that others still use.
    pub(crate) async fn close_brief(&self, store: &Store) {
        if self.caps().reach != Reach::Process {
            let _ = timeout(PATIENCE, store.close()).await;
        }
    }

    /// Another handle and the first, in turn, so that races cross connections.
    pub(crate) async fn handles(&self, count: usize) -> Result<Vec<Store>, Failure> {
        let mut handles = vec![self.store().clone()];
        while handles.len() < count {
            handles.push(self.open().await?);
        }
        Ok(handles)
    }

    /// The command for a separate process. The behaviour asked for one in its needs.
    pub(crate) fn worker(&self) -> Result<&WorkerCommand, Failure> {
        self.inner.subject.worker.as_ref().ok_or_else(|| Failure::new("no worker was given"))
    }

    /// The user's table beside the store.
    pub(crate) fn table(&self) -> Result<SharedTable, Failure> {
        self.inner.table.clone().ok_or_else(|| Failure::new("no table of the user's was given"))
    }

    /// A kind that nobody else uses.
    pub(crate) fn kind(&self, suffix: &str) -> String {
        let kind = format!("check-{}-{suffix}", self.inner.nonce);
        lock(&self.inner.kinds).insert(kind.clone());
        kind
    }

    /// A key of a kind that nobody else uses.
    pub(crate) fn key(&self, id: &str) -> Key {
        Key::new(self.kind("a"), id)
    }

    /// A key of another kind that nobody else uses.
    pub(crate) fn other_key(&self, id: &str) -> Key {
        Key::new(self.kind("b"), id)
    }

    /// A namespace of leases that nobody else uses.
    pub(crate) fn namespace(&self, name: &str) -> Result<Namespace, Failure> {
        let own = format!("check-{}", self.inner.nonce);
        lock(&self.inner.namespaces).insert(own.clone());
        Ok(Namespace::new([own.as_str(), name])?)
    }

    /// A scope that nobody else uses.
    pub(crate) fn scope(&self, key: &str) -> Result<Scope, Failure> {
        Ok(Scope::new(&self.namespace("lease")?, key)?)
    }

    /// A coordinator of this name, with connections or file handles of its own.
    pub(crate) async fn coordinator(&self, name: &str) -> Result<Coordinator, Failure> {
        Ok(Coordinator::builder(self.open().await?).name(name).start()?)
    }

    /// A coordinator whose store fails as planned.
    pub(crate) async fn faulty(
        &self,
        name: &str,
    ) -> Result<(Coordinator, Arc<FaultPlan>), Failure> {
        let plan = FaultPlan::scripted();
        let backend = Arc::clone(self.open().await?.backend());
        let faulty = Faulty::new(backend, Arc::clone(&plan), SystemClock::shared());
        Ok((Coordinator::builder(Store::new(faulty)).name(name).start()?, plan))
    }

    /// A life for leases that are renewed: short, but long enough for a busy machine.
    pub(crate) fn life(&self) -> Duration {
        self.ttl_of(Duration::from_millis(900) * self.inner.stretch)
    }

    /// A key whose kind could not be drawn here; it is deleted at the end all the same.
    pub(crate) fn adopt(&self, kind: &str) -> Key {
        let key = Key::new(kind, &self.inner.nonce);
        lock(&self.inner.adopted).insert(key.clone());
        key
    }

    /// A short life that this store can grant exactly.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl_of(Duration::from_millis(400) * self.inner.stretch)
    }

    /// A life of about this length that this store can grant exactly.
    pub(crate) fn ttl_of(&self, wish: Duration) -> Duration {
        self.caps().ttl.map_or(wish, |ttl| ttl.grant(wish))
    }

    /// How much later than computed an expiry may be seen: the store's clock counts in steps, and
    /// where each observer keeps its own, it starts counting at its first sight.
    pub(crate) fn slack(&self) -> Duration {
        let mut ttl = self.caps().ttl.map_or(Duration::ZERO, |ttl| ttl.granularity);
        let mut observer = Duration::ZERO;
        match self.caps().expiry_clock {
            ExpiryClock::Observer => observer = self.ttl(),
            ExpiryClock::Server => ttl *= self.inner.stretch,
            _ => {}
        }
        match self.is_manual() {
            // A clock that moves only when told leaves room for the millisecond that has begun.
            true => observer + Duration::from_millis(1),
            false => ttl + observer + Duration::from_millis(10),
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.inner.subject.clock.is_some()
    }

    /// Time on the clock that the store's expiry follows.
    pub(crate) fn uptime(&self) -> Duration {
        self.inner.subject.clock.as_ref().map_or_else(|| SystemClock.uptime(), Clock::uptime)
    }

    /// Lets so much time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        match &self.inner.subject.clock {
            Some(clock) => clock.advance(time),
            None => tokio::time::sleep(time).await,
        }
    }

    /// Lets time pass until this instant of [`Context::uptime`].
    pub(crate) async fn pass_until(&self, instant: Duration) {
        // A sleep may end early by the clock's grain.
        while let Some(left) = instant.checked_sub(self.uptime()).filter(|left| !left.is_zero()) {
            self.pass(left).await;
        }
    }

    /// Lets this object's life pass, which ends then. A server that ends lives by a timer of its own may
    /// be too busy to keep to it; that is told as late.
    pub(crate) async fn outlive(&self, key: &Key, ends: Duration) -> Result<(), Failure> {
        self.pass_until(ends + self.slack()).await;
        if self.caps().expiry_clock != ExpiryClock::Server {
            return Ok(());
        }
        let left = self.store().get(key).await?;
        ensure_in_time!(left.is_none(), "still there after its life: {left:?}");
        Ok(())
    }

    /// Steps the wall clock and nothing else, where that is possible.
    pub(crate) fn step_wall(&self, by_ms: i64) {
        if let Some(clock) = &self.inner.subject.clock {
            clock.step_wall(by_ms);
        }
    }

    /// Writes an object, whatever was there.
    pub(crate) async fn put(&self, key: &Key, value: &str) -> Result<u64, Failure> {
        let done = self.store().commit(Put::new(key.clone(), value.to_owned())).await?;
        done.first_put().map(|put| put.revision).ok_or_else(|| "a put had no result".into())
    }

    /// Deletes everything of the kinds that were drawn. Best effort: what remains is named by its
    /// kind, and a log line tells.
    pub(crate) async fn tidy(&self) {
        let kinds = lock(&self.inner.kinds).clone();
        let adopted = lock(&self.inner.adopted).clone();
        for key in adopted {
            let _ = timeout(PATIENCE, self.store().delete(&key)).await;
        }
        let namespaces = lock(&self.inner.namespaces).clone();
        for kind in [LEASE, WAITER, ORPHAN, REVOKED, SLOTS, READERS, HAND_OVER] {
            for namespace in &namespaces {
                let query = Query::new(kind).prefix(namespace);
                let _ = timeout(PATIENCE, delete_all(self.store(), query)).await;
            }
        }
        for kind in kinds {
            match timeout(PATIENCE, delete_kind(self.store(), &kind)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%kind, %error, "objects of a check were left"),
                Err(_) => tracing::warn!(%kind, "objects of a check were left: no time"),
            }
        }
    }

    /// Closes the handles. Clones of a store in memory share one backend, which others still use.
    pub(crate) async fn close(&self) {
        if self.caps().reach == Reach::Process {
            return;
        }
        let opened = std::mem::take(&mut *lock(&self.inner.opened));
        for store in opened.iter().chain([self.store()]) {
            let _ = timeout(PATIENCE, store.close()).await;
        }
    }
}

async fn open(subject: &Subject) -> Result<Store, Failure> {
    let store = timeout(PATIENCE * 2, (subject.open)()).await;
    let store = store.map_err(|_| format!("opening took more than {:?}", PATIENCE * 2))??;
    // Pauses of the retry helper are real even where the store's clock stands still.
    Ok(store.with_clock(SystemClock::shared(), SystemRandom::shared()))
}

pub(crate) async fn delete_kind(store: &Store, kind: &str) -> tenure::Result<()> {
    delete_all(store, Query::new(kind)).await
}

async fn delete_all(store: &Store, query: Query) -> tenure::Result<()> {
    let caps = store.capabilities();
    let at_once =
        if caps.multi_object_commits { caps.limits.commit_operations.min(100) } else { 1 };
    let objects = store.list_all(&query.limit(caps.limits.page_objects.min(100))).await?;
    for chunk in objects.chunks(at_once) {
        let commit = chunk
            .iter()
            .fold(Commit::new(), |commit, object| commit.delete(object.key.clone(), Expect::Any));
        store.commit(commit).await?;
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
