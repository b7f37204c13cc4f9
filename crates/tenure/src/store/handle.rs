//! The handle that callers hold.

use std::sync::Arc;
use std::time::Duration;

use super::measured::{Measured, StoreMetrics};
use super::{
    Attachment, Capabilities, Capability, Commit, Committed, Page, Put, Query, Touch, Touched,
    Watch, WatchRequest, Write,
};
use crate::backend::{Backend, Closing, bounded};
use crate::clock::{SharedClock, SystemClock};
use crate::random::{SharedRandom, SystemRandom};
use crate::{Error, Key, Object, Result};

/// A store to program against: any backend, with one set of rules around it.
///
/// Cheap to clone; clones share the backend. Every call is bounded by [`Store::with_timeout`]: a
/// read that takes longer is [`Error::Unavailable`], a commit or touch is [`Error::Unknown`],
/// because it may still be applied.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
    pub(super) metrics: StoreMetrics,
    pub(super) clock: SharedClock,
    pub(super) random: SharedRandom,
    timeout: Duration,
    closing: Closing,
}

impl Store {
    /// Puts the rules around a backend, with the machine's clock and randomness.
    pub fn new(backend: impl Backend) -> Self {
        Self::from_arc(Arc::new(backend))
    }

    /// The same for a backend that is shared already.
    pub fn from_arc(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            metrics: StoreMetrics::default(),
            clock: SystemClock::shared(),
            random: SystemRandom::shared(),
            timeout: Duration::from_secs(10),
            closing: Closing::new(),
        }
    }

    /// How long any single call may take.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// No single call may take longer than this, whatever was set before.
    #[must_use]
    pub fn with_timeout_at_most(self, timeout: Duration) -> Self {
        let timeout = timeout.min(self.timeout);
        self.with_timeout(timeout)
    }

    /// How long any single call takes at most.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes time and randomness from elsewhere, for simulations.
    #[must_use]
    pub fn with_clock(mut self, clock: SharedClock, random: SharedRandom) -> Self {
        (self.clock, self.random) = (clock, random);
        self
    }

    /// Counts and times every call in these metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: StoreMetrics) -> Self {
        let measured = Measured::new(self.backend, metrics.clone(), Arc::clone(&self.clock));
        self.backend = Arc::new(measured);
        self.metrics = metrics;
        self
    }

    /// A handle with the same habits on another backend, which is part of this one's or stands before
    /// it. Each is closed by itself.
    pub(super) fn with_backend(mut self, backend: Arc<dyn Backend>) -> Self {
        (self.backend, self.closing) = (backend, Closing::new());
        self
    }

    /// The backend behind the rules, for wrappers.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The counters of this handle.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// The time this handle goes by.
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// The randomness this handle draws from.
    pub fn random(&self) -> &SharedRandom {
        &self.random
    }

    /// What the backend promises.
    pub fn capabilities(&self) -> &Capabilities {
        self.backend.capabilities()
    }

    /// The object, if it is there and has not expired.
    pub async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.require_open()?;
        self.capabilities().limits.check_key(key)?;
        self.require_known(&key.kind)?;
        self.bounded_read("get", self.backend.get(key)).await
    }

    /// The object of a kind with this name.
    pub async fn get_by_name(&self, kind: &str, name: &str) -> Result<Option<Object>> {
        self.first(Query::new(kind).name(name)).await
    }

    /// The first object that a query selects. A page may be empty and have another one behind it.
    pub(crate) async fn first(&self, query: Query) -> Result<Option<Object>> {
        let mut query = query.limit(1);
        loop {
            let page = self.list(&query).await?;
            if let Some(first) = page.objects.into_iter().next() {
                return Ok(Some(first));
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// One page of objects in bytewise order of id.
    pub async fn list(&self, query: &Query) -> Result<Page> {
        self.require_open()?;
        let caps = self.capabilities();
        caps.limits.check_query(query)?;
        self.require_known(&query.kind)?;
        self.require(query.name.is_none() || caps.names, Capability::Names)?;
        self.require(query.selector.is_empty() || caps.labels, Capability::Labels)?;
        self.bounded_read("list", self.backend.list(query)).await
    }

    /// Every object that a query selects, page by page. Mind the memory.
    pub async fn list_all(&self, query: &Query) -> Result<Vec<Object>> {
        let mut query = query.clone();
        let mut objects = Vec::new();
        loop {
            let page = self.list(&query).await?;
            objects.extend(page.objects);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(objects),
            }
        }
    }

    /// Applies all writes if all conditions hold, at one instant, else nothing.
    ///
    /// # Errors
    /// The first condition that fails, checks before writes. [`Error::Unknown`] is the only error
    /// after which something may have been applied: read again before you retry.
    pub async fn commit(&self, commit: impl Into<Commit>) -> Result<Committed> {
        self.require_open()?;
        let mut commit = commit.into();
        self.admit(&commit)?;
        self.grant(&mut commit);
        let call = self.backend.commit(commit);
        let result = match self.backend.commit_within() {
            Some(within) if within <= self.timeout => call.await,
            _ => {
                bounded(self.timeout, call).await.unwrap_or_else(|| Err(self.unanswered("commit")))
            }
        };
        result.inspect_err(|error| self.metrics.refused(error))
    }

    /// Starts the life of each object anew, if its revision is still the one given.
    pub async fn touch(&self, mut touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.require_open()?;
        self.capabilities().limits.check_touches(&touches)?;
        let ttl = self.capabilities().ttl;
        self.require(ttl.is_some(), Capability::Ttl)?;
        for touch in &touches {
            self.require_kept(&touch.key.kind)?;
        }
        for touch in &mut touches {
            touch.ttl = ttl.map_or(touch.ttl, |ttl| ttl.grant(touch.ttl));
        }
        let call = bounded(self.timeout, self.backend.touch(touches));
        call.await.unwrap_or_else(|| Err(self.unanswered("touch")))
    }

    /// Everything that happens after the given revision, in order, nothing missed, nothing twice.
    pub async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.require_open()?;
        self.capabilities().limits.check_watch(request)?;
        let history = self.capabilities().history.is_some();
        self.require(request.after.is_none() || history, Capability::History)?;
        request.kind.as_deref().map_or(Ok(()), |kind| self.require_known(kind))?;
        let watch = self.bounded_read("watch", self.backend.watch(request)).await?;
        Ok(self.closing.ends(watch, self.capabilities().backend))
    }

    /// Finishes what was accepted and stops the backend's background work. From then on every call of
    /// this handle and of its clones is [`Error::Unavailable`], and their watches end with it. Other
    /// handles on what is stored go on.
    pub async fn close(&self) {
        self.closing.close();
        self.backend.close().await;
    }

    /// Resolves when this handle is closed, with what every call is told from then on.
    pub(crate) async fn closed(&self) -> Error {
        self.closing.closed(self.capabilities().backend).await
    }

    fn require_open(&self) -> Result<()> {
        self.closing.check(self.capabilities().backend)
    }

    fn admit(&self, commit: &Commit) -> Result<()> {
        let caps = self.capabilities();
        caps.limits.check_commit(commit)?;
        if commit.checks.len() + commit.writes.len() > 1 {
            self.require(caps.multi_object_commits, Capability::MultiObjectCommits)?;
        }
        for check in &commit.checks {
            self.require_known(&check.key.kind)?;
        }
        for write in &commit.writes {
            self.require_kept(&write.key().kind)?;
        }
        let ours = |attachment: &Attachment| attachment.backend() == caps.backend;
        self.require(commit.attachments.iter().all(ours), Capability::UserSql)?;
        for write in &commit.writes {
            if let Write::Put(put) = write {
                self.require(put.name.is_none() || caps.names, Capability::Names)?;
                self.require(put.ttl.is_none() || caps.ttl.is_some(), Capability::Ttl)?;
            }
        }
        Ok(())
    }

    /// Lives are granted in the backend's steps, so that what is stored is what was promised.
    fn grant(&self, commit: &mut Commit) {
        let Some(ttl) = self.capabilities().ttl else { return };
        for write in &mut commit.writes {
            if let Write::Put(Put { ttl: Some(wish), .. }) = write {
                *wish = ttl.grant(*wish);
            }
        }
    }

    fn require_known(&self, kind: &str) -> Result<()> {
        self.require(self.capabilities().knows(kind), Capability::Objects)
    }

    fn require_kept(&self, kind: &str) -> Result<()> {
        self.require(self.capabilities().keeps(kind), Capability::Objects)
    }

    fn require(&self, met: bool, capability: Capability) -> Result<()> {
        if met {
            return Ok(());
        }
        Err(Error::Unsupported { capability, backend: self.capabilities().backend })
    }

    async fn bounded_read<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match bounded(self.timeout, call).await {
            Some(result) => result,
            None => Err(Error::unavailable(
                self.capabilities().backend,
                format!("{what} got no answer within {:?}", self.timeout),
            )),
        }
    }

    fn unanswered(&self, what: &str) -> Error {
        Error::unknown(
            self.capabilities().backend,
            format!("{what} got no answer within {:?}", self.timeout),
        )
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("backend", &self.capabilities().backend)
            .finish_non_exhaustive()
    }
}
