//! A wrapper that makes any backend fail on purpose: late, not at all, or after the fact.
//!
//! Faults follow a [`FaultPlan`]: scripted ones for a test that needs one exact failure, random ones
//! from a seed for a test that looks for surprises.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Capabilities, Commit, Committed, Page, Query, Touch, Touched, Watch, WatchRequest};
use crate::backend::Backend;
use crate::clock::SharedClock;
use crate::random::{SeededRandom, below};
use crate::{Error, Key, Object, Result};

/// One way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Works, but only after this long.
    Delay(Duration),
    /// Nothing happens; the caller is told `Unavailable`.
    Error,
    /// It happens, but the caller is told `Unknown`.
    LostReply,
    /// Nothing happens, yet the caller is told `Unknown`: the request was lost.
    LostRequest,
    /// Nothing happens now or ever again: the process died before the call.
    CrashBefore,
    /// It happens, and nothing after it: the process died before the reply.
    CrashAfter,
}

/// Which calls a scripted fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `get`.
    Get,
    /// `list`.
    List,
    /// `commit`.
    Commit,
    /// `touch`.
    Touch,
    /// `watch`.
    Watch,
}

/// What goes wrong, and when.
#[derive(Debug)]
pub struct FaultPlan {
    script: Mutex<VecDeque<(Operation, Fault)>>,
    random: Option<(SeededRandom, u64)>,
    crashed: AtomicBool,
}

impl FaultPlan {
    /// Nothing goes wrong until [`FaultPlan::next`] says so.
    pub fn scripted() -> Arc<Self> {
        Arc::new(Self { script: Mutex::default(), random: None, crashed: AtomicBool::new(false) })
    }

    /// About `percent` of all calls go wrong, the same ones for the same seed and order of calls.
    pub fn seeded(seed: u64, percent: u64) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::default(),
            random: Some((SeededRandom::new(seed), percent)),
            crashed: AtomicBool::new(false),
        })
    }

    /// The next call of this operation that no earlier entry claims goes wrong like this.
    pub fn next(&self, operation: Operation, fault: Fault) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back((operation, fault));
    }

    /// Whether a crash fault has struck.
    pub fn crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    /// The process is started again after a crash.
    pub fn restart(&self) {
        self.crashed.store(false, Ordering::Release);
    }

    fn draw(&self, operation: Operation) -> Option<Fault> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = script.iter().position(|(wanted, _)| *wanted == operation) {
            return script.remove(at).map(|(_, fault)| fault);
        }
        drop(script);
        let (random, percent) = self.random.as_ref()?;
        if below(random, 100) >= *percent {
            return None;
        }
        Some(match below(random, 4) {
            0 => Fault::Delay(Duration::from_millis(below(random, 20))),
            1 => Fault::Error,
            2 => Fault::LostReply,
            _ => Fault::LostRequest,
        })
    }
}

/// A backend that fails as planned.
pub struct Faulty {
    inner: Arc<dyn Backend>,
    plan: Arc<FaultPlan>,
    clock: SharedClock,
}

impl Faulty {
    /// Makes this backend fail as planned.
    pub fn new(inner: Arc<dyn Backend>, plan: Arc<FaultPlan>, clock: SharedClock) -> Self {
        Self { inner, plan, clock }
    }

    async fn strike<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let backend = self.inner.capabilities().backend;
        let dead = || Error::unavailable(backend, "injected: the process crashed");
        if self.plan.crashed() {
            return Err(dead());
        }
        // A read changes nothing, so a lost reply to one is a plain failure.
        let writes = matches!(operation, Operation::Commit | Operation::Touch);
        let lost = |what: &str| match writes {
            true => Error::unknown(backend, format!("injected: {what} lost")),
            false => Error::unavailable(backend, format!("injected: {what} lost")),
        };
        match self.plan.draw(operation) {
            None => call.await,
            Some(Fault::Delay(by)) => {
                self.clock.sleep(by).await;
                call.await
            }
            Some(Fault::Error) => Err(Error::unavailable(backend, "injected: error")),
            Some(Fault::LostRequest) => Err(lost("request")),
            Some(Fault::LostReply) => call.await.and_then(|_| Err(lost("reply"))),
            Some(Fault::CrashBefore) => {
                self.plan.crashed.store(true, Ordering::Release);
                Err(dead())
            }
            Some(Fault::CrashAfter) => {
                let _ = call.await;
                self.plan.crashed.store(true, Ordering::Release);
                Err(lost("reply"))
            }
        }
    }
}

#[async_trait]
impl Backend for Faulty {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.strike(Operation::Get, self.inner.get(key)).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.strike(Operation::List, self.inner.list(query)).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        self.strike(Operation::Commit, self.inner.commit(commit)).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.strike(Operation::Touch, self.inner.touch(touches)).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        self.strike(Operation::Watch, self.inner.watch(request)).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
