//! What the tasks of a process do: ask for leases in every way, work under them, let go in every
//! way, and get in each other's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::Clock;
use tenure::lease::{Coordinator, Lease, Scope, Terms};
use tenure::{Error, Result};

use crate::asking;
use crate::belief::{self, Belief};
use crate::dice::Dice;
use crate::holding;
use crate::observer::Observer;
use crate::plan::Plan;
use crate::process::Process;
use crate::reaping;
use crate::varied;

/// One task of a process, and all it needs.
pub(crate) struct Worker {
    pub(crate) process: Arc<Process>,
    pub(crate) coordinator: Coordinator,
    pub(crate) observer: Arc<Observer>,
    pub(crate) dice: Dice,
    pub(crate) plan: Plan,
    /// Set when it is time to stop.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The scope of this number.
pub(crate) fn scope(number: u64) -> Scope {
    format!("sim/scope-{number}").parse().expect("a scope that is well formed")
}

/// The name of the process of this number.
pub(crate) fn name(number: u64) -> String {
    format!("p{number}")
}

impl Worker {
    pub(crate) fn note(&self, what: &str) {
        self.observer.note(&self.process.name, what);
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.process.clock.sleep(duration).await;
    }

    /// Waits for the answer, or goes away before it has come, as somebody with a timeout does.
    pub(crate) async fn perhaps_giving_up<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        if !self.dice.chance(200) {
            return Some(call.await);
        }
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = self.sleep(self.dice.millis(1, 60)) => None,
        }
    }

    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn any_scope(&self) -> Scope {
        scope(self.dice.below(self.plan.scopes))
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.dice.millis(1_000, self.plan.ttl_max)
    }

    /// Goes on until told to stop.
    pub(crate) async fn roam(self) {
        while !self.stops() {
            self.sleep(self.dice.millis(5, 1_500)).await;
            let roll = self.dice.below(100);
            if self.plan.varied && roll < 40 {
                varied::act(&self).await;
                continue;
            }
            if self.plan.reaps && self.dice.chance(150) {
                reaping::reap(&self).await;
                continue;
            }
            match self.dice.below(20) {
                0 => self.revoke().await,
                2 if !self.plan.single => asking::ask(&self).await,
                1 => self.look().await,
                _ => self.compete(self.any_scope()).await,
            }
        }
    }

    /// Waits for one scope over and over again, as one of many.
    pub(crate) async fn crowd(self, scope: Scope) {
        while !self.stops() {
            self.compete(scope.clone()).await;
            self.sleep(self.dice.millis(5, 300)).await;
        }
    }

    async fn revoke(&self) {
        let scope = self.any_scope();
        self.note(&format!("revokes {scope}"));
        self.observer.revokes(&self.process, scope.as_str());
        let answer = self.coordinator.revoke(&scope, "because").await;
        self.note(&format!("revoking {scope}: {}", word(&answer)));
    }

    async fn look(&self) {
        let scope = self.any_scope();
        let _ = self.coordinator.status(&scope).await;
        let _ = self.coordinator.list(&scope.namespace(), true).await;
    }

    async fn compete(&self, scope: Scope) {
        let mut terms = Terms::new().ttl(self.ttl());
        if self.plan.reaps && self.dice.chance(600) {
            terms = terms.reapable();
        }
        let acquired = match self.dice.below(10) {
            0..=1 => self.coordinator.acquire(&scope, &terms).await,
            2 => {
                let patience = self.dice.millis(5, 4_000);
                let wait = self.waits(scope.as_str(), patience);
                let terms = terms.wait_forever();
                let acquire = self.coordinator.acquire(&scope, &terms);
                let answer = tokio::select! {
                    biased;
                    answer = acquire => answer,
                    () = self.sleep(patience) => {
                        self.note(&format!("no longer wants {scope}"));
                        return;
                    }
                };
                drop(wait);
                answer
            }
            _ => {
                let patience = self.dice.millis(500, 25_000);
                let _wait = self.waits(scope.as_str(), patience);
                self.coordinator.acquire(&scope, &terms.wait(patience)).await
            }
        };
        match acquired {
            Ok(lease) => holding::hold(self, lease).await,
            Err(error) => self.note(&format!("does not get {scope}: {}", error.code())),
        }
    }

    /// Says that this task waits, until the answer is dropped.
    pub(crate) fn waits(&self, line: &str, patience: Duration) -> Waits {
        self.note(&format!("waits for {line} for {patience:?}"));
        let until = self.process.clock.true_ms(self.process.clock.uptime() + patience);
        let wait = self.observer.waits(&self.process, line, until);
        Waits { observer: Arc::clone(&self.observer), wait }
    }

    /// What the observer has to know of a lease.
    pub(crate) fn belief(&self, lease: &Arc<Lease>) -> Belief {
        Belief {
            process: Arc::clone(&self.process),
            id: lease.id().to_owned(),
            token: lease.token(),
            look: belief::lease(lease),
            first: None,
        }
    }
}

/// A task waits for as long as this lives.
pub(crate) struct Waits {
    observer: Arc<Observer>,
    wait: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.observer.done_waiting(self.wait);
    }
}

/// How a call went, for people.
pub(crate) fn word<T>(answer: &Result<T>) -> &'static str {
    answer.as_ref().map_or_else(Error::code, |_| "ok")
}
