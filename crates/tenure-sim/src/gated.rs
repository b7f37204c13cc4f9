//! A gate with loops of every kind: one that stops when told, one that is slow to, one that panics,
//! one that returns.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::Clock;
use tenure::gate::{Gate, Patience, Term};
use tenure::lease::{Scope, Terms};

use crate::belief::{self, Belief};
use crate::dice::Dice;
use crate::observer::Observer;
use crate::process::{Home, Process};
use crate::workload::{Worker, word};

/// Panics of loops start like this, so that they can be told from real ones.
pub(crate) const SIMULATED: &str = "simulated:";

pub(crate) fn scope() -> Scope {
    "sim/gate".parse().expect("a scope that is well formed")
}

/// A loop runs for as long as this lives.
struct Runs {
    observer: Arc<Observer>,
    process: Arc<Process>,
    key: (String, u64),
    name: &'static str,
}

impl Runs {
    fn start(
        observer: &Arc<Observer>,
        process: &Arc<Process>,
        term: &Term,
        name: &'static str,
    ) -> Self {
        let key = (scope().to_string(), term.token().unwrap_or(0));
        observer.note(&process.name, &format!("loop {name} starts under token {}", key.1));
        observer.loop_starts(&key);
        Self { observer: Arc::clone(observer), process: Arc::clone(process), key, name }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.observer.note(&self.process.name, &format!("loop {} ends", self.name));
        if let Some(running) = self.observer.known().loops.get_mut(&self.key) {
            *running = running.saturating_sub(1);
        }
    }
}

/// Runs gates until told to stop.
pub(crate) async fn keep(worker: Worker) {
    while !worker.stops() {
        let life = worker.dice.millis(2_000, 30_000);
        let patience = Patience {
            stop: worker.dice.millis(200, 5_000),
            restart_first: Duration::from_millis(500),
            restart_max: Duration::from_secs(4),
        };
        let gate = Gate::new(&worker.coordinator, scope())
            .terms(Terms::new().ttl(worker.ttl()))
            .patience(patience)
            .spawn_on(Arc::new(Home(Arc::clone(&worker.process))))
            .work("steady", steady(&worker))
            .work("slow", slow(&worker));
        let answer = gate.run(worker.sleep(life)).await;
        worker.note(&format!("gate has ended: {}", word(&answer)));
        worker.sleep(worker.dice.millis(10, 2_000)).await;
    }
}

/// Waits for the end of its term, and stops at once; or returns or panics before.
fn steady(worker: &Worker) -> impl Fn(Term) -> futures::future::BoxFuture<'static, ()> + use<> {
    let (observer, process) = (Arc::clone(&worker.observer), Arc::clone(&worker.process));
    let dice = Arc::new(Dice::new(worker.dice.below(u64::MAX), "steady"));
    move |term| {
        let (observer, process, dice) =
            (Arc::clone(&observer), Arc::clone(&process), Arc::clone(&dice));
        Box::pin(async move {
            let runs = Runs::start(&observer, &process, &term, "steady");
            let term = Arc::new(term);
            let (id, token) = runs.key.clone();
            let look = belief::term(&term);
            observer.granted(Belief { process, id, token, look, first: None });
            while !term.is_over() {
                term.sleep(dice.millis(10, 2_000)).await;
                match dice.below(40) {
                    0 => return,
                    1 => panic!("{SIMULATED} a loop panics"),
                    _ => {}
                }
            }
        })
    }
}

/// Looks for the end of its term only now and then, and may take too long.
fn slow(worker: &Worker) -> impl Fn(Term) -> futures::future::BoxFuture<'static, ()> + use<> {
    let (observer, process) = (Arc::clone(&worker.observer), Arc::clone(&worker.process));
    let dice = Arc::new(Dice::new(worker.dice.below(u64::MAX), "slow"));
    move |term| {
        let (observer, process, dice) =
            (Arc::clone(&observer), Arc::clone(&process), Arc::clone(&dice));
        Box::pin(async move {
            let _runs = Runs::start(&observer, &process, &term, "slow");
            while !term.is_over() {
                process.clock.sleep(dice.spread(10, 6_000)).await;
            }
        })
    }
}
