//! What happened in a run, one line per event, and what was wrong with it.

use std::fmt;

use crate::clock::TrueClock;

/// One of the promises of `docs/guarantees.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// At most one valid holder.
    G1,
    /// Tokens rise for ever.
    G2,
    /// The holder knows when to stop.
    G3,
    /// A fenced commit never applies once the lease is lost.
    G4,
    /// No wall clock decides anything.
    G5,
    /// Loss is told once, with its reason.
    G6,
    /// A renewal that fails is tried again until the deadline.
    G7,
    /// Waiters are served in order, without a stampede, at no cost while they wait.
    G8,
    /// Release comes after the work has stopped.
    G9,
    /// What ended without a release is reaped once.
    G10,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::G1 => "G1 (at most one valid holder)",
            Self::G2 => "G2 (tokens rise for ever)",
            Self::G3 => "G3 (a holder knows when to stop)",
            Self::G4 => "G4 (no fenced commit applies after the loss)",
            Self::G5 => "G5 (no wall clock decides anything)",
            Self::G6 => "G6 (loss is told once, with its reason)",
            Self::G7 => "G7 (a renewal is tried again until the deadline)",
            Self::G8 => "G8 (waiters are served in order, without a stampede)",
            Self::G9 => "G9 (release comes after the work has stopped)",
            Self::G10 => "G10 (what ended without a release is reaped once)",
        };
        f.write_str(text)
    }
}

/// A guarantee that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub guarantee: Guarantee,
    /// What was seen instead.
    pub message: String,
}

impl Violation {
    /// This guarantee did not hold, as the message tells.
    pub fn new(guarantee: Guarantee, message: impl Into<String>) -> Self {
        Self { guarantee, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violated: {}", self.guarantee, self.message)
    }
}

/// What an invariant answers.
pub type Verdict = Result<(), Violation>;

/// The lines of a run.
#[derive(Debug, Default)]
pub struct History {
    lines: Vec<String>,
}

impl History {
    /// Something happened at this instant of the store's clock.
    pub fn add(&mut self, at_ms: i64, who: &str, what: &str) {
        self.lines.push(format!("{}  {who:<9} {what}", TrueClock::label(at_ms)));
    }

    /// All lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
