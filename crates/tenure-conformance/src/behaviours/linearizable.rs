//! Recorded histories of concurrent clients, checked for an order that explains every answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure::random::{Random, SeededRandom, below};
use tenure::store::faulty::FaultPlan;
use tenure::store::{Commit, Expect, Put, Query, Store, Written};
use tenure::{Error, Key};

use super::faults::faulty;
use crate::context::Context;
use crate::helpers::number;
use crate::linearize::{
    Action, Answer, Call, Condition, Effect, Entry, LONGEST, Operation, Verdict, check,
};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

/// States the checker may try for one history.
const BUDGET: usize = 200_000;
/// Operations of each client in a history that is short enough for a verdict.
const SHORTEST: usize = 5;
const KEYS: usize = 3;

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            concurrent_histories_are_linearizable,
            [],
            "reads, conditional writes and deletes of six clients over three keys"
        ),
        behaviour!(
            concurrent_commits_are_linearizable,
            [multi],
            "the same with commits and lists over several keys"
        ),
        behaviour!(
            histories_with_faults_are_linearizable,
            [],
            "the same while requests and replies get lost"
        ),
    ]
}

async fn concurrent_histories_are_linearizable(ctx: Context) -> Result<(), Failure> {
    for seed in 0..4 {
        run(&ctx, Plan { seed, clients: 6, each: 40, multi: false, faults: 0 }).await?;
    }
    Ok(())
}

async fn concurrent_commits_are_linearizable(ctx: Context) -> Result<(), Failure> {
    for seed in 10..14 {
        run(&ctx, Plan { seed, clients: 6, each: 40, multi: true, faults: 0 }).await?;
    }
    Ok(())
}

async fn histories_with_faults_are_linearizable(ctx: Context) -> Result<(), Failure> {
    let multi = ctx.caps().multi_object_commits;
    for seed in 20..24 {
        run(&ctx, Plan { seed, clients: 5, each: 16, multi, faults: 12 }).await?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    clients: usize,
    each: usize,
    multi: bool,
    /// Calls in a hundred that go wrong.
    faults: u64,
}

/// A history with too many possible orders is no verdict: a shorter one is recorded then, on other keys.
async fn run(ctx: &Context, mut plan: Plan) -> Result<(), Failure> {
    loop {
        match record_and_check(ctx, plan).await? {
            Verdict::Linearizable => return Ok(()),
            Verdict::Exhausted if plan.each > SHORTEST => {
                tracing::warn!(?plan, "a history had too many possible orders to try them all");
                plan = Plan { seed: plan.seed + 100, each: plan.each / 2, ..plan };
            }
            Verdict::Exhausted => {
                return Err(Failure::new(format!("{plan:?}: too many possible orders to try")));
            }
            Verdict::Violation { explained, stuck } => {
                return Err(Failure::new(format!(
                    "{plan:?}: no order explains the answers; {explained} of them fit, then: {}",
                    stuck.join("; ")
                )));
            }
        }
    }
}

async fn record_and_check(ctx: &Context, plan: Plan) -> Result<Verdict, Failure> {
    let handles = ctx.handles(3).await?;
    let keys: Arc<[Key]> =
        (0..KEYS).map(|n| Key::new(ctx.kind(&format!("s{}", plan.seed)), n.to_string())).collect();
    // One counter orders sending and answering across all clients.
    let ticks = Arc::new(AtomicU64::new(1));
    let clients = (0..plan.clients).map(|n| {
        let store = match plan.faults {
            0 => handles[n % handles.len()].clone(),
            percent => {
                let faults = FaultPlan::seeded(plan.seed * 100 + n as u64, percent);
                faulty(&handles[n % handles.len()], &faults)
            }
        };
        let client = Client {
            store,
            keys: Arc::clone(&keys),
            ticks: Arc::clone(&ticks),
            random: SeededRandom::new(plan.seed * 1000 + n as u64),
            multi: plan.multi,
            known: [None; KEYS],
            value: (n as u64 + 1) * 1_000_000,
        };
        client.run(plan.each)
    });
    let history: Vec<Operation> = all_at_once(clients).await?.into_iter().flatten().collect();
    ensure!(history.len() <= LONGEST);
    Ok(tokio::task::spawn_blocking(move || check(&history, KEYS, BUDGET)).await?)
}

/// What a client remembers of a key: version, value and revision.
type Known = Option<(u64, u64, u64)>;

struct Client {
    store: Store,
    keys: Arc<[Key]>,
    ticks: Arc<AtomicU64>,
    random: SeededRandom,
    multi: bool,
    known: [Known; KEYS],
    value: u64,
}

impl Client {
    async fn run(mut self, operations: usize) -> Result<Vec<Operation>, Failure> {
        let mut history = Vec::new();
        for _ in 0..operations {
            let call = self.draw();
            let sent = self.tick();
            let answer = self.perform(&call).await?;
            let answered = match answer {
                Some(Answer::Unknown) => u64::MAX,
                _ => self.tick(),
            };
            // Without an answer nothing happened, and nothing was learnt.
            if let Some(answer) = answer {
                history.push(Operation { sent, answered, call, answer });
            }
        }
        Ok(history)
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn below(&self, bound: u64) -> u64 {
        below(&self.random as &dyn Random, bound)
    }

    fn draw(&mut self) -> Call {
        let key = self.below(KEYS as u64) as usize;
        match self.below(10) {
            0..=2 => Call::Get(key),
            3 if self.multi => Call::List,
            4..=6 if self.multi => {
                let other = (key + 1 + self.below(KEYS as u64 - 1) as usize) % KEYS;
                // As the store judges them: checks first, then writes.
                let mut steps = vec![self.step(key), self.step(other)];
                if self.below(2) == 0 {
                    steps[0].2 = Action::Check;
                }
                Call::Commit(steps)
            }
            _ => Call::Commit(vec![self.step(key)]),
        }
    }

    fn step(&mut self, key: usize) -> (usize, Condition, Action) {
        let condition = match (self.below(5), self.known[key]) {
            (0, _) => Condition::Absent,
            (1, Some((version, ..))) => Condition::Version(version),
            (2 | 3, Some((_, value, _))) => Condition::Value(value),
            (4, _) if self.below(4) == 0 => Condition::Exists,
            _ => Condition::Any,
        };
        self.value += 1;
        let action = if self.below(5) == 0 { Action::Delete } else { Action::Put(self.value) };
        (key, condition, action)
    }

    fn expect(&self, key: usize, condition: Condition) -> Expect {
        match condition {
            Condition::Any => Expect::Any,
            Condition::Absent => Expect::Absent,
            Condition::Exists => Expect::Exists,
            Condition::Version(version) => Expect::Version(version),
            // Drawn from what is known, so it is known.
            Condition::Value(_) => Expect::Revision(self.known[key].map_or(0, |(.., r)| r)),
        }
    }

    async fn perform(&mut self, call: &Call) -> Result<Option<Answer>, Failure> {
        let answer = match call {
            Call::Get(key) => match self.store.get(&self.keys[*key]).await {
                Ok(object) => {
                    self.known[*key] = object.map(|o| (o.version, number(&o), o.revision));
                    Ok(Answer::Read(self.entry(*key)))
                }
                Err(error) => Err(error),
            },
            Call::List => match self.store.list(&Query::new(&self.keys[0].kind)).await {
                Ok(page) => {
                    for (known, key) in self.known.iter_mut().zip(self.keys.iter()) {
                        let object = page.objects.iter().find(|object| object.key == *key);
                        *known = object.map(|o| (o.version, number(o), o.revision));
                    }
                    Ok(Answer::Listed((0..KEYS).map(|key| self.entry(key)).collect()))
                }
                Err(error) => Err(error),
            },
            Call::Commit(steps) => self.commit(steps).await,
        };
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::Unknown { .. }) => Ok(Some(Answer::Unknown)),
            Err(Error::Unavailable { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn entry(&self, key: usize) -> Entry {
        self.known[key].map(|(version, value, _)| (version, value))
    }

    async fn commit(&mut self, steps: &[(usize, Condition, Action)]) -> tenure::Result<Answer> {
        let mut commit = Commit::new();
        for (key, condition, action) in steps {
            let (id, expect) = (self.keys[*key].clone(), self.expect(*key, *condition));
            commit = match action {
                Action::Check => commit.check(id, expect),
                Action::Put(value) => commit.put(Put::new(id, value.to_string()).expect(expect)),
                Action::Delete => commit.delete(id, expect),
            };
        }
        let refused = |key: &Key, version| {
            let place = self.keys.iter().position(|known| known == key).unwrap_or(KEYS);
            Ok(Answer::Refused(place, version))
        };
        let done = match self.store.commit(commit).await {
            Ok(done) => done,
            Err(Error::Conflict { key, current, .. } | Error::AlreadyExists { key, current }) => {
                return refused(&key, current.version);
            }
            Err(Error::NotFound { key }) => return refused(&key, 0),
            Err(error) => return Err(error),
        };
        let mut effects = Vec::new();
        let writes = steps.iter().filter(|(.., action)| *action != Action::Check);
        for ((key, _, action), written) in writes.zip(&done.writes) {
            effects.push(match (written, action) {
                (Written::Put(result), Action::Put(value)) => {
                    self.known[*key] = Some((result.version, *value, result.revision));
                    Effect::Put(result.version)
                }
                (Written::Deleted { .. }, _) => {
                    self.known[*key] = None;
                    Effect::Deleted
                }
                // Values are never written twice, so a put that changed nothing is a wrong answer;
                // version 0 fits no order.
                (Written::Unchanged(_) | Written::Put(_), _) => Effect::Put(0),
                (Written::Absent, _) => Effect::Absent,
            });
        }
        Ok(Answer::Done(effects))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use tenure::store::memory::MemoryStore;

    /// The plans are small enough for a verdict: none of them runs out of budget.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_plan_comes_to_a_verdict() {
        let store = MemoryStore::new().into_store();
        let subject = Subject::new(Arc::new(move || {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        }));
        let ctx = Context::open_new(&subject).await.unwrap();
        for seed in 0..30 {
            let faults = if seed % 2 == 0 { 12 } else { 0 };
            let (clients, each) = if faults == 0 { (6, 40) } else { (5, 16) };
            let plan = Plan { seed, clients, each, multi: seed % 3 > 0, faults };
            let verdict = record_and_check(&ctx, plan).await.unwrap();
            assert_eq!(verdict, Verdict::Linearizable, "{plan:?}");
        }
    }
}
