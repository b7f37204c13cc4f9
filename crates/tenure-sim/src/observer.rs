//! The observer: sees every commit the store applies and every handle any process has, and checks
//! the guarantees after every step. The first one that does not hold ends the run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::lease::{Lease, Loss};
use tokio::sync::Notify;

use crate::belief::{Belief, Parting, Seen};
use crate::clock::TrueClock;
use crate::gated;
use crate::history::{Guarantee, History, Verdict, Violation};
use crate::invariants::asking::Asked;
use crate::invariants::attended::{Unattended, request};
use crate::invariants::exclusive::{self, Believer};
use crate::invariants::fence::Written;
use crate::invariants::line::{self, Lines};
use crate::invariants::loss::Went;
use crate::invariants::patience::{self, Expiry};
use crate::invariants::reaping::Reaped;
use crate::invariants::tokens::Tokens;
use crate::invariants::{deadline, gate, loss};
use crate::process::Process;
use crate::server::Request;
use crate::truth::Truth;

/// After a fault, a process may need this long until nothing of it is felt any more.
pub const RECOVERY_MS: i64 = 13_000;

/// Nothing has happened for this long if a waiting process is to be silent.
const QUIET_MS: i64 = 3_000;
/// After this long, it may look by itself.
const RECHECK_MS: i64 = 50_000;

/// A task that waits for a scope.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) process: Arc<Process>,
    pub(crate) line: String,
    pub(crate) since_ms: i64,
    /// When it gives up.
    pub(crate) until_ms: i64,
}

/// What the observer knows.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) history: History,
    pub(crate) violation: Option<Violation>,
    pub(crate) truth: Truth,
    pub(crate) lines: Lines,
    pub(crate) written: Written,
    pub(crate) reaped: Reaped,
    pub(crate) processes: BTreeMap<String, Arc<Process>>,
    pub(crate) slots: BTreeMap<String, usize>,
    pub(crate) waits: BTreeMap<u64, Wait>,
    /// Who has ever revoked what.
    pub(crate) revokers: BTreeSet<(String, String)>,
    /// Loops that run, by lease and token.
    pub(crate) loops: BTreeMap<(String, u64), usize>,
    /// Tasks that each owner has, apart from those that the library runs.
    pub(crate) tasks: BTreeMap<String, usize>,
    /// When the store last told anybody anything.
    pub(crate) news_ms: i64,
    beliefs: Vec<Belief>,
    unattended: Unattended,
    pub(crate) tokens: Tokens,
    pub(crate) asked: Asked,
    /// Who asks for a hand-over of what.
    pub(crate) asking: BTreeSet<(String, String)>,
    count: u64,
    /// Tenures that were believed in, for the summary.
    pub(crate) granted: u64,
    pub(crate) losses: BTreeMap<&'static str, u64>,
}

/// Sees everything.
pub struct Observer {
    /// True time.
    pub clock: TrueClock,
    known: Mutex<Known>,
    violated: Notify,
}

impl Observer {
    /// Sees nothing yet.
    pub fn new(clock: TrueClock) -> Arc<Self> {
        Arc::new(Self { clock, known: Mutex::default(), violated: Notify::new() })
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened.
    pub fn note(&self, who: &str, what: &str) {
        let now = self.clock.now_ms();
        self.known().history.add(now, who, what);
    }

    /// Takes a verdict in; the first bad one ends the run.
    pub fn judge(&self, verdict: Verdict) {
        if let Err(violation) = verdict {
            let now = self.clock.now_ms();
            let mut known = self.known();
            if known.violation.is_none() {
                known.history.add(now, "OBSERVER", &violation.to_string());
                known.violation = Some(violation);
                self.violated.notify_one();
            }
        }
    }

    /// Resolves when a guarantee did not hold.
    pub async fn violated(&self) {
        self.violated.notified().await;
    }

    /// A process has started.
    pub fn started(&self, process: &Arc<Process>) {
        self.known().processes.insert(process.owner.to_string(), Arc::clone(process));
    }

    /// Somebody was handed a lease.
    pub fn granted(&self, belief: Belief) {
        let (who, id, token) = (belief.process.owner.to_string(), belief.id.clone(), belief.token);
        self.note(&belief.process.name, &format!("holds {id} with token {token}"));
        let mut known = self.known();
        known.granted += 1;
        known.beliefs.push(belief);
        let Known { tokens, truth, .. } = &mut *known;
        let verdict = tokens.granted(truth, &id, token, &who);
        drop(known);
        self.judge(verdict);
        self.step();
    }

    /// The handle of a lease that could not be handed over came back.
    ///
    /// Whoever hands over stops renewing; if that drags on, its lease may well be over.
    pub fn kept(&self, mut belief: Belief) {
        belief.first = (belief.look)().and_then(|seen| seen.loss);
        self.known().beliefs.push(belief);
        self.step();
    }

    /// A loop of a gate starts. Those of an earlier term have ended by then, unless their process could not
    /// know: it stands still, or somebody else ended its tenure.
    pub(crate) fn loop_starts(&self, key: &(String, u64)) {
        let now = self.clock.now_ms();
        let mut known = self.known();
        let (id, token) = key;
        let earlier = known.loops.range((id.clone(), 0)..key.clone());
        let earlier = earlier.filter(|(_, running)| **running > 0);
        let wrong = earlier.map(|((_, token), _)| *token).find_map(|earlier| {
            let tenure = known.truth.tenure(id, earlier)?;
            let process = known.processes.get(&tenure.owner)?;
            let excused = deadline::is_excused(&known.truth, id, earlier)
                || process.is_dead()
                || process.is_frozen()
                || process.health(now).fault_at >= now;
            (!excused).then(|| gate::beside(id, *token, earlier, &process.who))
        });
        *known.loops.entry(key.clone()).or_default() += 1;
        drop(known);
        self.judge(wrong.unwrap_or(Ok(())));
    }

    /// A process is about to revoke this.
    pub fn revokes(&self, process: &Process, id: &str) {
        self.known().revokers.insert((process.owner.to_string(), id.to_owned()));
    }

    /// A task begins to wait; it says when it is done with [`Observer::done_waiting`].
    pub fn waits(&self, process: &Arc<Process>, line: &str, until_ms: i64) -> u64 {
        let since_ms = self.clock.now_ms();
        let mut known = self.known();
        known.count += 1;
        let (id, process, line) = (known.count, Arc::clone(process), line.to_owned());
        known.waits.insert(id, Wait { process, line, since_ms, until_ms });
        id
    }

    /// The task waits no longer.
    pub fn done_waiting(&self, wait: u64) {
        self.known().waits.remove(&wait);
    }

    /// A process asks the store something: not if it only waits and nothing happens.
    pub fn asked(&self, process: &Process, what: &str) {
        let (now, owner) = (self.clock.now_ms(), process.owner.to_string());
        let known = self.known();
        let waits = known.waits.values().filter(|wait| wait.process.owner == process.owner);
        let (mut count, mut latest, mut earliest_end) = (0, known.news_ms, i64::MAX);
        let mut held = true;
        for wait in waits {
            count += 1;
            latest = latest.max(wait.since_ms);
            earliest_end = earliest_end.min(wait.until_ms);
            held &= known.truth.holder(&wait.line).is_some();
        }
        let only_waits = known.tasks.get(&owner).is_some_and(|tasks| *tasks == count);
        let holds = known.beliefs.iter().any(|belief| belief.process.owner == process.owner);
        let latest = latest.max(process.health(now).disturbed_until);
        let quiet = latest + QUIET_MS < now && now < latest + RECHECK_MS && now + 50 < earliest_end;
        drop(known);
        if only_waits && held && !holds && quiet {
            self.judge(line::silent(&owner, what, latest));
        }
    }

    /// A holder that waited for its loss since some instant was told of it.
    pub fn told(&self, process: &Process, id: &str, loss: &Loss, until_ms: i64, since_ms: i64) {
        let now = self.clock.now_ms();
        self.note(&process.name, &format!("is told that {id} is lost: {loss}"));
        if *loss == Loss::Expired {
            let woke = process.health(now).fault_at.max(since_ms);
            self.judge(deadline::told_in_time(&process.name, id, until_ms, woke, now));
        }
    }

    /// A holder has let go of a lease, and was told how that ended.
    pub fn parted(&self, process: &Process, parting: &Parting, confirmed: bool) {
        let (id, token) = (parting.observer.id(), parting.observer.token());
        let (who, now) = (process.who.as_str(), self.clock.now_ms());
        let Some(loss) = parting.observer.loss() else {
            let message = format!("{who} let go of {id} with token {token}, and is told it holds");
            return self.judge(Err(Violation::new(Guarantee::G6, message)));
        };
        let went = match (process.health(now).disturbed_until < parting.since_ms, confirmed) {
            (true, _) => Went::Well,
            (false, true) => Went::Confirmed,
            (false, false) => Went::InDoubt,
        };
        let mut known = self.known();
        for (id, token) in known.truth.settle(now) {
            known.history.add(now, "store", &format!("{id} token {token} has expired"));
        }
        let verdict = match &parting.before {
            Some(before) => loss::keeps_its_story(who, id, Some(before), Some(&loss)),
            None => {
                *known.losses.entry(loss.code()).or_default() += 1;
                let what = format!("{id} token {token}: {loss}");
                known.history.add(now, &process.name, &what);
                loss::is_true_of_letting_go(&known.truth, who, id, token, &loss, went)
            }
        };
        drop(known);
        self.judge(verdict);
    }

    /// Checks all that depends on what processes believe.
    pub fn step(&self) {
        let now = self.clock.now_ms();
        let mut known = self.known();
        if known.violation.is_some() {
            return;
        }
        for (id, token) in known.truth.settle(now) {
            known.history.add(now, "store", &format!("{id} token {token} has expired"));
        }
        let Known { beliefs, truth, losses, history, .. } = &mut *known;
        let mut verdict = Ok(());
        let mut believers = Vec::new();
        beliefs.retain_mut(|belief| {
            // Nobody in a frozen process can look, and looking from outside would tell it things.
            if belief.process.is_frozen() {
                return true;
            }
            let Some(seen) = (belief.look)() else { return false };
            if verdict.is_ok() {
                let was_lost = belief.first.is_some();
                verdict = check(truth, belief, &seen, now);
                if let (false, Some(loss)) = (was_lost, &belief.first) {
                    *losses.entry(loss.code()).or_default() += 1;
                    let what = format!("{} token {}: {loss}", belief.id, belief.token);
                    history.add(now, &belief.process.name, &what);
                }
                if seen.loss.is_none() && !deadline::is_excused(truth, &belief.id, belief.token) {
                    let (process, id) = (Arc::clone(&belief.process), belief.id.clone());
                    believers.push(Believer { process, id, token: belief.token });
                }
            }
            true
        });
        let verdict = verdict.and_then(|()| exclusive::believers(&believers));
        drop(known);
        self.judge(verdict);
    }

    /// Looks whether somebody waits for what has been free for a while, or holds what nobody has.
    pub fn tick(&self) {
        self.step();
        self.look_after();
        let now = self.clock.now_ms();
        let known = self.known();
        let mut verdict = Ok(());
        for wait in known.waits.values() {
            let Some(free) = known.truth.free_since(&wait.line) else { continue };
            let process = &wait.process;
            if process.is_dead() || process.is_frozen() || process.is_partitioned() {
                continue;
            }
            let well = process.health(now).disturbed_until;
            let since = free.max(wait.since_ms).max(well);
            let ahead = known.lines.waiters(&wait.line, now).len();
            verdict = verdict.and_then(|()| {
                line::woken(&process.owner.to_string(), &wait.line, since, ahead, now)
            });
        }
        drop(known);
        self.judge(verdict);
    }
}

impl Observer {
    /// A holder takes up what it was asked for.
    pub(crate) fn taken_up(&self, lease: &Lease, by: &str) {
        let mut known = self.known();
        // Nobody stands behind what the network repeats after it was withdrawn.
        let verdict = match known.unattended.is_stray(&request(&lease.lease_key())) {
            true => Ok(()),
            false => known.asked.taken_up(lease.id(), lease.token(), by),
        };
        drop(known);
        self.judge(verdict);
    }

    /// A request was applied that came a second time, or long after it was sent.
    pub fn strayed(&self, request: &Request) {
        if let Request::Commit(commit) = request {
            self.known().unattended.strayed(commit);
        }
    }

    /// Looks for leases that are held in the store and by nobody.
    fn look_after(&self) {
        let now = self.clock.now_ms();
        let mut known = self.known();
        let Known { truth, beliefs, processes, unattended, .. } = &mut *known;
        let mut verdict = Ok(());
        for (id, token) in truth.held() {
            let tenure = truth.tenure(id, token);
            let tenure = tenure.filter(|tenure| !unattended.is_stray(&tenure.nonce));
            let process = tenure.and_then(|tenure| processes.get(&tenure.owner));
            let believed = beliefs.iter().any(|belief| belief.id == *id && belief.token == token);
            // A gate may have to wait for its slow loops after the one through which we look.
            let gated = *id == gated::scope().as_str();
            match process.filter(|process| !process.is_dead() && !believed && !gated) {
                Some(process) => {
                    let well = process.health(now).disturbed_until;
                    let found = unattended.unattended(&process.who, id, token, well, now);
                    verdict = verdict.and(found);
                }
                None => unattended.attended(id, token),
            }
        }
        drop(known);
        self.judge(verdict);
    }
}

/// Checks one handle.
fn check(truth: &Truth, belief: &mut Belief, seen: &Seen, now: i64) -> Verdict {
    let who = belief.process.who.as_str();
    let (id, token) = (&belief.id, belief.token);
    let until_ms = belief.process.clock.true_ms(seen.valid_until);
    loss::keeps_its_story(who, id, belief.first.as_ref(), seen.loss.as_ref())?;
    let Some(loss) = &seen.loss else {
        return deadline::covered(truth, who, id, token, until_ms);
    };
    if belief.first.is_some() {
        return Ok(());
    }
    belief.first = Some(loss.clone());
    // What somebody else has ended could not be renewed.
    let ended = truth.tenure(id, token).and_then(|tenure| tenure.end.as_ref());
    let ended = ended.is_some_and(|(at, _)| *at < until_ms);
    if *loss == Loss::Expired && !ended {
        let ttl_ms = i64::try_from(seen.ttl.as_millis()).unwrap_or(i64::MAX);
        // The deadline is nine tenths of a life after the last renewal; the next was due after one
        // third. Two in a hundred are for the drift of the clock.
        let due_ms = until_ms - ttl_ms * 55 / 100;
        let fault_ms = belief.process.health(now).fault_at;
        patience::had_to_expire(who, id, Expiry { due_ms, until_ms, fault_ms, now_ms: now })?;
    }
    loss::is_true(truth, who, id, token, loss)
}
