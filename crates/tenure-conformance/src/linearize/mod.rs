//! A checker for linearizability (Wing and Gong's search, with Lowe's memory of states seen).
//!
//! A history is a set of operations, each with the instants at which it was sent and answered. It is
//! linearizable if every operation can be given one instant in between, such that a store that does
//! one thing at a time would have answered the same. An operation whose outcome is unknown may take
//! effect at any instant after it was sent, or never. What such a store answers is in [`model`].

mod model;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Duration;

pub(crate) use model::{Action, Answer, Call, Condition, Effect, Entry, Lives, Operation};
use model::{State, outcomes};

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
    state: State,
}

impl Node {
    fn has(&self, at: usize) -> bool {
        self.taken[at / 64] >> (at % 64) & 1 == 1
    }

    fn take(&mut self, at: usize) {
        self.taken[at / 64] |= 1 << (at % 64);
    }
}

/// What may come next, and by when that happens at the latest.
struct Next {
    candidates: Vec<usize>,
    by: Duration,
}

/// Searches for an order that explains the history, trying at most so many states.
pub(crate) fn check(history: &[Operation], keys: usize, lives: &Lives, budget: usize) -> Verdict {
    assert!(history.len() <= LONGEST, "a history of {} operations is too long", history.len());
    let mut seen = HashSet::new();
    let mut stack = vec![Node { taken: [0; WORDS], state: vec![None; keys] }];
    let (mut explained, mut stuck) = (0, Vec::new());
    while let Some(mut node) = stack.pop() {
        let Next { candidates, by } = settle(history, &mut node, lives);
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
                .map(|at| {
                    let Operation { begun, ended, call, answer, .. } = &history[*at];
                    format!("{call:?} answered {answer:?} between {begun:?} and {ended:?}")
                })
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
            let unknown = history[at].answer == Answer::Unknown;
            for (answer, state) in outcomes(&history[at], &node.state, by, lives) {
                if (unknown && state != node.state) || (!unknown && answer == history[at].answer) {
                    let mut next = Node { taken: node.taken, state };
                    next.take(at);
                    stack.push(next);
                }
            }
        }
    }
    Verdict::Violation { explained, stuck }
}

/// Takes every operation that may come next and changes nothing: to take it at once closes no other
/// way. Returns the operations that may come next and do change something.
fn settle(history: &[Operation], node: &mut Node, lives: &Lives) -> Next {
    loop {
        let left = || history.iter().enumerate().filter(|(at, _)| !node.has(*at));
        // Whatever was answered before another was sent comes first.
        let horizon = left().map(|(_, op)| op.answered).min().unwrap_or(u64::MAX);
        let by = left().map(|(_, op)| op.ended).min().unwrap_or(Duration::MAX);
        let candidates: Vec<usize> =
            left().filter(|(_, op)| op.sent <= horizon).map(|(at, _)| at).collect();
        let quiet = candidates.iter().copied().find(|at| {
            let op = &history[*at];
            op.answer != Answer::Unknown
                && outcomes(op, &node.state, by, lives)
                    .iter()
                    .any(|(answer, state)| *state == node.state && *answer == op.answer)
        });
        match quiet {
            Some(at) => node.take(at),
            None => return Next { candidates, by },
        }
    }
}
