//! The gate: runs a set of loops only while a lease is held.
//!
//! A replica waits in standby, starts its loops when it acquires the lease, and stops them when the
//! lease is lost, when it is told to shut down, when somebody asks for a hand-over
//! ([`Coordinator::ask_to_hand_over`]), or when one of them ends. Stopping is cooperative: every loop is
//! told through its [`Term`] and waited for; only then is the lease released or handed over (G9), so
//! that the next holder never works beside the last one. Then it is standby again, or the end.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! # use std::time::Duration;
//! # use tenure::{gate::Gate, lease::{Coordinator, Terms}, store::memory::MemoryStore};
//! # let coordinator = Coordinator::new(MemoryStore::new().into_store())?;
//! # let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! # let mut stop = Some(stop);
//! # let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
//! let gate = Gate::new(&coordinator, "orders.reconciler/main".parse()?)
//!     .terms(Terms::new().ttl(Duration::from_secs(30)))
//!     .work("sweep", move |term| {
//! #       let tell = tell.clone();
//!         async move {
//! #           let _ = tell.send(());
//!             while !term.is_over() {
//!                 // … one step, its writes fenced by `term.fence(commit)` …
//!                 term.sleep(Duration::from_secs(60)).await; // returns early when the term ends
//!             }
//!         }
//!     });
//! let status = gate.status(); // for a health endpoint
//! # tokio::spawn(async move { told.recv().await; stop.take().map(|s| s.send(())) });
//! gate.run(async { let _ = stopped.await; }).await?;
//! assert!(!status.borrow().is_holding());
//! # Ok(())
//! # }
//! ```

mod metrics;
mod running;
mod status;
#[cfg(test)]
mod stuck_tests;
mod term;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

pub use metrics::GateMetrics;
pub use status::{GateState, GateStatus};
pub use term::Term;

use crate::flaws::{Flaw, planted};
use crate::lease::{
    Coordinator, Election, HandOverRequest, Lease, LeaseInfo, Loss, Scope, Spawn, Terms,
};
use crate::{Error, Result};
use running::{Ended, Running};

pub(crate) type Work = Arc<dyn Fn(Term) -> BoxFuture<'static, ()> + Send + Sync>;

/// A standby that waits for less than this does not look who holds; one that cannot be told looks again
/// after as much.
const OBSERVE_AFTER: Duration = Duration::from_secs(1);

/// How long loops may take to stop, and how soon they are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A loop that was told to stop gets this long; then it is dropped at its next await.
    pub stop: Duration,
    /// The first pause after a loop has ended by itself; each further one is twice as long.
    pub restart_first: Duration,
    /// The longest such pause.
    pub restart_max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            stop: Duration::from_secs(30),
            restart_first: Duration::from_secs(1),
            restart_max: Duration::from_secs(60),
        }
    }
}

/// Runs loops only while a lease is held.
#[must_use = "a gate does nothing until it is run"]
pub struct Gate {
    coordinator: Coordinator,
    scope: Scope,
    terms: Terms,
    patience: Patience,
    work: Vec<(Arc<str>, Work)>,
    gated: bool,
    home: Option<Arc<dyn Spawn>>,
    metrics: GateMetrics,
    status: watch::Sender<GateStatus>,
}

/// Why a term came to its end.
enum End {
    Lost(Loss),
    Shutdown,
    /// Somebody else is to have the lease. It is still held.
    Asked(HandOverRequest),
    /// A loop ended by itself.
    Ended(Ended),
}

impl Gate {
    /// A gate on this scope, without any work yet.
    pub fn new(coordinator: &Coordinator, scope: Scope) -> Self {
        let (status, _) = watch::channel(GateStatus::new(&scope, coordinator.owner()));
        Self {
            coordinator: coordinator.clone(),
            scope,
            terms: Terms::new(),
            patience: Patience::default(),
            work: Vec::new(),
            gated: true,
            home: None,
            metrics: GateMetrics::default(),
            status,
        }
    }

    /// On what terms to hold the lease; it waits for as long as it takes in any case.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Adds a loop: called anew for each term, and expected to run until the term is over.
    pub fn work<F, W>(mut self, name: &str, work: W) -> Self
    where
        W: Fn(Term) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let work = move |term| -> BoxFuture<'static, ()> { Box::pin(work(term)) };
        self.work.push((name.into(), Arc::new(work)));
        self
    }

    /// How long to wait for loops.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// There is only one replica, so the loops run without a lease. Say this only of a deployment
    /// where it is true: nothing else keeps two of them apart then.
    pub fn ungated(mut self) -> Self {
        self.gated = false;
        self
    }

    /// Counts in these metrics.
    pub fn metrics(mut self, metrics: GateMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Runs the loops here instead of on the runtime that [`Gate::run`] is called on.
    pub fn spawn_on(mut self, home: Arc<dyn Spawn>) -> Self {
        self.home = Some(home);
        self
    }

    /// What the gate is doing, kept up to date: for health endpoints, without asking the store.
    pub fn status(&self) -> watch::Receiver<GateStatus> {
        self.status.subscribe()
    }

    /// Who holds the lease now, asked of the store.
    pub async fn holder(&self) -> Result<Option<LeaseInfo>> {
        self.coordinator.holder(&self.scope).await
    }

    /// Runs until `shutdown` resolves: standby, work while the lease is held, standby again.
    ///
    /// Dropping this future drops the loops; the lease is let go once they are gone.
    ///
    /// # Errors
    /// What makes waiting pointless: an invalid request, a store that cannot hold leases, refuses
    /// this program or was closed. An unreachable store is waited for. Also if a loop did not stop in time at
    /// shutdown, however the term ended; its lease, if it still has it, is then kept until the process
    /// ends, since the work may still be going on.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        tokio::pin!(shutdown);
        let mut failures = 0;
        loop {
            let lease = if self.gated {
                self.set(GateState::Standby, None);
                let terms = self.terms.clone().wait_forever();
                let acquired = tokio::select! {
                    biased;
                    () = &mut shutdown => break,
                    acquired = self.coordinator.acquire(&self.scope, &terms) => acquired?,
                    never = self.observe() => match never {},
                };
                Some(Arc::new(acquired))
            } else {
                None
            };
            let started = self.uptime();
            let end = self.term(lease, shutdown.as_mut()).await?;
            match end {
                End::Shutdown => break,
                End::Lost(_) | End::Asked(_) => {}
                End::Ended(ended) => {
                    let lasted = self.uptime().saturating_sub(started);
                    failures = if lasted >= self.patience.restart_max { 1 } else { failures + 1 };
                    let pause = self.pause(failures);
                    tracing::warn!(scope = %self.scope, loop_name = %ended.name, ?pause,
                        "a loop {}; trying again after a pause", ended.how);
                    self.set(GateState::Pausing, None);
                    let clock = self.coordinator.store().clock();
                    tokio::select! {
                        biased;
                        () = &mut shutdown => break,
                        () = clock.sleep(pause) => {}
                    }
                }
            }
        }
        self.set(GateState::Stopped, None);
        Ok(())
    }

    /// Keeps the status informed of who holds the lease meanwhile. Told by the store, as those who wait
    /// is, and only once there is a wait worth telling about.
    async fn observe(&self) -> Infallible {
        if !self.coordinator.store().capabilities().notifies_all() {
            return std::future::pending().await;
        }
        let election = Election::new(&self.coordinator, self.scope.clone());
        let clock = self.coordinator.store().clock();
        loop {
            clock.sleep(OBSERVE_AFTER).await;
            let Ok(mut leaders) = election.observe().await else { continue };
            while let Some(Ok(leader)) = leaders.next().await {
                let holder = leader.map(|info| info.holder.to_string());
                self.status.send_if_modified(|status| {
                    let changed = status.holder != holder;
                    status.holder = holder;
                    changed
                });
            }
        }
    }

    /// One term: the loops run, something ends them, they stop, and only then the lease goes.
    async fn term(
        &self,
        lease: Option<Arc<Lease>>,
        mut shutdown: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Result<End> {
        self.metrics.terms.inc();
        self.metrics.holding.set(1);
        let state = if lease.is_some() { GateState::Holding } else { GateState::Ungated };
        self.set(state, lease.as_deref());
        let held = lease.clone();
        let mut running = Running::start(&self.coordinator, lease, &self.work, self.home.clone());
        let mut end = tokio::select! {
            biased;
            () = &mut shutdown => End::Shutdown,
            end = running.end() => end,
        };
        self.tell(&end);
        if planted(Flaw::ReleasesBeforeStopping) {
            running.release_early().await;
        }
        let mut stopped = match &end {
            End::Lost(loss) => running.stop(self.after_loss(loss, held.as_deref())).await,
            End::Shutdown | End::Asked(_) | End::Ended(_) => tokio::select! {
                biased;
                stopped = running.stop(self.patience.stop) => stopped,
                // Then there is no more patience than there would have been otherwise.
                loss = lost(held.as_deref()) => {
                    self.status.send_modify(|status| status.last_loss = Some(loss.clone()));
                    running.stop(self.after_loss(&loss, held.as_deref())).await
                }
            },
        };
        drop(held);
        let successor = match &end {
            End::Asked(request) => Some(request.to.clone()),
            _ => None,
        };
        self.metrics.holding.set(0);
        if !stopped && !matches!(end, End::Shutdown) {
            // Nobody waits for this replica, so it waits for its loops; but not past a shutdown.
            tokio::select! {
                biased;
                () = running.all_stopped() => stopped = true,
                () = shutdown => {
                    end = End::Shutdown;
                    stopped = running.stop(self.patience.stop).await;
                }
            }
        }
        if !stopped {
            running.abandon();
            let reason = "a loop did not stop in time; its lease is kept until this process ends";
            return Err(Error::unavailable("gate", reason));
        }
        running.finish(successor).await;
        Ok(end)
    }

    /// The term is over.
    fn tell(&self, end: &End) {
        self.set(GateState::Stopping, None);
        match end {
            End::Lost(loss) => {
                self.status.send_modify(|status| status.last_loss = Some(loss.clone()));
            }
            End::Ended(ended) => self.metrics.ended(&ended.name, ended.how),
            End::Asked(HandOverRequest { to, by }) => {
                tracing::info!(scope = %self.scope, to, by, "asked to hand over; the loops are stopped");
            }
            End::Shutdown => {}
        }
    }

    /// How long loops may take to stop after the lease is gone. One that ran into its deadline has half
    /// the margin before the store's own, the other half stays for a clock that runs slow; that may be
    /// over by now, if this process stood still. One that somebody else has already has nothing.
    fn after_loss(&self, loss: &Loss, lease: Option<&Lease>) -> Duration {
        match (loss, lease) {
            (Loss::Expired, Some(lease)) => {
                let until = lease.valid_until() + crate::lease::margin(lease.ttl()) / 2;
                until.saturating_sub(self.uptime())
            }
            _ => Duration::ZERO,
        }
    }

    fn pause(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
        (self.patience.restart_first * factor).min(self.patience.restart_max)
    }

    fn uptime(&self) -> Duration {
        self.coordinator.store().clock().uptime()
    }

    fn set(&self, state: GateState, lease: Option<&Lease>) {
        self.status.send_modify(|status| {
            status.state = state;
            status.token = lease.map(Lease::token);
            status.holder = lease.map(|lease| lease.owner().to_string());
        });
    }
}

/// Resolves when the lease is lost; never without one.
async fn lost(lease: Option<&Lease>) -> Loss {
    match lease {
        Some(lease) => lease.lost().await,
        None => std::future::pending().await,
    }
}
