//! Clients that do things at random and write down what they asked, what they were told, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::random::{Random, SeededRandom, below};
use tenure::store::{Commit, Expect, Put, Query, Store, Touch, Touched, Written};
use tenure::{Error, Key};

use crate::Failure;
use crate::context::Context;
use crate::helpers::number;
use crate::linearize::{Action, Answer, Call, Condition, Effect, Entry, Operation};

/// Objects that a history is about.
pub(crate) const KEYS: usize = 3;

/// What a client remembers of a key: version, value and revision.
type Known = Option<(u64, u64, u64)>;

/// What tells one client from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub seed: u64,
    /// Its number; the values it writes begin with it.
    pub number: u64,
    /// Commits over several keys, and lists.
    pub multi: bool,
    pub lends: Option<Lends>,
}

/// How a client gives out lives and takes its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lends {
    pub ttl: Duration,
    /// When the history began. All clients are busy for half a life, then quiet for one and a half.
    pub since: Duration,
    /// Its longest pause. Half of its calls follow each other without one.
    pub pause: Duration,
}

impl Lends {
    /// Whether it is time to look on, so that lives come to their end.
    fn is_quiet(&self, now: Duration) -> bool {
        let ttl = self.ttl.as_micros().max(1);
        now.saturating_sub(self.since).as_micros() % (2 * ttl) > ttl / 2
    }
}

/// One client of a history.
pub(crate) struct Client {
    store: Store,
    ctx: Context,
    keys: Arc<[Key]>,
    /// One counter orders sending and answering across all clients.
    ticks: Arc<AtomicU64>,
    random: SeededRandom,
    habits: Habits,
    known: [Known; KEYS],
    value: u64,
}

/// What is asked for in one request.
enum Wish {
    One(Call),
    /// Key and value of each.
    Touches(Vec<(usize, u64)>),
}

impl Client {
    pub(crate) fn new(
        ctx: &Context,
        store: Store,
        keys: &Arc<[Key]>,
        ticks: &Arc<AtomicU64>,
        habits: Habits,
    ) -> Self {
        Self {
            store,
            ctx: ctx.clone(),
            keys: Arc::clone(keys),
            ticks: Arc::clone(ticks),
            random: SeededRandom::new(habits.seed),
            habits,
            known: [None; KEYS],
            value: (habits.number + 1) * 1_000_000,
        }
    }

    /// Does so many things, one after the other.
    pub(crate) async fn run(mut self, requests: usize) -> Result<Vec<Operation>, Failure> {
        let mut history = Vec::new();
        for _ in 0..requests {
            self.pause().await;
            let wish = self.draw();
            let begun = self.ctx.uptime();
            let sent = self.tick();
            let answers = match wish {
                Wish::One(call) => vec![(self.perform(&call).await?, call)],
                Wish::Touches(touches) => self.touch(&touches).await?,
            };
            let answered = self.tick();
            let ended = self.ctx.uptime();
            for (answer, call) in answers {
                let (answered, ended) = match answer {
                    Some(Answer::Unknown) => (u64::MAX, Duration::MAX),
                    _ => (answered, ended),
                };
                // Without an answer nothing happened, and nothing was learnt.
                if let Some(answer) = answer {
                    history.push(Operation { sent, answered, begun, ended, call, answer });
                }
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

    async fn pause(&self) {
        if let Some(Lends { pause, .. }) = self.habits.lends
            && self.below(2) == 0
        {
            let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
            self.ctx.pass(Duration::from_micros(self.below(micros.max(1)))).await;
        }
    }

    fn draw(&mut self) -> Wish {
        let key = self.below(KEYS as u64) as usize;
        let multi = self.habits.multi;
        if let Some(lends) = self.habits.lends {
            let quiet = lends.is_quiet(self.ctx.uptime());
            // The first key is let alone; the others may be prolonged, or begin anew.
            if quiet && (key == 0 || self.below(6) > 0) {
                let list = multi && self.below(3) == 0;
                return Wish::One(if list { Call::List } else { Call::Get(key) });
            }
            let touches = match (quiet, self.known[key]) {
                // In the middle of a life, so that it matters most.
                (true, Some((_, value, _))) if self.below(3) > 0 => vec![(key, value)],
                (false, _) if self.below(10) < 4 => self.draw_touches(),
                _ => vec![],
            };
            if !touches.is_empty() {
                return Wish::Touches(touches);
            }
            if quiet {
                return Wish::One(Call::Commit(vec![self.step(key)]));
            }
        }
        Wish::One(match self.below(10) {
            0..=2 => Call::Get(key),
            3 if multi => Call::List,
            4..=6 if multi => {
                let other = (key + 1 + self.below(KEYS as u64 - 1) as usize) % KEYS;
                // As the store judges them: checks first, then writes.
                let mut steps = vec![self.step(key), self.step(other)];
                if self.below(2) == 0 {
                    steps[0].2 = Action::Check;
                }
                Call::Commit(steps)
            }
            _ => Call::Commit(vec![self.step(key)]),
        })
    }

    /// Most of what is known, with its values.
    fn draw_touches(&self) -> Vec<(usize, u64)> {
        let known = self.known.iter().enumerate();
        known
            .filter_map(|(key, known)| known.map(|(_, value, _)| (key, value)))
            .filter(|_| self.below(4) > 0)
            .collect()
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
        let action = match self.habits.lends {
            _ if self.below(5) == 0 => Action::Delete,
            Some(_) if self.below(6) > 0 => Action::Lend(self.value),
            _ => Action::Put(self.value),
        };
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
            // Asked for several at a time.
            Call::Touch(..) => return Ok(None),
        };
        learnt(answer)
    }

    fn entry(&self, key: usize) -> Entry {
        self.known[key].map(|(version, value, _)| (version, value))
    }

    async fn commit(&mut self, steps: &[(usize, Condition, Action)]) -> tenure::Result<Answer> {
        let ttl = self.habits.lends.map(|lends| lends.ttl);
        let mut commit = Commit::new();
        for (key, condition, action) in steps {
            let (id, expect) = (self.keys[*key].clone(), self.expect(*key, *condition));
            let put = |value: &u64| Put::new(id.clone(), value.to_string()).expect(expect);
            commit = match (action, ttl) {
                (Action::Check, _) => commit.check(id, expect),
                (Action::Lend(value), Some(ttl)) => commit.put(put(value).ttl(ttl)),
                (Action::Put(value) | Action::Lend(value), _) => commit.put(put(value)),
                (Action::Delete, _) => commit.delete(id, expect),
            };
        }
        let done = match self.store.commit(commit).await {
            Ok(done) => done,
            Err(error) => return self.refused(error),
        };
        let mut effects = Vec::new();
        let writes = steps.iter().filter(|(.., action)| *action != Action::Check);
        for ((key, _, action), written) in writes.zip(&done.writes) {
            effects.push(match (written, action) {
                (Written::Put(result), Action::Put(value) | Action::Lend(value)) => {
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

    /// What a refusal says; any other error is passed on.
    fn refused(&self, error: Error) -> tenure::Result<Answer> {
        let (key, version) = match error {
            Error::Conflict { key, current, .. } | Error::AlreadyExists { key, current } => {
                (key, current.version)
            }
            Error::NotFound { key } => (key, 0),
            error => return Err(error),
        };
        let place = self.keys.iter().position(|known| *known == key).unwrap_or(KEYS);
        Ok(Answer::Refused(place, version))
    }

    /// Many in one request, each with an answer of its own.
    async fn touch(
        &self,
        touches: &[(usize, u64)],
    ) -> Result<Vec<(Option<Answer>, Call)>, Failure> {
        let ttl = self.habits.lends.map_or(Duration::ZERO, |lends| lends.ttl);
        let wishes = touches.iter().map(|(key, _)| Touch {
            key: self.keys[*key].clone(),
            revision: self.known[*key].map_or(0, |(.., revision)| revision),
            ttl,
        });
        let answers = match self.store.touch(wishes.collect()).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); touches.len()],
        };
        ensure_eq!(answers.len(), touches.len(), "answers to so many touches");
        let answers = touches
            .iter()
            .zip(answers)
            .map(|((key, value), answer)| Ok((self.touched(answer)?, Call::Touch(*key, *value))));
        answers.collect()
    }

    fn touched(&self, answer: tenure::Result<Touched>) -> Result<Option<Answer>, Failure> {
        learnt(match answer {
            Ok(_) => Ok(Answer::Touched),
            Err(Error::Invalid { .. }) => Ok(Answer::Immortal),
            Err(error) => self.refused(error),
        })
    }
}

/// Nothing, if nothing happened.
fn learnt(answer: tenure::Result<Answer>) -> Result<Option<Answer>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Unknown { .. }) => Ok(Some(Answer::Unknown)),
        Err(Error::Unavailable { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
