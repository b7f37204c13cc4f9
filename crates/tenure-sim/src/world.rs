//! Everything there is in a run: the store, the processes, and what befalls them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::flaws::Flaw;
use tenure::lease::{Coordinator, EndLabels, LeaseMetrics, Owner};
use tenure::random::SeededRandom;
use tenure::store::Store;
use tenure::{Error, Result};

use crate::clock::{ProcessClock, TrueClock};
use crate::dice::{Dice, mix};
use crate::gated;
use crate::invariants::loss;
use crate::invariants::reaping::left;
use crate::network::{Link, Weather};
use crate::observer::{Observer, RECOVERY_MS};
use crate::plan::Plan;
use crate::process::{Home, Process};
use crate::reaping;
use crate::server::Server;
use crate::varied;
use crate::workload::{Worker, name, scope};

/// How a run differs from the plain run of its seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// A mistake made on purpose.
    pub flaw: Option<Flaw>,
    /// All wall clocks are right.
    pub true_walls: bool,
    /// The store takes one object a commit, whatever the seed says.
    pub single: bool,
}

struct Machine {
    clock: Arc<ProcessClock>,
    process: Arc<Process>,
    starts: u64,
}

/// Everything there is in a run.
pub struct World {
    seed: u64,
    settings: Settings,
    /// What the seed means.
    pub plan: Plan,
    /// Sees everything.
    pub observer: Arc<Observer>,
    server: Arc<Server>,
    /// What is the matter with the store.
    pub weather: Arc<Weather>,
    stop: Arc<AtomicBool>,
    machines: Mutex<Vec<Machine>>,
    metrics: Mutex<Vec<(String, LeaseMetrics)>>,
}

impl World {
    /// The world of this seed, with every process started.
    pub async fn start(seed: u64, settings: Settings) -> Result<Arc<Self>> {
        let observer = Observer::new(TrueClock::start());
        let mut plan = Plan::of(seed);
        plan.single |= settings.single;
        plan.reaps &= !plan.single;
        if plan.single {
            // Nobody can write down how many slots there are, so all ask for the same number.
            observer.known().slots.insert(varied::group().to_string(), varied::SLOTS as usize);
        }
        observer.note("sim", &format!("seed {seed}: {plan:?}"));
        let world = Arc::new(Self {
            seed,
            settings,
            server: Server::start(&observer).await?,
            observer,
            weather: Arc::default(),
            stop: Arc::default(),
            machines: Mutex::default(),
            metrics: Mutex::default(),
            plan,
        });
        for number in 0..world.plan.processes {
            world.boot(number)?;
        }
        Ok(world)
    }

    fn machines(&self) -> MutexGuard<'_, Vec<Machine>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self, number: u64) -> Option<Arc<Process>> {
        let at = usize::try_from(number).ok()?;
        self.machines().get(at).map(|machine| Arc::clone(&machine.process))
    }

    /// A machine is switched on, and its process starts.
    fn boot(self: &Arc<Self>, number: u64) -> Result<()> {
        let dice = Dice::new(self.seed, &format!("machine {number}"));
        let (origin, drift) = (dice.millis(1_000, 1_000_000_000), dice.below(40_001));
        let drift = i64::try_from(drift).unwrap_or(20_000) - 20_000;
        let hours = i64::try_from(dice.below(49)).unwrap_or(24) - 24;
        let wall = if self.settings.true_walls { 0 } else { hours * 3_600_000 };
        let clock = ProcessClock::new(self.observer.clock, origin, drift, wall);
        let what = format!("{} runs {drift} millionths fast", name(number));
        self.observer.note("sim", &what);
        let process = self.process_of(number, 0, &clock)?;
        self.machines().push(Machine { clock, process: Arc::clone(&process), starts: 1 });
        self.launch(number, 0, &process)
    }

    fn process_of(
        &self,
        number: u64,
        start: u64,
        clock: &Arc<ProcessClock>,
    ) -> Result<Arc<Process>> {
        let random = SeededRandom::new(mix(self.seed, &format!("owner {number} {start}")));
        let owner = Owner::new(&name(number), &random)?;
        // The observer keeps the processes; they must not keep it.
        let observer = Arc::downgrade(&self.observer);
        let after_step = Arc::new(move || {
            if let Some(observer) = observer.upgrade() {
                observer.step();
            }
        });
        let process = Process::new(&name(number), owner, Arc::clone(clock), after_step);
        (0..self.weather.outages()).for_each(|_| process.set_ailing(true));
        self.observer.started(&process);
        self.observer.note(&process.name, &format!("starts as {}", process.owner));
        Ok(process)
    }

    fn coordinator(&self, number: u64, start: u64, process: &Arc<Process>) -> Result<Coordinator> {
        let purpose = |what: &str| format!("{what} {number} {start}");
        let dice = Dice::new(self.seed, &purpose("network"));
        let link = Link::new(&self.server, process, &self.weather, &self.plan, dice);
        let random = SeededRandom::new(mix(self.seed, &purpose("nonces")));
        let store = Store::new(link)
            .with_clock(Arc::clone(&process.clock) as _, Arc::new(random))
            .with_timeout(Duration::from_millis(self.plan.timeout));
        let metrics = LeaseMetrics::default();
        let who = process.owner.to_string();
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).push((who, metrics.clone()));
        Coordinator::builder(store)
            .owner(process.owner.clone())
            .metrics(metrics)
            .spawn_on(Arc::new(Home(Arc::clone(process))))
            .start()
    }

    /// Starts the tasks of a process.
    fn launch(&self, number: u64, start: u64, process: &Arc<Process>) -> Result<()> {
        let coordinator = self.coordinator(number, start, process)?;
        let worker = |task: &str| Worker {
            process: Arc::clone(process),
            coordinator: coordinator.clone(),
            observer: Arc::clone(&self.observer),
            dice: Dice::new(self.seed, &format!("{task} of {number} {start}")),
            plan: self.plan.clone(),
            stop: Arc::clone(&self.stop),
        };
        let mut tasks = 0;
        for task in 0..self.plan.tasks {
            process.run(Box::pin(worker(&format!("task {task}")).roam()));
            tasks += 1;
        }
        if self.plan.crowd && number == 0 {
            for task in 0..5 {
                process.run(Box::pin(worker(&format!("crowd {task}")).crowd(scope(0))));
                tasks += 1;
            }
        }
        if self.plan.gates {
            process.run(Box::pin(gated::keep(worker("gate"))));
            tasks += 1;
        }
        self.observer.known().tasks.insert(process.owner.to_string(), tasks);
        Ok(())
    }

    /// A process ends where it stands, and is started again later.
    pub async fn kill(self: &Arc<Self>, number: u64, pause: Duration) -> Result<()> {
        let Some(process) = self.process(number) else { return Ok(()) };
        if process.is_dead() {
            return Ok(());
        }
        self.observer.note(&process.name, "is killed");
        process.kill();
        tokio::time::sleep(pause).await;
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let Some((clock, start)) = self.machines().get_mut(at).map(|machine| {
            machine.starts += 1;
            (Arc::clone(&machine.clock), machine.starts - 1)
        }) else {
            return Ok(());
        };
        let process = self.process_of(number, start, &clock)?;
        if let Some(machine) = self.machines().get_mut(at) {
            machine.process = Arc::clone(&process);
        }
        self.launch(number, start, &process)
    }

    /// A process stops for a while, and then goes on as if nothing had happened.
    pub async fn freeze(&self, number: u64, pause: Duration) {
        let Some(process) = self.process(number) else { return };
        self.observer.note(&process.name, &format!("freezes for {pause:?}"));
        process.freeze();
        self.struck(&process);
        tokio::time::sleep(pause).await;
        self.observer.note(&process.name, "goes on");
        self.struck(&process);
        process.thaw();
    }

    /// A process is cut off from the store for a while.
    pub async fn partition(&self, number: u64, pause: Duration, breaks: bool) {
        let Some(process) = self.process(number) else { return };
        self.observer.note(&process.name, &format!("is cut off for {pause:?}"));
        process.set_partitioned(true);
        self.struck(&process);
        tokio::time::sleep(pause).await;
        self.observer.note(&process.name, "is no longer cut off");
        if breaks {
            self.server.break_watches(Some(&process.owner.to_string()));
        }
        self.struck(&process);
        process.set_partitioned(false);
    }

    /// The store cannot be reached for a while.
    pub async fn outage(&self, pause: Duration, hangs: bool, breaks: bool) {
        let how = if hangs { "hangs" } else { "is down" };
        self.observer.note("store", &format!("{how} for {pause:?}"));
        self.weather.outage(hangs, true);
        self.machines().iter().for_each(|machine| machine.process.set_ailing(true));
        self.struck_all();
        if breaks {
            self.server.break_watches(None);
        }
        tokio::time::sleep(pause).await;
        self.observer.note("store", "can be reached again");
        self.struck_all();
        self.machines().iter().for_each(|machine| machine.process.set_ailing(false));
        self.weather.outage(hangs, false);
    }

    /// A connection breaks and can be made again at once.
    pub fn break_watch(&self, number: u64) {
        let Some(process) = self.process(number) else { return };
        self.observer.note(&process.name, "loses its connections");
        self.struck(&process);
        self.server.break_watches(Some(&process.owner.to_string()));
    }

    /// Somebody sets the wall clock of a process.
    pub fn step_wall(&self, number: u64, by_ms: i64) {
        let Some(process) = self.process(number) else { return };
        self.observer.note(&process.name, &format!("wall clock set by {} s", by_ms / 1000));
        if !self.settings.true_walls {
            process.clock.step_wall(by_ms);
        }
    }

    fn struck(&self, process: &Process) {
        let now = self.observer.clock.now_ms();
        process.struck(now, now + RECOVERY_MS);
    }

    fn struck_all(&self) {
        let all: Vec<_> = self.machines().iter().map(|m| Arc::clone(&m.process)).collect();
        all.iter().for_each(|process| self.struck(process));
    }

    /// From now on nothing goes wrong.
    pub fn clear_up(&self) {
        self.observer.note("sim", "nothing goes wrong any more");
        self.weather.clear_up();
        self.struck_all();
    }

    /// Tasks stop once they are done with what they do.
    pub fn wind_down(&self) {
        self.observer.note("sim", "tasks stop when they are done");
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends every process.
    pub fn end(&self) {
        let all: Vec<_> = self.machines().iter().map(|m| Arc::clone(&m.process)).collect();
        all.iter().for_each(|process| process.kill());
    }

    /// Checks what the processes themselves count.
    pub fn check_counts(&self) {
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (who, metrics) in metrics {
            let codes = ["expired", "taken", "revoked", "released", "handed_over"];
            let ended =
                codes.map(|reason| metrics.ended.get_or_create(&EndLabels { reason }).get());
            let verdict = loss::told_once(&who, metrics.acquired.get(), ended.iter().sum());
            self.observer.judge(verdict);
        }
    }

    /// A newcomer gets every scope in the end: nothing is stuck.
    pub async fn check_nothing_is_stuck(self: &Arc<Self>) -> Result<()> {
        let number = self.plan.processes;
        let clock = ProcessClock::new(self.observer.clock, Duration::from_secs(5), 0, 0);
        let process = self.process_of(number, 0, &clock)?;
        let coordinator = self.coordinator(number, 0, &process)?;
        for number in 0..self.plan.scopes {
            let terms = tenure::lease::Terms::new().wait(Duration::from_secs(60));
            let lease = coordinator.acquire(&scope(number), &terms).await;
            let lease = lease.map_err(|error| {
                Error::unavailable("sim", format!("{} cannot be had: {error}", scope(number)))
            })?;
            lease.release().await?;
        }
        if self.plan.reaps {
            let hook = reaping::Tally { by: process.owner.to_string() };
            coordinator.reap(&[scope(0).namespace()], true, &hook).await?;
            self.observer.judge(self.server.orphans().map_or(Ok(()), |id| left(&id)));
        }
        Ok(())
    }
}
