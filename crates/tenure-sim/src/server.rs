//! The store's side of the network: applies what arrives, tells the observer, and sends news to
//! whoever watches. Everything happens at one instant of true time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tenure::backend::Backend;
use tenure::lease::{LEASE, ORPHAN, SLOTS, WAITER, WaiterRecord};
use tenure::store::memory::MemoryStore;
use tenure::store::{
    Batch, Commit, Committed, Expect, Page, Put, Query, Touch, Touched, WatchRequest, Write,
};
use tenure::{Error, Key, Object, Result};
use tokio::sync::mpsc;

use crate::describe::{brief, describe};
use crate::invariants::line::Waiter;
use crate::invariants::{early, exclusive, gate};
use crate::observer::{Known, Observer};
use crate::process::Process;
use crate::truth::Change;

/// What a watcher is sent, and when: true time since the beginning of the run.
pub type News = (Duration, Result<Arc<Batch>>);

/// What holders count under the protection of their lease.
pub const COUNTER: &str = "counter";
/// What holders write under the protection of their lease without looking first.
pub const JOURNAL: &str = "journal";

/// What reapers write down, for each tenure that they tidy up after.
pub const TALLY: &str = "tally";

/// What a process asks of the store.
#[derive(Clone, Debug)]
pub enum Request {
    /// `get`
    Get(Key),
    /// `list`
    List(Query),
    /// `commit`
    Commit(Commit),
    /// `touch`
    Touch(Vec<Touch>),
}

/// What the store answers.
#[derive(Debug)]
pub enum Reply {
    /// To a `get`.
    Got(Option<Object>),
    /// To a `list`.
    Listed(Page),
    /// To a `commit`.
    Committed(Committed),
    /// To a `touch`.
    Touched(Vec<Result<Touched>>),
}

struct Watcher {
    owner: String,
    request: WatchRequest,
    news: mpsc::UnboundedSender<News>,
}

/// The store, with everything that happens in it observed.
pub struct Server {
    store: MemoryStore,
    /// Sees what is applied.
    pub observer: Arc<Observer>,
    watchers: Mutex<(u64, BTreeMap<u64, Watcher>)>,
}

impl Server {
    /// An empty store on true time, from which news flows.
    pub async fn start(observer: &Arc<Observer>) -> Result<Arc<Self>> {
        let store = MemoryStore::with_clock(Arc::new(observer.clock));
        let watchers = Mutex::default();
        let server = Arc::new(Self { store, observer: Arc::clone(observer), watchers });
        // One watch feeds everybody, in a fixed order: several would be woken in any order.
        let mut all = server.store.watch(&WatchRequest::default()).await?;
        let weak = Arc::downgrade(&server);
        tokio::spawn(async move {
            while let Some(Ok(batch)) = all.next().await {
                let Some(server) = weak.upgrade() else { return };
                server.tell(&batch);
            }
        });
        Ok(server)
    }

    /// The store itself, without faults.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn watchers(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Watcher>)> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, batch: &Arc<Batch>) {
        let now = self.observer.clock.now();
        self.observer.known().news_ms = self.observer.clock.now_ms();
        self.watchers().1.retain(|_, watcher| match watcher.request.filter(batch) {
            Some(batch) => watcher.news.send((now, Ok(batch))).is_ok(),
            None => !watcher.news.is_closed(),
        });
    }

    /// News for a process.
    pub fn watch(&self, owner: &str, request: &WatchRequest) -> mpsc::UnboundedReceiver<News> {
        let (news, receiver) = mpsc::unbounded_channel();
        let mut watchers = self.watchers();
        watchers.0 += 1;
        let id = watchers.0;
        let watcher = Watcher { owner: owner.to_owned(), request: request.clone(), news };
        watchers.1.insert(id, watcher);
        receiver
    }

    /// The connections of a process, or of all, break.
    pub fn break_watches(&self, owner: Option<&str>) {
        let now = self.observer.clock.now();
        self.watchers().1.retain(|_, watcher| {
            let breaks = owner.is_none_or(|owner| owner == watcher.owner);
            if breaks {
                let error = Error::unavailable("memory", "connection reset");
                let _ = watcher.news.send((now, Err(error)));
            }
            !breaks
        });
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        let page = self.store.list(&Query::new(LEASE).limit(1)).now_or_never();
        page.and_then(Result::ok).map_or(0, |page| page.revision)
    }

    fn get(&self, key: &Key) -> Option<Object> {
        self.store.get(key).now_or_never().and_then(Result::ok).flatten()
    }

    /// Applies what a process asked for.
    pub fn apply(&self, process: &Process, request: Request) -> Result<Reply> {
        // The memory store never waits.
        let pending = || Error::unavailable("memory", "it waits");
        match request {
            Request::Get(key) => {
                let got = self.store.get(&key).now_or_never().ok_or_else(pending)?;
                Ok(Reply::Got(got?))
            }
            Request::List(query) => {
                let page = self.store.list(&query).now_or_never().ok_or_else(pending)?;
                Ok(Reply::Listed(page?))
            }
            Request::Commit(commit) => {
                let now = self.observer.clock.now_ms();
                self.observer.known().truth.settle(now);
                let answer =
                    self.store.commit(commit.clone()).now_or_never().ok_or_else(pending)?;
                self.committed(process, &commit, &answer);
                answer.map(Reply::Committed)
            }
            Request::Touch(touches) => {
                let keys: Vec<Key> = touches.iter().map(|touch| touch.key.clone()).collect();
                let touched = self.store.touch(touches).now_or_never().ok_or_else(pending)??;
                self.touched(process, &keys, &touched);
                Ok(Reply::Touched(touched))
            }
        }
    }

    fn touched(&self, process: &Process, keys: &[Key], touched: &[Result<Touched>]) {
        let now = self.observer.clock.now_ms();
        let mut known = self.observer.known();
        known.truth.settle(now);
        for (key, touched) in keys.iter().zip(touched) {
            let how = touched.as_ref().map_or_else(|error| error.code(), |_| "prolonged");
            known.history.add(now, &process.name, &format!("touch {}: {how}", key.id));
            if let (Ok(_), Some(object)) = (touched, self.get(key)) {
                known.truth.prolong(now, &key.id, &object);
            }
        }
        drop(known);
        self.observer.step();
    }

    /// A commit was applied or refused: works out what that means, and checks it.
    fn committed(&self, process: &Process, commit: &Commit, answer: &Result<Committed>) {
        let now = self.observer.clock.now_ms();
        let owner = process.owner.to_string();
        let mut known = self.observer.known();
        let ticket = ticket(commit);
        let verdict = match answer {
            Ok(committed) => {
                known.history.add(now, &process.name, &describe(commit, committed));
                self.applied(&mut known, process, &owner, commit, now)
            }
            Err(error) => {
                let what = format!("{} refused: {error}", brief(commit));
                known.history.add(now, &process.name, &what);
                match (error, &ticket) {
                    (Error::AlreadyExists { key, .. }, Some((line, _)))
                        if key.kind == LEASE && key.id == *line && steady(&known, &owner, now) =>
                    {
                        known.lines.tried_in_vain(line, &owner, now)
                    }
                    _ => Ok(()),
                }
            }
        };
        drop(known);
        self.observer.judge(verdict);
        self.observer.step();
    }

    fn applied(
        &self,
        known: &mut Known,
        process: &Process,
        owner: &str,
        commit: &Commit,
        now: i64,
    ) -> crate::history::Verdict {
        if let Some((line, nonce)) = ticket(commit)
            && is_plain(&line)
            && commit.writes.iter().any(|write| is_put_of(write, LEASE))
        {
            let removed = removed(commit, &line);
            known.lines.served(&line, &nonce, &removed, now, |owner, since| {
                known.processes.get(owner).is_some_and(|process| {
                    let health = process.health(now);
                    let well = !process.is_dead() && !process.is_frozen();
                    well && !process.is_partitioned() && health.disturbed_until < since
                })
            })?;
        }
        for write in &commit.writes {
            let key = write.key();
            match (key.kind.as_str(), write) {
                (LEASE, _) => self.lease_changed(known, process, owner, commit, key, now)?,
                (SLOTS, Write::Put(put)) => {
                    if let Some(count) = count_of(put) {
                        known.slots.insert(key.id.clone(), count);
                    }
                    known.lines.freed(&key.id);
                }
                (WAITER, write) => self.waiter_changed(known, write, now),
                (COUNTER | JOURNAL, Write::Put(put)) => {
                    if let Ok(work) = serde_json::from_slice(&put.payload) {
                        let Known { written, truth, .. } = known;
                        let counted = key.kind == COUNTER;
                        written.applied(truth, owner, &key.to_string(), work, counted)?;
                    }
                }
                (TALLY, Write::Put(_)) => {
                    let (id, token) = key.id.rsplit_once('#').unwrap_or_default();
                    let token = token.parse().unwrap_or_default();
                    let Known { reaped, truth, .. } = known;
                    reaped.reaped(truth, owner, id, token)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What is left to reap of a lease that nobody holds, if anything is.
    pub fn orphans(&self) -> Option<String> {
        let page = self.store.list(&Query::new(ORPHAN)).now_or_never()?.ok()?;
        let ids = page.objects.into_iter().map(|object| object.key.id);
        let known = self.observer.known();
        let lease = |id: &str| id.rsplit_once('#').map(|(lease, _)| lease.to_owned());
        ids.into_iter()
            .find(|id| lease(id).is_none_or(|lease| known.truth.holder(&lease).is_none()))
    }

    fn lease_changed(
        &self,
        known: &mut Known,
        process: &Process,
        owner: &str,
        commit: &Commit,
        key: &Key,
        now: i64,
    ) -> crate::history::Verdict {
        let id = &key.id;
        let after = self.get(key);
        let before = known.truth.holder(id);
        let life = before.and_then(|token| known.truth.tenure(id, token));
        let left = life.map_or(0, |tenure| tenure.expires_ms - now);
        // Where one object is all that a commit takes, a revocation leaves no note.
        let revokes =
            commit.writes.len() == 1 && known.revokers.contains(&(owner.to_owned(), id.to_owned()));
        match known.truth.committed(now, owner, commit, id, after.as_ref(), revokes) {
            Some(Change::Began(token)) => {
                known.tokens.began(id, token)?;
                let slots = id.split_once("/slot-").and_then(|(group, _)| known.slots.get(group));
                exclusive::began(&known.truth, id, slots.copied())
            }
            Some(Change::Ended(token, end)) => {
                for line in lines_of(id) {
                    known.lines.freed(&line);
                }
                let running = known.loops.get(&(id.clone(), token)).copied().unwrap_or(0);
                early::ended(id, token, &end, left)?;
                let by_itself = end == crate::truth::End::Released;
                gate::released(&process.name, id, token, if by_itself { running } else { 0 })
            }
            Some(Change::Passed(from, to, end)) => {
                known.tokens.began(id, to)?;
                exclusive::passed(id, from, to, &end)
            }
            Some(Change::Prolonged(_)) | None => Ok(()),
        }
    }

    fn waiter_changed(&self, known: &mut Known, write: &Write, now: i64) {
        let Some((line, nonce)) = write.key().id.rsplit_once('#') else { return };
        if nonce.is_empty() || nonce == "resized" {
            return;
        }
        let record =
            |put: &Put| -> Option<WaiterRecord> { serde_json::from_slice(&put.payload).ok() };
        match write {
            Write::Delete(_) => known.lines.left(line, nonce, now),
            Write::Put(put) => {
                let (Some(record), Some(object)) = (record(put), self.get(&put.key)) else {
                    return;
                };
                let ttl = put.ttl.map_or(i64::MAX / 2, |ttl| {
                    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 2)
                });
                let waiter = Waiter {
                    nonce: nonce.to_owned(),
                    owner: format!("{}#{}", record.holder, record.start),
                    joined_ms: now,
                    expires_ms: now + ttl,
                    yields: record.metadata.contains_key("yields"),
                };
                known.lines.joined(line, object.created_revision, waiter);
            }
        }
    }
}

fn steady(known: &Known, owner: &str, now: i64) -> bool {
    known.processes.get(owner).is_some_and(|process| process.health(now).disturbed_until < now)
}

fn is_put_of(write: &Write, kind: &str) -> bool {
    matches!(write, Write::Put(put) if put.key.kind == kind)
}

fn count_of(put: &Put) -> Option<usize> {
    let record: serde_json::Value = serde_json::from_slice(&put.payload).ok()?;
    usize::try_from(record.get("count")?.as_u64()?).ok()
}

/// The line and the nonce of a waiter that tries to take what it waits for.
fn ticket(commit: &Commit) -> Option<(String, String)> {
    commit.writes.iter().find(|write| is_put_of(write, LEASE))?;
    // Its own place must exist; others in line may be gone already.
    let ours = |write: &Write| match write {
        Write::Delete(delete) if delete.key.kind == WAITER && delete.expect == Expect::Exists => {
            let (line, nonce) = delete.key.id.rsplit_once('#')?;
            Some((line.to_owned(), nonce.to_owned()))
        }
        _ => None,
    };
    commit.writes.iter().find_map(ours)
}

/// Whether a line is for one lease alone: not for a slot of a group, nor for a share.
fn is_plain(line: &str) -> bool {
    line.contains('/') && !line.contains('#')
}

fn removed(commit: &Commit, line: &str) -> Vec<String> {
    let nonce = |write: &Write| match write {
        Write::Delete(delete) if delete.key.kind == WAITER => {
            let (name, nonce) = delete.key.id.rsplit_once('#')?;
            (name == line && !nonce.is_empty()).then(|| nonce.to_owned())
        }
        _ => None,
    };
    commit.writes.iter().filter_map(nonce).collect()
}

/// The lines that a lease is waited for in.
fn lines_of(id: &str) -> Vec<String> {
    let group = id.split_once('/').map(|(group, _)| group.to_owned());
    let shared = id.rsplit_once('#').map(|(scope, _)| format!("{scope}#shared"));
    [Some(id.to_owned()), group, shared].into_iter().flatten().collect()
}
