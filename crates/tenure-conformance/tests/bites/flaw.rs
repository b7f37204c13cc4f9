//! Stores that are wrong in one way each, the way real ones go wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tenure::backend::{Backend, Progress};
use tenure::store::memory::MemoryStore;
use tenure::store::{
    Batch, Capabilities, Commit, Committed, Event, Expect, Page, Put, Query, Touch, Touched, Watch,
    WatchRequest, Write, WriteResult, Written,
};
use tenure::{Error, Key, Object, Result};

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Conditions are not looked at: the last writer always wins.
    IgnoresConditions,
    /// Conditions are judged a moment before the writes are applied.
    ChecksThenActs,
    /// A fenced commit applies whatever the token.
    IgnoresTokens,
    /// A hand-over keeps the old token.
    KeepsTheToken,
    /// The last condition that fails is told, not the first.
    TellsTheLastCondition,
    /// A commit's writes are applied one by one.
    AppliesOneByOne,
    /// Now and then a commit is acknowledged and forgotten.
    ForgetsAcknowledged,
    /// Writing the same again counts as a change.
    CountsEqualPuts,
    /// A name that is taken is silently left out.
    DropsTakenNames,
    /// Reads come from a copy that is refreshed only now and then.
    ReadsStale,
    /// Every page but the last misses its last object.
    ListSkips,
    /// Every page repeats the last object of the one before.
    ListRepeats,
    /// Ids are sorted as people would.
    ListSortsByLetter,
    /// Pages carry the revision of a moment later.
    PageRevisionAhead,
    /// Every 20th batch is not told.
    WatchDrops,
    /// Every 20th batch is told twice.
    WatchRepeats,
    /// A commit's events come in batches of one.
    WatchSplits,
    /// Deletes are not told.
    WatchHidesDeletes,
    /// Prefixes are not looked at.
    WatchIgnoresPrefix,
    /// A watch from the past starts now.
    WatchStartsNow,
    /// It says that it has told what it has not.
    WatchClaimsTooMuch,
    /// Objects live twice as long as granted.
    LivesTooLong,
    /// Objects live half as long as granted.
    LivesTooShort,
    /// Times to live are not kept.
    IgnoresTtl,
    /// A touch draws a revision though the store says it does not.
    TouchBumps,
    /// A touch does nothing and says that it did.
    TouchLies,
    /// Two of three touches that should succeed are left out, and said to be done.
    TouchForgets,
    /// Now and then a read shows what has expired.
    RemembersTheDead,
    /// A touch does not compare the revision.
    TouchIgnoresRevision,
    /// A touch takes longer than a lease of a second can wait for. Not wrong, but slow.
    TouchDawdles,
    /// No touch ever succeeds.
    TouchFails,
    /// A put merges labels into the old ones.
    MergesLabels,
    /// A refusal tells the numbers of some other time.
    ConflictLies,
}

pub(crate) struct Broken {
    inner: Arc<dyn Backend>,
    flaw: Flaw,
    calls: AtomicU64,
    /// Objects as they were last read.
    seen: Mutex<HashMap<Key, Object>>,
}

impl Broken {
    pub(crate) fn backend(flaw: Flaw) -> Arc<dyn Backend> {
        let inner = Arc::new(MemoryStore::new());
        Arc::new(Self { inner, flaw, calls: AtomicU64::new(0), seen: Mutex::default() })
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn every(&self, n: u64) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % n == n - 1
    }

    fn remember(&self, key: &Key, read: Option<Object>) -> Option<Object> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = &read {
            seen.insert(key.clone(), object.clone());
        }
        read.or_else(|| seen.get(key).filter(|_| self.every(2)).cloned())
    }

    fn forget(&self, commit: &Commit) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|key, _| commit.writes.iter().all(|write| write.key() != key));
    }

    async fn touch_some(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let mut answers = Vec::new();
        for touch in touches {
            let found = self.inner.get(&touch.key).await?;
            let good = found.is_some_and(|o| o.revision == touch.revision && o.ttl.is_some());
            if good && !self.every(3) {
                answers.push(Ok(Touched { revision: touch.revision, ttl: touch.ttl }));
            } else {
                answers.extend(self.inner.touch(vec![touch]).await?);
            }
        }
        Ok(answers)
    }

    async fn one_by_one(&self, commit: Commit) -> Result<Committed> {
        let mut all = Committed { revision: None, writes: Vec::new() };
        if !commit.checks.is_empty() {
            self.inner.commit(Commit { checks: commit.checks, ..Commit::new() }).await?;
        }
        for write in commit.writes {
            tokio::task::yield_now().await;
            let done = self.inner.commit(Commit { writes: vec![write], ..Commit::new() }).await?;
            all.revision = done.revision.or(all.revision);
            all.writes.extend(done.writes);
        }
        Ok(all)
    }

    async fn check_then_act(&self, mut commit: Commit) -> Result<Committed> {
        let mut checks = commit.checks.clone();
        for write in &commit.writes {
            let (key, expect) = (write.key().clone(), write.expect());
            checks.push(tenure::store::Check { key, expect });
        }
        self.inner.commit(Commit { checks, ..Commit::new() }).await?;
        tokio::task::yield_now().await;
        forget_conditions(&mut commit);
        self.inner.commit(commit).await
    }

    async fn adjust(&self, commit: &mut Commit) {
        match self.flaw {
            Flaw::IgnoresConditions => forget_conditions(commit),
            Flaw::TellsTheLastCondition => commit.checks.reverse(),
            Flaw::IgnoresTokens => {
                commit.checks.retain(|check| !matches!(check.expect, Expect::Token(_)));
            }
            _ => {}
        }
        for write in &mut commit.writes {
            let Write::Put(put) = write else { continue };
            match self.flaw {
                Flaw::KeepsTheToken => put.new_token = false,
                Flaw::CountsEqualPuts => put.new_token = true,
                Flaw::IgnoresTtl => put.ttl = None,
                Flaw::LivesTooLong => put.ttl = put.ttl.map(|ttl| ttl * 2),
                Flaw::LivesTooShort => put.ttl = put.ttl.map(|ttl| ttl / 2),
                Flaw::MergesLabels => {
                    if let Ok(Some(before)) = self.inner.get(&put.key).await {
                        for (key, value) in before.labels {
                            put.labels.entry(key).or_insert(value);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn answer(&self, mut done: Committed, wishes: &[Option<Duration>]) -> Committed {
        let lies = matches!(self.flaw, Flaw::LivesTooLong | Flaw::LivesTooShort | Flaw::IgnoresTtl);
        for (written, wish) in done.writes.iter_mut().zip(wishes) {
            if let (Written::Put(result) | Written::Unchanged(result), true) = (written, lies) {
                result.ttl = *wish;
            }
        }
        done
    }
}

fn forget_conditions(commit: &mut Commit) {
    commit.checks.clear();
    for write in &mut commit.writes {
        match write {
            Write::Put(put) => put.expect = Expect::Any,
            Write::Delete(delete) => delete.expect = Expect::Any,
        }
    }
}

fn pretend(commit: &Commit) -> Committed {
    let revision = 1 << 40;
    let result = WriteResult {
        version: 1,
        revision,
        created_revision: revision,
        token: revision,
        created_at_ms: 1,
        updated_at_ms: 1,
        ttl: None,
    };
    let writes = commit.writes.iter().map(|_| Written::Put(result)).collect();
    Committed { revision: Some(revision), writes }
}

#[async_trait]
impl Backend for Broken {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        if self.is(Flaw::ReadsStale) && self.every(3) {
            let before = self.inner.get(key).await?;
            // As a replica that lags by a moment.
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Ok(before.filter(|_| self.every(2)));
        }
        let read = self.inner.get(key).await?;
        if self.is(Flaw::RemembersTheDead) {
            return Ok(self.remember(key, read));
        }
        Ok(read)
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let mut page = self.inner.list(query).await?;
        match self.flaw {
            Flaw::ListSkips if page.next.is_some() => _ = page.objects.pop(),
            Flaw::ListRepeats => {
                if let Some(after) = &query.after
                    && let Some(again) = self.inner.get(&Key::new(&query.kind, after)).await?
                {
                    page.objects.insert(0, again);
                    page.objects.truncate(query.limit);
                }
            }
            Flaw::ListSortsByLetter => {
                page.objects.sort_by_key(|object| object.key.id.to_lowercase());
            }
            Flaw::PageRevisionAhead => {
                tokio::task::yield_now().await;
                page.revision = self.inner.list(query).await?.revision + 1;
            }
            _ => {}
        }
        Ok(page)
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed> {
        let wishes: Vec<_> = commit
            .writes
            .iter()
            .map(|write| if let Write::Put(put) = write { put.ttl } else { None })
            .collect();
        // What is written anew or deleted is not among the dead.
        self.forget(&commit);
        self.adjust(&mut commit).await;
        match self.flaw {
            Flaw::ForgetsAcknowledged if !commit.writes.is_empty() && self.every(17) => {
                return Ok(pretend(&commit));
            }
            Flaw::AppliesOneByOne => return self.one_by_one(commit).await,
            Flaw::ChecksThenActs => return self.check_then_act(commit).await,
            Flaw::DropsTakenNames => {
                for write in &mut commit.writes {
                    let Write::Put(Put { key, name, .. }) = write else { continue };
                    let Some(wanted) = name.clone() else { continue };
                    let query = Query::new(&key.kind).name(wanted);
                    let holders = self.inner.list(&query).await?.objects;
                    if holders.iter().any(|holder| holder.key != *key) {
                        *name = None;
                    }
                }
            }
            _ => {}
        }
        match self.inner.commit(commit).await {
            Err(Error::Conflict { key, expected, mut current }) if self.is(Flaw::ConflictLies) => {
                current.version += 1;
                Err(Error::Conflict { key, expected, current })
            }
            done => done.map(|done| self.answer(done, &wishes)),
        }
    }

    async fn touch(&self, mut touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        match self.flaw {
            Flaw::TouchLies => {
                let yes = |t: Touch| Ok(Touched { revision: t.revision, ttl: t.ttl });
                return Ok(touches.into_iter().map(yes).collect());
            }
            Flaw::TouchForgets => return self.touch_some(touches).await,
            Flaw::TouchDawdles => tokio::time::sleep(Duration::from_millis(1_200)).await,
            Flaw::TouchFails => return Err(Error::unavailable("memory", "never again")),
            Flaw::TouchIgnoresRevision => {
                for touch in &mut touches {
                    if let Some(object) = self.inner.get(&touch.key).await? {
                        touch.revision = object.revision;
                    }
                }
            }
            Flaw::TouchBumps => {
                let mut answers = self.inner.touch(touches.clone()).await?;
                for (touch, answer) in touches.iter().zip(&mut answers) {
                    let Ok(touched) = answer else { continue };
                    if let Some(object) = self.inner.get(&touch.key).await? {
                        let done = self.inner.commit(object.to_put().new_token().into()).await?;
                        touched.revision = done.revision.unwrap_or(touched.revision);
                    }
                }
                return Ok(answers);
            }
            _ => {}
        }
        self.inner.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        let mut request = request.clone();
        match self.flaw {
            Flaw::WatchIgnoresPrefix => request.prefix = String::new(),
            Flaw::WatchStartsNow => request.after = None,
            _ => {}
        }
        let flaw = self.flaw;
        let watch = self.inner.watch(&request).await?;
        let start = watch.start();
        let progress = Progress::new(start);
        let claimed = progress.clone();
        let mut count = 0u64;
        let told = watch.flat_map(move |batch| {
            count += 1;
            if let (Flaw::WatchClaimsTooMuch, Ok(batch)) = (flaw, &batch) {
                claimed.reach(batch.revision + 3);
            }
            let batches = match batch {
                Ok(batch) => distort(flaw, count, &batch).into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            futures::stream::iter(batches)
        });
        Ok(Watch::with_progress(start, progress, told.boxed()))
    }
}

fn distort(flaw: Flaw, count: u64, batch: &Arc<Batch>) -> Vec<Arc<Batch>> {
    let of = |events| Arc::new(Batch { revision: batch.revision, events });
    match flaw {
        Flaw::WatchDrops if count.is_multiple_of(20) => vec![],
        Flaw::WatchRepeats if count.is_multiple_of(20) => vec![Arc::clone(batch); 2],
        Flaw::WatchSplits => batch.events.iter().map(|event| of(vec![event.clone()])).collect(),
        Flaw::WatchHidesDeletes => {
            let puts: Vec<_> =
                batch.events.iter().filter(|e| matches!(e, Event::Put(_))).cloned().collect();
            if puts.is_empty() { vec![] } else { vec![of(puts)] }
        }
        _ => vec![Arc::clone(batch)],
    }
}
