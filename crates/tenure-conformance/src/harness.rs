//! The suite under `cargo test`: the `main` of a backend's one integration-test binary.
//!
//! ```no_run
//! # async fn open(_spec: String) -> tenure::Result<tenure::store::Store> {
//! #     Ok(tenure::store::memory::MemoryStore::new().into_store())
//! # }
//! // tests/mystore.rs, with `harness = false`
//! fn main() {
//!     tenure_conformance::harness::main(
//!         |spec| Box::pin(open(spec)),
//!         |trials| {
//!             // Whatever is set up here is set up once, and not in the worker processes.
//!             trials.suite("mystore", "/tmp/x".into());
//!             trials.test("mystore::kills", || async { Ok(()) });
//!         },
//!     )
//! }
//! ```
//!
//! The same binary is the worker of the process behaviours: it starts itself again as
//! `current_exe --tenure-worker SPEC`.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tenure::store::Store;
use tokio::runtime::Runtime;

use crate::{
    Behaviour, Failure, Opener, Outcome, SharedTable, Subject, WorkerCommand, behaviours, run_one,
    run_one_with_sql, sql_behaviours, worker,
};

/// The argument that makes the test binary a worker.
const WORKER: &str = "--tenure-worker";

/// Whether everything is to be run, however long it takes: what `./test --long` sets.
pub fn is_long() -> bool {
    std::env::var_os("TENURE_TEST_LONG").is_some()
}

/// How often to repeat something: so often before a landing, and so often in `./test --long`.
pub fn rounds(landing: u32, long: u32) -> u32 {
    if is_long() { long } else { landing }
}

/// Opens the store of a specification that the backend's tests made up.
pub type OpenSpec = fn(String) -> BoxFuture<'static, tenure::Result<Store>>;

/// Runs the trials that `build` adds, or serves as a worker process. Takes the arguments of any test
/// binary: a filter, `--list`, `--test-threads`, ….
pub fn main(open: OpenSpec, build: impl FnOnce(&mut Trials)) -> ! {
    start(open, None, build)
}

/// A table of the user's in the database that the store of a specification lives in.
pub type OpenTable = fn(String) -> BoxFuture<'static, tenure::Result<SharedTable>>;

/// The same for a store that runs the user's SQL: [`Trials::suite`] then asks for that, too.
pub fn main_with_sql(open: OpenSpec, table: OpenTable, build: impl FnOnce(&mut Trials)) -> ! {
    start(open, Some(table), build)
}

fn start(open: OpenSpec, table: Option<OpenTable>, build: impl FnOnce(&mut Trials)) -> ! {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(WORKER) {
        std::process::exit(serve(open, table, args.next().unwrap_or_default()));
    }
    let arguments = Arguments::from_args();
    let quiet = arguments.list;
    let mut trials = Trials { open, table, trials: Vec::new(), kept: Vec::new(), quiet };
    build(&mut trials);
    let conclusion = libtest_mimic::run(&arguments, trials.trials);
    // Exiting drops nothing by itself.
    drop(trials.kept);
    conclusion.exit()
}

fn serve(open: OpenSpec, table: Option<OpenTable>, spec: String) -> i32 {
    let served = runtime().and_then(|runtime| {
        runtime.block_on(async {
            let store = open(spec.clone()).await.map_err(std::io::Error::other)?;
            let table = match table {
                Some(open) => Some(open(spec).await.map_err(std::io::Error::other)?),
                None => None,
            };
            worker::serve_with(store, table).await
        })
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("tenure worker: {error}");
            1
        }
    }
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

fn spec_worker(spec: String) -> WorkerCommand {
    // Without a path to itself the binary cannot be started; the error then names it.
    let program = std::env::current_exe().unwrap_or_else(|_| "current-exe-unknown".into());
    WorkerCommand { program, args: vec![WORKER.into(), spec.into()] }
}

/// What [`Trials::subject`] gives, for a trial that makes its specification up while it runs.
pub fn subject(open: OpenSpec, spec: String) -> Subject {
    let worker = Some(spec_worker(spec.clone()));
    Subject { open: Arc::new(move || open(spec.clone())), worker, clock: None }
}

/// The trials of one test binary.
pub struct Trials {
    open: OpenSpec,
    table: Option<OpenTable>,
    trials: Vec<Trial>,
    kept: Vec<Box<dyn Any>>,
    quiet: bool,
}

impl Trials {
    /// One trial per behaviour that applies, named `name::behaviour`, on the store of this
    /// specification. The store is opened once now, to ask for its capabilities.
    pub fn suite(&mut self, name: &str, spec: String) {
        let worker = Some(self.spec_worker(spec.clone()));
        let (open, table) = (self.open, self.table);
        let of = spec.clone();
        let open: Opener = Arc::new(move || open(of.clone()));
        let subject = Subject { open, worker, clock: None };
        self.suite_with(name, subject.clone());
        let Some(open_table) = table else { return };
        for behaviour in sql_behaviours() {
            let (subject, spec) = (subject.clone(), spec.clone());
            self.add(name, behaviour, move || {
                trial(async move {
                    let table = open_table(spec).await?;
                    passed(run_one_with_sql(&subject, &table, &behaviour).await.outcome)
                })
            });
        }
    }

    /// The same for a subject of the caller's making. Its trials share it; those on a manual clock
    /// run one at a time, because one's waiting would be another's expiry.
    pub fn suite_with(&mut self, name: &str, subject: Subject) {
        let turn = subject.clock.is_some().then(|| Arc::new(Mutex::new(())));
        let Some(applicable) = self.applicable(name, &subject) else { return };
        for behaviour in applicable {
            let (subject, turn) = (subject.clone(), turn.clone());
            self.add(name, behaviour, move || {
                let _turn = turn.as_ref().map(|t| t.lock().unwrap_or_else(PoisonError::into_inner));
                trial(behave(subject, behaviour))
            });
        }
    }

    /// The same with a subject of its own for each trial.
    pub fn suite_fresh(
        &mut self,
        name: &str,
        subject: impl Fn() -> Subject + Clone + Send + 'static,
    ) {
        let Some(applicable) = self.applicable(name, &subject()) else { return };
        for behaviour in applicable {
            let subject = subject.clone();
            self.add(name, behaviour, move || trial(behave(subject(), behaviour)));
        }
    }

    /// One trial of the backend's own.
    pub fn test<F, T>(&mut self, name: impl Into<String>, test: F)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = Result<(), Failure>>,
    {
        self.trials.push(Trial::test(name, move || trial(async { test().await })));
    }

    /// Keeps something until all trials have run, and drops it then: a temporary folder, a server.
    pub fn keep(&mut self, value: impl Any) {
        self.kept.push(Box::new(value));
    }

    /// The store of this specification, with this binary for separate processes on it.
    pub fn subject(&self, spec: impl Into<String>) -> Subject {
        subject(self.open, spec.into())
    }

    /// The command that starts this binary as a worker on the store of this specification.
    pub fn spec_worker(&self, spec: impl Into<String>) -> WorkerCommand {
        spec_worker(spec.into())
    }

    fn add(
        &mut self,
        suite: &str,
        behaviour: Behaviour,
        run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
    ) {
        self.trials.push(Trial::test(format!("{suite}::{}", behaviour.name), run));
    }

    /// The behaviours that apply; those that do not are told, so that nobody takes them for passed.
    fn applicable(&mut self, name: &str, subject: &Subject) -> Option<Vec<Behaviour>> {
        let capabilities = runtime().map_err(Failure::from).and_then(|runtime| {
            let capabilities = runtime.block_on(async {
                let store = (subject.open)().await?;
                let capabilities = store.capabilities().clone();
                if !capabilities.is_single_process() {
                    store.close().await;
                }
                Ok(capabilities)
            });
            runtime.shutdown_timeout(Duration::from_secs(1));
            capabilities
        });
        let capabilities = match capabilities {
            Ok(capabilities) => capabilities,
            Err(failure) => {
                let failed = Failed::from(failure);
                self.trials.push(Trial::test(format!("{name}::opens"), move || Err(failed)));
                return None;
            }
        };
        let mut applicable = Vec::new();
        let mut others = Vec::new();
        for behaviour in behaviours() {
            match (behaviour.needs)(&capabilities, subject) {
                Ok(()) => applicable.push(behaviour),
                Err(why) => others.push(format!("{} ({why})", behaviour.name)),
            }
        }
        if !others.is_empty() && !self.quiet {
            eprintln!("{name}: not applicable: {}", others.join(", "));
        }
        Some(applicable)
    }
}

impl std::fmt::Debug for Trials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trials").field("trials", &self.trials.len()).finish_non_exhaustive()
    }
}

async fn behave(subject: Subject, behaviour: Behaviour) -> Result<(), Failure> {
    let report = run_one(&subject, &behaviour).await;
    if report.tries > 1 {
        eprintln!("{}: tried {} times, with longer lives", report.name, report.tries);
    }
    passed(report.outcome)
}

fn passed(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed(why) => Err(Failure::new(why)),
        Outcome::NotApplicable(why) => Err(Failure::new(format!("no longer applicable: {why}"))),
    }
}

fn trial(test: impl Future<Output = Result<(), Failure>>) -> Result<(), Failed> {
    let runtime = runtime()?;
    let result = runtime.block_on(test);
    // A task that blocks must not keep the other trials from their turn.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(result?)
}
