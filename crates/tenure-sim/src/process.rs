//! A simulated process: its tasks are polled unless it is frozen, and dropped when it is killed.
//!
//! Whatever a process computes lives in its futures, so not polling them is exactly what a stopped
//! process is like: it wakes up with every local variable as it was.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::future::BoxFuture;
use tenure::lease::{Owner, Spawn};

use crate::clock::ProcessClock;

/// Called after every poll of a task.
pub type AfterStep = Arc<dyn Fn() + Send + Sync>;

/// One start of a program.
pub struct Process {
    /// Its name, which outlives restarts.
    pub name: String,
    /// Its name and the nonce of this start.
    pub owner: Owner,
    /// The same as text.
    pub who: String,
    /// Its clock.
    pub clock: Arc<ProcessClock>,
    state: Mutex<State>,
    after_step: AfterStep,
}

#[derive(Default)]
struct State {
    /// So many afflictions keep it from running.
    frozen: u32,
    dead: bool,
    /// So many cut it off from the store.
    partitioned: u32,
    /// So many others are going on.
    ailing: u32,
    tasks: u64,
    wakers: BTreeMap<u64, Waker>,
    health: Health,
}

/// What went wrong around a process lately, in milliseconds of the store's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// The last instant at which a fault struck it.
    pub fault_at: i64,
    /// Until when a fault may still delay what it does.
    pub disturbed_until: i64,
}

impl Process {
    /// A process that has just started.
    pub fn new(
        name: &str,
        owner: Owner,
        clock: Arc<ProcessClock>,
        after_step: AfterStep,
    ) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self {
            name: name.to_owned(),
            who: owner.to_string(),
            owner,
            clock,
            state,
            after_step,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops polling its tasks.
    pub fn freeze(&self) {
        self.state().frozen += 1;
    }

    /// Polls them again.
    pub fn thaw(&self) {
        let frozen = {
            let mut state = self.state();
            state.frozen = state.frozen.saturating_sub(1);
            state.frozen > 0
        };
        if !frozen {
            self.wake_all();
        }
    }

    /// Ends it: its tasks are dropped, and nothing it tries on the way reaches anybody.
    pub fn kill(&self) {
        self.state().dead = true;
        self.wake_all();
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.state().wakers);
        wakers.into_values().for_each(Waker::wake);
    }

    /// Whether its tasks are not polled.
    pub fn is_frozen(&self) -> bool {
        self.state().frozen > 0
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Whether it is cut off from the store.
    pub fn is_partitioned(&self) -> bool {
        self.state().partitioned > 0
    }

    /// Cuts it off from the store, or lets it back.
    pub fn set_partitioned(&self, partitioned: bool) {
        let count = &mut self.state().partitioned;
        *count = if partitioned { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Something else goes wrong around it from now on, or no longer does.
    pub fn set_ailing(&self, ailing: bool) {
        let count = &mut self.state().ailing;
        *count = if ailing { *count + 1 } else { count.saturating_sub(1) };
    }

    /// What went wrong around it lately.
    pub fn health(&self, now_ms: i64) -> Health {
        let state = self.state();
        let mut health = state.health;
        if state.frozen + state.partitioned + state.ailing > 0 {
            health.fault_at = now_ms;
            health.disturbed_until = health.disturbed_until.max(now_ms + 1);
        }
        health
    }

    /// A fault strikes now, and may delay what the process does until some time later.
    pub fn struck(&self, now_ms: i64, until_ms: i64) {
        let health = &mut self.state().health;
        health.fault_at = health.fault_at.max(now_ms);
        health.disturbed_until = health.disturbed_until.max(until_ms);
    }

    /// Runs a task of this process.
    pub fn run(self: &Arc<Self>, task: BoxFuture<'static, ()>) {
        let id = {
            let mut state = self.state();
            if state.dead {
                // Outside of the lock: dropping a task may start another.
                drop(state);
                drop(task);
                return;
            }
            state.tasks += 1;
            state.tasks
        };
        tokio::spawn(Task { process: Arc::clone(self), id, task: Some(task) });
    }
}

/// Where a coordinator's background work runs: in the process it belongs to.
pub struct Home(pub Arc<Process>);

impl Spawn for Home {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.run(task);
    }
}

/// A task that is polled only while its process runs.
struct Task {
    process: Arc<Process>,
    id: u64,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (dead, frozen) = {
            let mut state = self.process.state();
            state.wakers.insert(self.id, cx.waker().clone());
            (state.dead, state.frozen > 0)
        };
        if dead {
            drop(self.task.take());
            return Poll::Ready(());
        }
        if frozen {
            return Poll::Pending;
        }
        let Some(task) = self.task.as_mut() else { return Poll::Ready(()) };
        let poll = task.as_mut().poll(cx);
        if poll.is_ready() {
            drop(self.task.take());
            let (process, id) = (Arc::clone(&self.process), self.id);
            process.state().wakers.remove(&id);
        }
        (self.process.after_step)();
        poll
    }
}
