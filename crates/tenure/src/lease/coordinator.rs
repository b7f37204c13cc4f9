//! The coordinator: what a program holds leases through.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::acquire;
use crate::lease::acquire::claim::{Claim as _, Whole, read};
use crate::lease::end::reap;
use crate::lease::end::release;
use crate::lease::hold::renew;
use crate::lease::inner::Inner;
use crate::lease::record::{LEASE, LeaseInfo, LeaseRecord, WaiterInfo, encode, lease_key};
use crate::lease::runtime::{OwnThread, Spawn};
use crate::lease::{
    Lease, LeaseMetrics, Metadata, Namespace, Options, Owner, ReapHook, Scope, Terms,
};
use crate::store::{Put, Query, Store, WriteResult};
use crate::{Error, Result};

/// Acquires, renews and releases leases on one store, as one owner. Cheap to clone.
///
/// Its background work, renewals above all, runs on a thread of its own until the last clone and the
/// last lease are gone.
#[derive(Clone)]
pub struct Coordinator {
    pub(crate) inner: Arc<Inner>,
}

/// Settings of a coordinator that is about to start.
pub struct Builder {
    store: Store,
    name: Option<String>,
    owner: Option<Owner>,
    options: Options,
    metrics: LeaseMetrics,
    home: Option<Arc<dyn Spawn>>,
}

impl Builder {
    /// The name of this replica; `HOSTNAME` or a random one unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Exactly this owner, nonce included.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Times and habits.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Counts in these metrics.
    #[must_use]
    pub fn metrics(mut self, metrics: LeaseMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Runs background work here instead of on a thread of its own: for simulations.
    #[must_use]
    pub fn spawn_on(mut self, home: Arc<dyn Spawn>) -> Self {
        self.home = Some(home);
        self
    }

    /// Starts it.
    pub fn start(self) -> Result<Coordinator> {
        let owner = match self.owner {
            Some(owner) => owner,
            None => Owner::detect(self.name.as_deref(), &**self.store.random())?,
        };
        let home = match self.home {
            Some(home) => home,
            None => OwnThread::start()?,
        };
        let inner = Inner::start(self.store, owner, self.options, self.metrics, home);
        Ok(Coordinator { inner })
    }
}

/// Who holds a scope, and who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The holder, if there is one.
    pub holder: Option<LeaseInfo>,
    /// The queue, first come first; empty where the store keeps none.
    pub waiters: Vec<WaiterInfo>,
}

impl Coordinator {
    /// A coordinator with the defaults, named after this host.
    pub fn new(store: Store) -> Result<Self> {
        Self::builder(store).start()
    }

    /// A coordinator to be set up.
    pub fn builder(store: Store) -> Builder {
        Builder {
            store,
            name: None,
            owner: None,
            options: Options::default(),
            metrics: LeaseMetrics::default(),
            home: None,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Who this is.
    pub fn owner(&self) -> &Owner {
        &self.inner.owner
    }

    /// The store underneath.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Its settings.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Its counters.
    pub fn metrics(&self) -> &LeaseMetrics {
        &self.inner.metrics
    }

    /// Acquires a scope.
    ///
    /// # Errors
    /// [`Error::Held`] if somebody else has it when the wait is over; that also goes for this very
    /// coordinator, a lease is not re-entrant. Dropping the future gives up, and lets go of what may
    /// have been acquired.
    pub async fn acquire(&self, scope: &Scope, terms: &Terms) -> Result<Lease> {
        let whole = Whole::new(scope);
        let held = acquire::acquire(&self.inner, &whole, terms).await?;
        let held = held
            .into_iter()
            .next()
            .ok_or_else(|| Error::unavailable(self.inner.backend(), "the store granted nothing"))?;
        Ok(Lease::new(&self.inner, held, whole.queue()))
    }

    /// Renews all of these now, in as few round trips as the store allows. One answer for each.
    pub async fn heartbeat(&self, leases: &[&Lease]) -> Vec<Result<()>> {
        let held = leases.iter().map(|lease| Arc::clone(lease.held())).collect();
        renew::renew_now(&self.inner, held).await
    }

    /// Keeps a lease alive on behalf of an owner that is elsewhere: acquires it, or starts its life
    /// anew if that owner has it. For liveness that an owner reports to any replica.
    ///
    /// # Errors
    /// [`Error::Held`] if another owner has it.
    pub async fn keep_alive(
        &self,
        scope: &Scope,
        owner: &Owner,
        ttl: Duration,
        metadata: Metadata,
    ) -> Result<WriteResult> {
        crate::lease::remote::keep_alive::keep_alive(&self.inner, scope, owner, ttl, metadata).await
    }

    /// Ends somebody's tenure, with a reason for that holder to read. Whether there was one.
    ///
    /// The holder learns of it with its next renewal; its fenced commits fail at once.
    pub async fn revoke(&self, scope: &Scope, reason: &str) -> Result<bool> {
        release::revoke(&self.inner, scope, None, reason).await
    }

    /// The same, if it is the tenure under this token. A later holder is left alone.
    ///
    /// # Errors
    /// [`Error::Lost`], with the token of the present holder.
    pub async fn revoke_token(&self, scope: &Scope, token: u64, reason: &str) -> Result<bool> {
        release::revoke(&self.inner, scope, Some(token), reason).await
    }

    /// Who holds a scope.
    pub async fn holder(&self, scope: &Scope) -> Result<Option<LeaseInfo>> {
        read(&self.inner, &lease_key(scope)).await
    }

    /// Who holds a scope, and who waits for it since when.
    pub async fn status(&self, scope: &Scope) -> Result<Status> {
        let holder = self.holder(scope).await?;
        Ok(Status { holder, waiters: self.waiters(scope.as_str()).await? })
    }

    /// Every lease held in a namespace, in order of its id; also in those below it if asked.
    pub async fn list(&self, namespace: &Namespace, children: bool) -> Result<Vec<LeaseInfo>> {
        let mut leases = Vec::new();
        for prefix in prefixes(namespace, children) {
            for object in self.inner.store.list_all(&Query::new(LEASE).prefix(prefix)).await? {
                leases.extend(LeaseInfo::listed(&object, self.inner.backend()));
            }
        }
        Ok(leases)
    }

    /// Every lease held, in order of its id.
    pub async fn list_all(&self) -> Result<Vec<LeaseInfo>> {
        let objects = self.inner.store.list_all(&Query::new(LEASE)).await?;
        let backend = self.inner.backend();
        Ok(objects.iter().filter_map(|object| LeaseInfo::listed(object, backend)).collect())
    }

    /// Reaps what ended without a release in these namespaces, also below them if asked: runs the
    /// hook in the commit that tidies up, effectively once per lease, however many reap. Returns
    /// how many were reaped.
    ///
    /// # Errors
    /// A lease that cannot be reaped does not hold up the others, of whatever namespace: its error
    /// comes after they are done. A store that cannot be reached ends it at once.
    pub async fn reap(
        &self,
        namespaces: &[Namespace],
        children: bool,
        hook: &dyn ReapHook,
    ) -> Result<usize> {
        let (mut reaped, mut failed) = (0, None);
        for prefix in namespaces.iter().flat_map(|namespace| prefixes(namespace, children)) {
            match reap::reap(&self.inner, &prefix, hook).await {
                Ok(done) => reaped += done,
                Err(error) if reap::concerns_one(&error) => _ = failed.get_or_insert(error),
                Err(error) => return Err(error),
            }
        }
        failed.map_or(Ok(reaped), Err)
    }

    /// Resolves when everything that was dropped has been let go of: leases without a release, waits
    /// that were given up. A program that ends before finds its places in the queue and its leases kept
    /// until they expire.
    pub async fn settle(&self) {
        self.inner.cleaned_up().await;
    }

    /// How many callers are in the queue.
    pub fn waiting(&self) -> usize {
        self.inner.waiting()
    }

    /// How many leases are being renewed.
    pub fn held(&self) -> usize {
        self.inner.scheduled()
    }
}

/// What the ids of a namespace's scopes start with: its own, then those below it.
pub(crate) fn prefixes(namespace: &Namespace, children: bool) -> Vec<String> {
    let own = format!("{namespace}/");
    if children { vec![own, format!("{namespace}.")] } else { vec![own] }
}

/// The put of a lease on behalf of somebody.
pub(crate) fn lease_put(
    scope: &Scope,
    owner: &Owner,
    nonce: &str,
    acquired_at_ms: i64,
    metadata: Metadata,
    ttl: Duration,
) -> Put {
    let record = LeaseRecord {
        holder: owner.name().into(),
        start: owner.start().into(),
        nonce: nonce.into(),
        acquired_at_ms,
        metadata,
    };
    Put::new(lease_key(scope), encode(&record)).ttl(ttl)
}
