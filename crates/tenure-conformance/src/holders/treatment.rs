//! What is done to the holders, one thing after the other.

use std::fmt;
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::random::{Random, below};

use super::crew::Crew;
use super::holder::{RELEASE, nanos};
use super::record::Record;
use super::{Ordeal, Outage};
use crate::Failure;

/// Counts between two disturbances, at most.
const COUNTS: u64 = 30;
/// Holders that are frozen in one round until somebody takes over from one of them.
const FROZEN: u32 = 3;

/// One disturbance.
#[derive(Clone)]
pub(super) enum Treatment {
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
    /// The holder is told to end, as a service is: by `SIGTERM`.
    Terminate,
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
            Self::Terminate => "a holder told to end",
            Self::Outage(outage) => outage.name,
        })
    }
}

/// What came of freezing holders for longer than their leases live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub frozen: u32,
    /// Those whose lease another had before they woke.
    pub overtaken: u32,
}

/// As many as there are rounds, of each kind about as many, in the seed's order.
pub(super) fn treatments(ordeal: &Ordeal, random: &dyn Random) -> Vec<Treatment> {
    use Treatment::{FreezeBriefly, FreezeLong, Kill, KillBesideFrozen, Release, Terminate};
    let outages = ordeal.outages.iter().cloned().map(Treatment::Outage);
    let own = match ordeal.gated {
        false => [FreezeLong, Kill, Release, FreezeBriefly, FreezeLong, KillBesideFrozen],
        true => [Kill, Terminate, FreezeLong, KillBesideFrozen, Terminate, FreezeBriefly],
    };
    let kinds: Vec<Treatment> = outages.chain(own).collect();
    let mut treatments: Vec<Treatment> =
        kinds.into_iter().cycle().take(ordeal.rounds as usize).collect();
    for last in (1..treatments.len()).rev() {
        let other = usize::try_from(below(random, last as u64 + 1)).unwrap_or(last);
        treatments.swap(last, other);
    }
    treatments
}

/// Whoever is about to be disturbed: a process, and what it holds.
struct Holder {
    name: String,
    lease: String,
    token: u64,
}

impl Holder {
    /// One of those who hold. Somebody counts again since the last round: that disturbance is
    /// overcome.
    async fn at_work(crew: &Crew<'_>, random: &dyn Random) -> Result<Self, Failure> {
        loop {
            let enough = crew.record().counts + 1 + below(random, COUNTS);
            let at_work =
                |record: &Record| record.counts >= enough && record.holders().next().is_some();
            crew.until("somebody holds and counts", at_work).await?;
            // At any point of the next count.
            tokio::time::sleep(Duration::from_millis(below(random, 8))).await;
            let record = crew.record();
            let holders: Vec<_> = record.holders().collect();
            if let Some((name, tenure)) = pick(&holders, random) {
                let (name, lease) = ((*name).clone(), tenure.lease.clone());
                return Ok(Self { name, lease, token: tenure.token });
            }
        }
    }

    fn has_successor(&self, record: &Record) -> bool {
        record.has_successor(&self.lease, self.token)
    }

    fn has_ended(&self, record: &Record) -> bool {
        record.told[&self.name].ended.contains_key(&self.token)
    }
}

/// Disturbs whoever holds.
pub(super) async fn treat(
    crew: &mut Crew<'_>,
    treatment: &Treatment,
    random: &dyn Random,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let holder = Holder::at_work(crew, random).await?;
    let name = &holder.name;
    match treatment {
        Treatment::Kill => {
            crew.kill(name).await?;
            crew.start_one().await
        }
        Treatment::KillBesideFrozen => {
            let waiting = crew.waiting();
            let beside = pick(&waiting, random).cloned();
            if let Some(beside) = &beside {
                crew.freeze(beside)?;
            }
            crew.kill(name).await?;
            crew.start_one().await?;
            let Some(beside) = &beside else { return Ok(()) };
            crew.overtakes("a successor while a waiter is frozen", |r| holder.has_successor(r))
                .await?;
            crew.thaw(beside)
        }
        Treatment::FreezeLong => {
            let mut holder = holder;
            for _ in 0..FROZEN {
                tally.frozen += 1;
                if freeze_long(crew, &holder).await? {
                    tally.overtaken += 1;
                    break;
                }
                holder = Holder::at_work(crew, random).await?;
            }
            Ok(())
        }
        Treatment::FreezeBriefly => {
            crew.freeze(name)?;
            tokio::time::sleep(crew.ttl() / 4).await;
            crew.thaw(name)
        }
        Treatment::Release => {
            crew.tell(name, RELEASE).await?;
            crew.until("a holder lets go when told", |r| holder.has_ended(r)).await
        }
        Treatment::Terminate => {
            crew.terminate(name).await?;
            ensure!(holder.has_ended(&crew.record()), "{name} ended without a word of its tenure");
            crew.start_one().await
        }
        Treatment::Outage(outage) => (outage.happen)().await,
    }
}

/// Freezes a holder for longer than its lease lives. Whether another had the lease before it woke.
async fn freeze_long(crew: &mut Crew<'_>, holder: &Holder) -> Result<bool, Failure> {
    let (name, token) = (&holder.name, holder.token);
    let frozen_at = nanos(SystemClock.uptime());
    crew.freeze(name)?;
    let overtaken =
        crew.overtakes("a successor of a frozen holder", |r| holder.has_successor(r)).await?;
    crew.thaw(name)?;
    let what = "a holder that was frozen for long tells its loss";
    crew.until(what, |record| holder.has_ended(record)).await?;
    let told = crew.record().told[name].clone();
    let how = told.ended[&token].as_str();
    // After an outage it may have been about to let go by itself.
    let before = told.beliefs.iter().any(|b| b.token == token && b.until <= frozen_at);
    ensure!(before || matches!(how, "expired" | "taken"), "frozen for long, and {how}");
    Ok(overtaken)
}

fn pick<'a, T>(from: &'a [T], random: &dyn Random) -> Option<&'a T> {
    from.get(usize::try_from(below(random, from.len().max(1) as u64)).ok()?)
}
