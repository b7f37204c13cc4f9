//! A checker for linearizability (Wing and Gong's search, with Lowe's memory of states seen).
//!
//! A history is a set of operations, each with the instants at which it was sent and answered. It is
//! linearizable if every operation can be given one instant in between, such that a store that does
//! one thing at a time would have answered the same. An operation whose outcome is unknown may take
//! effect at any instant after it was sent, or never.
//!
//! The model keeps a version and a value per key. Every write in a history carries a value of its
//! own, so a value stands for the revision that wrote it.

use std::collections::HashSet;

/// An object in the model: version and value.
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
    /// Refused on a key, with the version found there; 0 for none.
    Refused(usize, u64),
    Unknown,
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub sent: u64,
    /// `u64::MAX` if the answer is unknown: it may take effect at any later time.
    pub answered: u64,
    pub call: Call,
    pub answer: Answer,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Linearizable,
    /// No order explains the answers; this many of them at most could be explained.
    Violation {
        explained: usize,
        stuck: Vec<String>,
    },
    /// Too many possibilities to try them all.
    Exhausted,
}

const WORDS: usize = 8;
/// The longest history that can be checked.
pub(crate) const LONGEST: usize = WORDS * 64;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Node {
    taken: [u64; WORDS],
    state: Vec<Entry>,
}

impl Node {
    fn has(&self, at: usize) -> bool {
        self.taken[at / 64] >> (at % 64) & 1 == 1
    }

    fn take(&mut self, at: usize) {
        self.taken[at / 64] |= 1 << (at % 64);
    }
}

/// Searches for an order that explains the history, trying at most so many states.
pub(crate) fn check(history: &[Operation], keys: usize, budget: usize) -> Verdict {
    assert!(history.len() <= LONGEST, "a history of {} operations is too long", history.len());
    let mut seen = HashSet::new();
    let mut stack = vec![Node { taken: [0; WORDS], state: vec![None; keys] }];
    let (mut explained, mut stuck) = (0, Vec::new());
    while let Some(mut node) = stack.pop() {
        let candidates = settle(history, &mut node);
        let done =
            history.iter().enumerate().filter(|(at, op)| op.answered != u64::MAX && node.has(*at));
        let done = done.count();
        if history.iter().enumerate().all(|(at, op)| node.has(at) || op.answered == u64::MAX) {
            return Verdict::Linearizable;
        }
        if done >= explained {
            explained = done;
            stuck = candidates
                .iter()
                .map(|at| format!("{:?} answered {:?}", history[*at].call, history[*at].answer))
                .chain([format!("state {:?}", node.state)])
                .collect();
        }
        if !seen.insert(node.clone()) {
            continue;
        }
        if seen.len() > budget {
            return Verdict::Exhausted;
        }
        for at in candidates {
            let (answer, state) = apply(&history[at].call, &node.state);
            let unknown = history[at].answer == Answer::Unknown;
            if (unknown && state != node.state) || (!unknown && answer == history[at].answer) {
                let mut next = Node { taken: node.taken, state };
                next.take(at);
                stack.push(next);
            }
        }
    }
    Verdict::Violation { explained, stuck }
}

/// Takes every operation that may come next and changes nothing: to take it at once closes no other
/// way. Returns the operations that may come next and do change something.
fn settle(history: &[Operation], node: &mut Node) -> Vec<usize> {
    loop {
        let left = || history.iter().enumerate().filter(|(at, _)| !node.has(*at));
        // Whatever was answered before another was sent comes first.
        let horizon = left().map(|(_, op)| op.answered).min().unwrap_or(u64::MAX);
        let candidates: Vec<usize> =
            left().filter(|(_, op)| op.sent <= horizon).map(|(at, _)| at).collect();
        let quiet = candidates.iter().copied().find(|at| {
            let op = &history[*at];
            let (answer, state) = apply(&op.call, &node.state);
            op.answer != Answer::Unknown && state == node.state && answer == op.answer
        });
        match quiet {
            Some(at) => node.take(at),
            None => return candidates,
        }
    }
}

/// What a store that does one thing at a time would answer, and its state after.
fn apply(call: &Call, state: &[Entry]) -> (Answer, Vec<Entry>) {
    match call {
        Call::Get(key) => (Answer::Read(state[*key]), state.to_vec()),
        Call::List => (Answer::Listed(state.to_vec()), state.to_vec()),
        Call::Commit(steps) => {
            for (key, condition, _) in steps {
                if !holds(*condition, state[*key]) {
                    let found = state[*key].map_or(0, |(version, _)| version);
                    return (Answer::Refused(*key, found), state.to_vec());
                }
            }
            let mut after = state.to_vec();
            let mut effects = Vec::new();
            for (key, _, action) in steps {
                match action {
                    Action::Check => {}
                    Action::Put(value) => {
                        let version = state[*key].map_or(1, |(version, _)| version + 1);
                        after[*key] = Some((version, *value));
                        effects.push(Effect::Put(version));
                    }
                    Action::Delete => {
                        let gone = after[*key].take();
                        effects.push(gone.map_or(Effect::Absent, |_| Effect::Deleted));
                    }
                }
            }
            (Answer::Done(effects), after)
        }
    }
}

fn holds(condition: Condition, entry: Entry) -> bool {
    match condition {
        Condition::Any => true,
        Condition::Absent => entry.is_none(),
        Condition::Exists => entry.is_some(),
        Condition::Version(version) => entry.is_some_and(|(found, _)| found == version),
        Condition::Value(value) => entry.is_some_and(|(_, found)| found == value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(sent: u64, answered: u64, call: Call, answer: Answer) -> Operation {
        Operation { sent, answered, call, answer }
    }

    fn put(key: usize, condition: Condition, value: u64) -> Call {
        Call::Commit(vec![(key, condition, Action::Put(value))])
    }

    fn done(version: u64) -> Answer {
        Answer::Done(vec![Effect::Put(version)])
    }

    fn read(version: u64, value: u64) -> Answer {
        Answer::Read(Some((version, value)))
    }

    fn verdict(history: &[Operation]) -> Verdict {
        check(history, 2, 100_000)
    }

    fn is_violation(history: &[Operation]) -> bool {
        matches!(verdict(history), Verdict::Violation { .. })
    }

    #[test]
    fn accepts_what_one_thing_at_a_time_could_have_done() {
        let any = Condition::Any;
        let history = [
            op(0, 10, put(0, any, 1), done(1)),
            // Overlaps the put: may see nothing yet, or the value.
            op(1, 5, Call::Get(0), Answer::Read(None)),
            op(2, 9, Call::Get(0), read(1, 1)),
            op(11, 20, put(0, Condition::Version(1), 2), done(2)),
            op(12, 19, put(0, Condition::Version(1), 3), Answer::Refused(0, 2)),
            op(
                21,
                22,
                Call::Commit(vec![(0, any, Action::Delete)]),
                Answer::Done(vec![Effect::Deleted]),
            ),
            op(23, 24, Call::List, Answer::Listed(vec![None, None])),
        ];
        assert_eq!(verdict(&history), Verdict::Linearizable);
    }

    #[test]
    fn rejects_a_stale_read() {
        let history = [
            op(0, 1, put(0, Condition::Any, 1), done(1)),
            op(2, 3, put(0, Condition::Any, 2), done(2)),
            op(4, 5, Call::Get(0), read(1, 1)),
        ];
        assert!(is_violation(&history));
        // The same answers are fine if the read was sent before the second put was answered.
        let mut overlapping = history.to_vec();
        (overlapping[2].sent, overlapping[2].answered) = (2, 5);
        assert_eq!(verdict(&overlapping), Verdict::Linearizable);
    }

    #[test]
    fn rejects_reads_that_go_back_in_time() {
        let history = [
            op(0, 1, put(0, Condition::Any, 1), done(1)),
            op(2, 100, put(0, Condition::Any, 2), done(2)),
            op(3, 4, Call::Get(0), read(2, 2)),
            op(5, 6, Call::Get(0), read(1, 1)),
        ];
        assert!(is_violation(&history));
    }

    #[test]
    fn rejects_a_lost_update() {
        let history = [
            op(0, 1, put(0, Condition::Any, 1), done(1)),
            op(2, 10, put(0, Condition::Version(1), 2), done(2)),
            op(2, 10, put(0, Condition::Value(1), 3), done(2)),
        ];
        assert!(is_violation(&history));
    }

    #[test]
    fn rejects_two_creations_and_a_wrong_version() {
        let twice = [
            op(0, 10, put(0, Condition::Absent, 1), done(1)),
            op(0, 10, put(0, Condition::Absent, 2), done(1)),
        ];
        assert!(is_violation(&twice));
        let skipped =
            [op(0, 1, put(0, Condition::Any, 1), done(1)), op(2, 3, Call::Get(0), read(2, 1))];
        assert!(is_violation(&skipped));
    }

    fn both(value: u64) -> Call {
        let any = Condition::Any;
        Call::Commit(vec![(0, any, Action::Put(value)), (1, any, Action::Put(value + 1))])
    }

    #[test]
    fn rejects_a_commit_that_is_seen_in_two_halves() {
        let wrote = Answer::Done(vec![Effect::Put(1), Effect::Put(1)]);
        let torn = [
            op(0, 100, both(1), wrote.clone()),
            op(1, 2, Call::Get(0), read(1, 1)),
            op(3, 4, Call::Get(1), Answer::Read(None)),
        ];
        assert!(is_violation(&torn));
        let listed = Answer::Listed(vec![Some((1, 1)), None]);
        assert!(is_violation(&[op(0, 100, both(1), wrote.clone()), op(1, 2, Call::List, listed)]));
        let whole = [op(0, 100, both(1), wrote), op(3, 4, Call::Get(1), read(1, 2))];
        assert_eq!(verdict(&whole), Verdict::Linearizable);
    }

    #[test]
    fn rejects_write_skew() {
        let (any, first) = (Condition::Any, Condition::Version(1));
        let leave = |me: usize, value| {
            Call::Commit(vec![(1 - me, first, Action::Check), (me, first, Action::Put(value))])
        };
        let history = [
            op(0, 1, put(0, any, 1), done(1)),
            op(0, 1, put(1, any, 2), done(1)),
            op(2, 9, leave(0, 3), done(2)),
            op(2, 9, leave(1, 4), done(2)),
        ];
        assert!(is_violation(&history));
    }

    #[test]
    fn an_unknown_write_may_happen_late_or_never_but_once() {
        let unknown = op(0, u64::MAX, put(0, Condition::Any, 1), Answer::Unknown);
        let never = op(5, 6, Call::Get(0), Answer::Read(None));
        let late = op(7, 8, Call::Get(0), read(1, 1));
        let again = op(9, 10, Call::Get(0), Answer::Read(None));
        assert_eq!(verdict(&[unknown.clone(), never.clone()]), Verdict::Linearizable);
        let both = [unknown.clone(), never, late.clone()];
        assert_eq!(verdict(&both), Verdict::Linearizable);
        assert!(is_violation(&[unknown, late, again]));
    }
}
