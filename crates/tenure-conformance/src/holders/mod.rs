//! An ordeal for holders: several real processes take turns at holding a lease and count under it,
//! while they are killed, frozen and woken, told to let go, and cut off from their store.
//!
//! A process that is frozen for longer than its lease lives wakes up believing what it last knew. It
//! has to notice by its own clock that its tenure is over, and its writes have to fail, though it may
//! have looked at its lease just before it froze. `holder` is the process, `crew` drives it, `record`
//! keeps what it told, and `verify` judges.

mod crew;
pub(crate) mod holder;
mod record;
mod verify;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tenure::clock::{Clock, SystemClock};
use tenure::random::{Random, SeededRandom, below};
use tokio::time::timeout;

use crate::context::Context;
use crate::{Failure, Subject};
use crew::Crew;
use holder::{Hold, RELEASE, nanos};
use record::Record;
use verify::{Books, most_at_once};

/// The life of a lease: short, because most rounds wait for one to end.
const LIFE: Duration = Duration::from_millis(700);
/// Enough for every kind of disturbance to come twice.
#[cfg(feature = "harness")]
const ROUNDS: u32 = 14;
#[cfg(feature = "harness")]
const ROUNDS_OF_SLOTS: u32 = 10;
/// Counts between two disturbances, at most.
const COUNTS: u64 = 30;
/// The whole ordeal has an end, whatever hangs.
const AT_LONGEST: Duration = Duration::from_secs(120);

/// What holders are put through.
#[derive(Clone)]
pub struct Ordeal {
    /// Processes that hold in turn.
    pub holders: u32,
    /// A group of so many slots instead of one scope.
    pub slots: Option<u32>,
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
        Self { holders: 5, slots: None, rounds, seed, outages: Vec::new() }
    }

    /// Five processes on two slots.
    pub fn on_two_slots(rounds: u32, seed: u64) -> Self {
        Self { slots: Some(2), ..Self::on_a_scope(rounds, seed) }
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
    /// How many believed to hold at once, at most.
    pub most_at_once: u32,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processes, tenures, counts, settled_by_the_journal, fenced_off, .. } = self;
        write!(
            f,
            "{processes} processes, {tenures} tenures, {counts} counts \
             ({settled_by_the_journal} known from the journal alone), \
             {fenced_off} late writes fenced off"
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

/// Adds the ordeals of a store that several processes can use: on a scope, and on two slots. Each has a
/// store of its own, so that neither waits for the other's frozen processes.
#[cfg(feature = "harness")]
pub fn add(trials: &mut crate::harness::Trials, name: &str, spec: impl Fn(&str) -> String) {
    let subject = trials.subject(spec("holders_of_a_scope"));
    trials.test(format!("{name}::holders_of_a_scope_endure"), move || async move {
        let account = run(&subject, &Ordeal::on_a_scope(ROUNDS, 1)).await?;
        eprintln!("holders of a scope: {account}");
        Ok(())
    });
    add_slots(trials, name, spec("holders_of_slots"));
}

/// The one on slots alone, for a store that has more to endure on a scope.
#[cfg(feature = "harness")]
pub fn add_slots(trials: &mut crate::harness::Trials, name: &str, spec: String) {
    let subject = trials.subject(spec);
    trials.test(format!("{name}::holders_of_slots_endure"), move || async move {
        let account = run(&subject, &Ordeal::on_two_slots(ROUNDS_OF_SLOTS, 2)).await?;
        eprintln!("holders of slots: {account}");
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
        ttl_ms: u64::try_from(ctx.ttl_of(LIFE).as_millis()).unwrap_or(u64::MAX),
        counters: ctx.kind("counter"),
        journal: ctx.kind("journal"),
    };
    let mut crew = Crew::new(ctx.worker()?, hold);
    for _ in 0..ordeal.holders {
        crew.start_one().await?;
    }
    let random = SeededRandom::new(ordeal.seed);
    let mut frozen_long = 0;
    for (round, treatment) in treatments(ordeal, &random).into_iter().enumerate() {
        let during = format!("round {round}, {treatment:?}");
        let done = treat(&mut crew, &treatment, &random).await;
        frozen_long += u32::from(done.map_err(|failure| failure.during(during))?);
    }
    crew.stop_all().await?;
    let record = crew.record();
    let books = Books::read(ctx.store(), &crew.hold().counters, &crew.hold().journal).await?;
    let fenced = ctx.caps().multi_object_commits;
    match fenced {
        true => books.verify(&record, ordeal.slots.unwrap_or(1))?,
        false => books.verify_unfenced(&record, ordeal.slots.unwrap_or(1))?,
    }
    let account = account(&books, &record);
    ensure!(account.counts >= ordeal.rounds as usize, "hardly anybody counted: {account}");
    // A frozen holder may have had the store's lock; not all of them, though.
    let nobody = fenced && frozen_long > 0 && account.fenced_off == 0;
    ensure!(!nobody, "nobody was fenced off: {account}");
    let wanted = ordeal.slots.unwrap_or(1);
    ensure_eq!(account.most_at_once, wanted, "holders at once");
    Ok(account)
}

fn account(books: &Books, record: &Record) -> Account {
    let beliefs = record.beliefs();
    Account {
        processes: record.told.len(),
        tenures: beliefs.len(),
        counts: books.journal.len(),
        settled_by_the_journal: books.journal.len()
            - record.told.values().map(|told| told.counted.len()).sum::<usize>(),
        fenced_off: record.told.values().map(|told| told.fenced_off).sum(),
        most_at_once: most_at_once(&beliefs),
    }
}

/// One disturbance.
#[derive(Clone)]
enum Treatment {
    /// The holder dies.
    Kill,
    /// The holder dies while somebody who waits is frozen, perhaps the next in line.
    KillBesideFrozen,
    /// The holder is frozen for longer than its lease lives.
    FreezeLong,
    /// The holder is frozen for a part of that.
    FreezeBriefly,
    /// The holder lets go.
    Release,
    /// Something happens to the store.
    Outage(Outage),
}

impl fmt::Debug for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "a killed holder",
            Self::KillBesideFrozen => "a killed holder and a frozen waiter",
            Self::FreezeLong => "a holder frozen for longer than its lease",
            Self::FreezeBriefly => "a holder frozen for less than its lease",
            Self::Release => "a release",
            Self::Outage(outage) => outage.name,
        })
    }
}

/// As many as there are rounds, of each kind about as many, in the seed's order.
fn treatments(ordeal: &Ordeal, random: &dyn Random) -> Vec<Treatment> {
    use Treatment::{FreezeBriefly, FreezeLong, Kill, KillBesideFrozen, Release};
    let outages = ordeal.outages.iter().cloned().map(Treatment::Outage);
    let own = [FreezeLong, Kill, Release, FreezeBriefly, FreezeLong, KillBesideFrozen];
    let kinds: Vec<Treatment> = outages.chain(own).collect();
    let mut treatments: Vec<Treatment> =
        kinds.into_iter().cycle().take(ordeal.rounds as usize).collect();
    for last in (1..treatments.len()).rev() {
        let other = usize::try_from(below(random, last as u64 + 1)).unwrap_or(last);
        treatments.swap(last, other);
    }
    treatments
}

/// Disturbs whoever holds. Whether it was frozen for longer than its lease lives.
async fn treat(
    crew: &mut Crew<'_>,
    treatment: &Treatment,
    random: &dyn Random,
) -> Result<bool, Failure> {
    // Somebody counts again since the last round: that disturbance is overcome.
    let enough = crew.record().counts + 1 + below(random, COUNTS);
    let at_work = |record: &Record| record.counts >= enough && record.holders().next().is_some();
    crew.until("somebody holds and counts", at_work).await?;
    // At any point of the next count.
    tokio::time::sleep(Duration::from_millis(below(random, 8))).await;
    let record = crew.record();
    let holders: Vec<_> = record.holders().collect();
    let Some(&(name, tenure)) = pick(&holders, random) else { return Ok(false) };
    let (lease, token) = (tenure.lease.as_str(), tenure.token);
    // Of a lease that nobody touches any more, everybody sees the end by then.
    let lapsed = crew.ttl() * 3;
    match treatment {
        Treatment::Kill => {
            crew.kill(name).await?;
            crew.start_one().await?;
        }
        Treatment::KillBesideFrozen => {
            let waiting = crew.waiting();
            let beside = pick(&waiting, random).cloned();
            if let Some(beside) = &beside {
                crew.freeze(beside)?;
            }
            crew.kill(name).await?;
            crew.start_one().await?;
            if let Some(beside) = &beside {
                crew.within(lapsed, |record| record.has_successor(lease, token)).await?;
                crew.thaw(beside)?;
            }
        }
        Treatment::FreezeLong => {
            let frozen_at = nanos(SystemClock.uptime());
            crew.freeze(name)?;
            // Unless it has the store's own lock, which no lease can do anything about.
            crew.within(lapsed, |record| record.has_successor(lease, token)).await?;
            crew.thaw(name)?;
            let ended = |record: &Record| record.told[name].ended.contains_key(&token);
            crew.until("a holder that was frozen for long tells its loss", ended).await?;
            let told = crew.record().told[name].clone();
            let how = told.ended[&token].as_str();
            // After an outage it may have been about to let go by itself.
            let before = told.beliefs.iter().any(|b| b.token == token && b.until <= frozen_at);
            ensure!(before || matches!(how, "expired" | "taken"), "frozen for long, and {how}");
            return Ok(true);
        }
        Treatment::FreezeBriefly => {
            crew.freeze(name)?;
            tokio::time::sleep(crew.ttl() / 4).await;
            crew.thaw(name)?;
        }
        Treatment::Release => {
            crew.tell(name, RELEASE).await?;
            let ended = |record: &Record| record.told[name].ended.contains_key(&token);
            crew.until("a holder lets go when told", ended).await?;
        }
        Treatment::Outage(outage) => (outage.happen)().await?,
    }
    Ok(false)
}

fn pick<'a, T>(from: &'a [T], random: &dyn Random) -> Option<&'a T> {
    from.get(usize::try_from(below(random, from.len().max(1) as u64)).ok()?)
}
