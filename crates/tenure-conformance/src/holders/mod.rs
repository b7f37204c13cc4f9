//! An ordeal for holders: several real processes take turns at holding a lease and count under it,
//! while they are killed, frozen and woken, told to let go or to end, and cut off from their store.
//! They hold it by themselves or behind a gate.
//!
//! A process that is frozen for longer than its lease lives wakes up believing what it last knew. It
//! has to notice by its own clock that its tenure is over, and its writes have to fail, though it may
//! have looked at its lease just before it froze. `holder` is the process, or `gated` is, `crew` drives
//! it, `treatment` disturbs it, `record` keeps what it told, and `verify` judges.

mod crew;
mod gated;
pub(crate) mod holder;
mod record;
mod treatment;
mod verify;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tenure::random::SeededRandom;
use tenure::store::Reach;
use tokio::time::timeout;

use crate::context::Context;
#[cfg(feature = "harness")]
use crate::harness::rounds;
use crate::{Failure, Subject};
use crew::Crew;
use holder::Hold;
use record::Record;
use treatment::{Tally, treat, treatments};
use verify::{Books, most_at_once};

/// The life of a lease: short, because most rounds wait for one to end.
const LIFE: Duration = Duration::from_millis(700);
/// The whole ordeal has an end, whatever hangs.
const AT_LONGEST: Duration = Duration::from_secs(120);

/// What holders are put through.
#[derive(Clone)]
pub struct Ordeal {
    /// Processes that hold in turn.
    pub holders: u32,
    /// A group of so many slots instead of one scope.
    pub slots: Option<u32>,
    /// Each process runs a gate, whose loop counts, instead of holding by itself.
    pub gated: bool,
    /// Disturbances, one after the other.
    pub rounds: u32,
    /// Decides their order and whom they meet.
    pub seed: u64,
    /// Disturbances of the store itself, if it has any.
    pub outages: Vec<Outage>,
}

impl Ordeal {
    /// Five processes in turn on one scope.
    pub fn on_a_scope(rounds: u32, seed: u64) -> Self {
        let outages = Vec::new();
        Self { holders: 5, slots: None, gated: false, rounds, seed, outages }
    }

    /// Five processes on two slots.
    pub fn on_two_slots(rounds: u32, seed: u64) -> Self {
        Self { slots: Some(2), ..Self::on_a_scope(rounds, seed) }
    }

    /// Four processes, each with a gate on the same scope.
    pub fn of_gates(rounds: u32, seed: u64) -> Self {
        Self { holders: 4, gated: true, ..Self::on_a_scope(rounds, seed) }
    }
}

/// Something that happens to the store while it is in use. It returns when that is over.
#[derive(Clone)]
pub struct Outage {
    /// For messages.
    pub name: &'static str,
    /// Lets it happen.
    pub happen: Arc<dyn Fn() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>,
}

/// What an ordeal amounted to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Processes started.
    pub processes: usize,
    /// Tenures, each of which ended somehow.
    pub tenures: usize,
    /// Increments in the journal.
    pub counts: usize,
    /// Those of them of which no process was told.
    pub settled_by_the_journal: usize,
    /// Writes of former holders that the fence stopped.
    pub fenced_off: u64,
    /// Frozen holders whose lease another had before they woke.
    pub overtaken: u32,
    /// How many believed to hold at once, at most.
    pub most_at_once: u32,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processes, tenures, counts, settled_by_the_journal, .. } = self;
        let Self { fenced_off, overtaken, .. } = self;
        write!(
            f,
            "{processes} processes, {tenures} tenures, {counts} counts \
             ({settled_by_the_journal} known from the journal alone), \
             {overtaken} overtaken while frozen, {fenced_off} late writes fenced off"
        )
    }
}

/// Puts holders through an ordeal on this store, and judges what they did.
///
/// # Errors
/// What was lost or overlapped, or what did not happen in time.
pub async fn run(subject: &Subject, ordeal: &Ordeal) -> Result<Account, Failure> {
    let ctx = Context::open_new(subject).await?;
    let result = match timeout(AT_LONGEST, endure(&ctx, ordeal)).await {
        Ok(result) => result,
        Err(_) => Err(Failure::new(format!("no end after {AT_LONGEST:?}"))),
    };
    ctx.tidy().await;
    ctx.close().await;
    result.map_err(|failure| failure.during(format!("seed {}", ordeal.seed)))
}

/// Adds the ordeals of a store that several processes can use: on a scope, on two slots, and of gates.
/// Each has a store of its own, so that none waits for another's frozen processes.
/// Every kind of disturbance comes once before a landing, and twice in the long run.
#[cfg(feature = "harness")]
pub fn add(trials: &mut crate::harness::Trials, name: &str, spec: impl Fn(&str) -> String) {
    let subject = trials.subject(spec("holders_of_a_scope"));
    trials.test(format!("{name}::holders_of_a_scope_endure"), move || async move {
        let account = run(&subject, &Ordeal::on_a_scope(rounds(7, 14), 1)).await?;
        eprintln!("holders of a scope: {account}");
        Ok(())
    });
    add_slots(trials, name, spec("holders_of_slots"));
    add_gates(trials, name, spec("gates"));
}

/// The one on slots alone, for a store that has more to endure on a scope.
#[cfg(feature = "harness")]
pub fn add_slots(trials: &mut crate::harness::Trials, name: &str, spec: String) {
    let subject = trials.subject(spec);
    trials.test(format!("{name}::holders_of_slots_endure"), move || async move {
        let account = run(&subject, &Ordeal::on_two_slots(rounds(5, 10), 2)).await?;
        eprintln!("holders of slots: {account}");
        Ok(())
    });
}

/// The one of gates alone, for the same.
#[cfg(feature = "harness")]
pub fn add_gates(trials: &mut crate::harness::Trials, name: &str, spec: String) {
    let subject = trials.subject(spec);
    trials.test(format!("{name}::gates_of_processes_endure"), move || async move {
        let account = run(&subject, &Ordeal::of_gates(rounds(6, 12), 4)).await?;
        eprintln!("gates: {account}");
        Ok(())
    });
}

async fn endure(ctx: &Context, ordeal: &Ordeal) -> Result<Account, Failure> {
    let what = match ordeal.slots {
        None => ctx.scope("turns")?.to_string(),
        Some(_) => ctx.namespace("turns")?.to_string(),
    };
    let hold = Hold {
        name: String::new(),
        what,
        slots: ordeal.slots,
        gated: ordeal.gated,
        ttl_ms: u64::try_from(ctx.ttl_of(LIFE).as_millis()).unwrap_or(u64::MAX),
        counters: ctx.kind("counter"),
        journal: ctx.kind("journal"),
    };
    // A process of this host may have a lock of the store when it freezes, and nobody goes on then.
    let locks = ctx.caps().reach != Reach::Network;
    let mut crew = Crew::new(ctx.worker()?, hold, locks);
    for _ in 0..ordeal.holders {
        crew.start_one().await?;
    }
    let random = SeededRandom::new(ordeal.seed);
    let mut tally = Tally::default();
    for (round, treatment) in treatments(ordeal, &random).into_iter().enumerate() {
        let during = format!("round {round}, {treatment:?}");
        let done = treat(&mut crew, &treatment, &random, &mut tally).await;
        done.map_err(|failure| failure.during(during))?;
    }
    crew.stop_all().await?;
    let record = crew.record();
    let books = Books::read(ctx.store(), &crew.hold().counters, &crew.hold().journal).await?;
    let fenced = ctx.caps().multi_object_commits;
    match fenced {
        true => books.verify(&record, ordeal.slots.unwrap_or(1))?,
        false => books.verify_unfenced(&record, ordeal.slots.unwrap_or(1))?,
    }
    let account = account(&books, &record, &tally);
    ensure!(account.counts >= ordeal.rounds as usize, "hardly anybody counted: {account}");
    // A frozen holder may have had the store's lock; not all of them, though.
    let overtaken = tally.overtaken > 0 || tally.frozen == 0;
    ensure!(overtaken, "no lease of {} frozen holders was taken over: {account}", tally.frozen);
    // Loops of a gate are told to stop, and write nothing late on purpose.
    let nobody = fenced && !ordeal.gated && tally.frozen > 0 && account.fenced_off == 0;
    ensure!(!nobody, "nobody was fenced off: {account}");
    let wanted = ordeal.slots.unwrap_or(1);
    ensure_eq!(account.most_at_once, wanted, "holders at once");
    Ok(account)
}

fn account(books: &Books, record: &Record, tally: &Tally) -> Account {
    let beliefs = record.beliefs();
    Account {
        processes: record.told.len(),
        tenures: beliefs.len(),
        counts: books.journal.len(),
        settled_by_the_journal: books.journal.len()
            - record.told.values().map(|told| told.counted.len()).sum::<usize>(),
        fenced_off: record.told.values().map(|told| told.fenced_off).sum(),
        overtaken: tally.overtaken,
        most_at_once: most_at_once(&beliefs),
    }
}
