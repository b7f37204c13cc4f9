//! A store that does one thing at a time, as the checker sees it: a version, a value and a life per key.
//!
//! Every write in a history carries a value of its own, so a value stands for the revision that wrote
//! it. When a life ends is known within bounds only: it began after the request was sent and before
//! the answer came. So an object is certainly there before the earliest instant at which it can end,
//! certainly gone after the latest, and in between it is what the answers say, once gone for good.

use std::time::Duration;

/// An object as a client sees it: version and value.
pub(crate) type Entry = Option<(u64, u64)>;

/// What must hold for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Any,
    Absent,
    Exists,
    Version(u64),
    /// Stands for a revision: exactly the state that this write made.
    Value(u64),
}

/// One step of a commit on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Check,
    Put(u64),
    /// A put with a life.
    Lend(u64),
    Delete,
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// One key.
    Get(usize),
    /// All keys at one instant.
    List,
    /// Conditions and writes in the order in which they are judged.
    Commit(Vec<(usize, Condition, Action)>),
    /// A new life for what this value stands for. Of many in one request each stands alone.
    Touch(usize, u64),
}

/// What one write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Put(u64),
    Deleted,
    Absent,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Read(Entry),
    Listed(Vec<Entry>),
    Done(Vec<Effect>),
    Touched,
    /// A touch of what has no life to prolong.
    Immortal,
    /// Refused on a key, with the version found there; 0 for none.
    Refused(usize, u64),
    Unknown,
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// Its place in the order of all that was sent and answered.
    pub sent: u64,
    /// `u64::MAX` if the answer is unknown: it may take effect at any later time.
    pub answered: u64,
    /// An instant before it was sent, on the clock that lives go by.
    pub begun: Duration,
    /// An instant after it was answered; [`Duration::MAX`] if that is unknown.
    pub ended: Duration,
    pub call: Call,
    pub answer: Answer,
}

/// How long lives are in a history, and how far from that they may end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lives {
    pub ttl: Duration,
    /// So much sooner, since clocks count in steps.
    pub early: Duration,
    /// So much later, as far as the store declares it.
    pub late: Duration,
}

/// When a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    earliest: Duration,
    latest: Duration,
}

impl Lives {
    fn begun_by(&self, op: &Operation) -> Window {
        Window {
            earliest: op.begun.saturating_add(self.ttl).saturating_sub(self.early),
            latest: op.ended.saturating_add(self.ttl).saturating_add(self.late),
        }
    }
}

/// An object in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    version: u64,
    value: u64,
    ends: Option<Window>,
}

/// Every key of the model.
pub(crate) type State = Vec<Option<Held>>;

/// What may come of an operation: each answer with the state after it. More than one, where the life
/// of what it is about may or may not be over. It happens at `by` at the latest.
pub(crate) fn outcomes(
    op: &Operation,
    state: &State,
    by: Duration,
    lives: &Lives,
) -> Vec<(Answer, State)> {
    let mut states = vec![state.clone()];
    for key in concerned(&op.call, state.len()) {
        let Some(window) = state[key].and_then(|held| held.ends) else { continue };
        if by.min(op.ended) < window.earliest {
            continue;
        }
        let over = states.iter().map(|state| {
            let mut over = state.clone();
            over[key] = None;
            over
        });
        let over: Vec<State> = over.collect();
        match op.begun > window.latest {
            true => states = over,
            false => states.extend(over),
        }
    }
    states.into_iter().map(|state| apply(op, state, lives)).collect()
}

fn concerned(call: &Call, keys: usize) -> Vec<usize> {
    let mut concerned = match call {
        Call::Get(key) | Call::Touch(key, _) => vec![*key],
        Call::List => (0..keys).collect(),
        Call::Commit(steps) => steps.iter().map(|(key, ..)| *key).collect(),
    };
    concerned.sort_unstable();
    concerned.dedup();
    concerned
}

/// What the store answers if nothing ends just now, and its state after.
fn apply(op: &Operation, state: State, lives: &Lives) -> (Answer, State) {
    match &op.call {
        Call::Get(key) => (Answer::Read(entry(state[*key])), state),
        Call::List => (Answer::Listed(state.iter().copied().map(entry).collect()), state),
        Call::Touch(key, value) => match state[*key] {
            Some(held) if held.value == *value && held.ends.is_none() => (Answer::Immortal, state),
            Some(held) if held.value == *value => {
                let mut after = state;
                after[*key] = Some(Held { ends: Some(lives.begun_by(op)), ..held });
                (Answer::Touched, after)
            }
            found => (Answer::Refused(*key, version(found)), state),
        },
        Call::Commit(steps) => {
            for (key, condition, _) in steps {
                if !holds(*condition, state[*key]) {
                    return (Answer::Refused(*key, version(state[*key])), state);
                }
            }
            let mut after = state.clone();
            let mut effects = Vec::new();
            for (key, _, action) in steps {
                let (value, ends) = match action {
                    Action::Check => continue,
                    Action::Delete => {
                        let gone = after[*key].take();
                        effects.push(gone.map_or(Effect::Absent, |_| Effect::Deleted));
                        continue;
                    }
                    Action::Put(value) => (*value, None),
                    Action::Lend(value) => (*value, Some(lives.begun_by(op))),
                };
                let version = version(state[*key]) + 1;
                after[*key] = Some(Held { version, value, ends });
                effects.push(Effect::Put(version));
            }
            (Answer::Done(effects), after)
        }
    }
}

fn entry(held: Option<Held>) -> Entry {
    held.map(|held| (held.version, held.value))
}

fn version(held: Option<Held>) -> u64 {
    held.map_or(0, |held| held.version)
}

fn holds(condition: Condition, held: Option<Held>) -> bool {
    match condition {
        Condition::Any => true,
        Condition::Absent => held.is_none(),
        Condition::Exists => held.is_some(),
        Condition::Version(version) => held.is_some_and(|held| held.version == version),
        Condition::Value(value) => held.is_some_and(|held| held.value == value),
    }
}
