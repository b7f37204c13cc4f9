//! Why a behaviour failed: one readable sentence and the line that noticed.

use std::fmt;
use std::panic::Location;

/// What a behaviour found wrong. Anything a behaviour meets on its way turns into one with `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    at: String,
    is_late: bool,
}

impl Failure {
    /// A failure noticed here.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Self {
        let at = Location::caller();
        let at = format!("{}:{}", at.file(), at.line());
        Self { message: message.into(), at, is_late: false }
    }

    /// One that a machine explains which is too slow for the lives that were chosen. Never for two
    /// who hold one thing, or for anything that was lost or written too late: time excuses neither.
    #[track_caller]
    pub fn late(message: impl Into<String>) -> Self {
        Self { is_late: true, ..Self::new(message) }
    }

    /// Whether it may be otherwise where there is more time.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Two things that should have been equal, shown at a length that people read.
    #[doc(hidden)]
    #[track_caller]
    pub fn unequal(what: &str, got: &dyn fmt::Debug, expected: &dyn fmt::Debug) -> Self {
        Self::new(format!("{what}: got {}, expected {}", brief(got), brief(expected)))
    }

    /// The same failure, with what was being tried put in front.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

fn brief(value: &dyn fmt::Debug) -> String {
    const MOST: usize = 500;
    let text = format!("{value:?}");
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}… ({} bytes in all)", &text[..end], text.len()),
        None => text,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.at)
    }
}

impl std::error::Error for Failure {}

impl From<tenure::Error> for Failure {
    #[track_caller]
    fn from(error: tenure::Error) -> Self {
        use tenure::Error::{Held, Lost, Unavailable, Unknown};
        // Nothing was done that should not have been; what should have been was not done in time.
        let is_late =
            matches!(error, Held { .. } | Lost { .. } | Unavailable { .. } | Unknown { .. });
        Self { is_late, ..Self::new(format!("the store said: {error}")) }
    }
}

impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("the system said: {error}"))
    }
}

impl From<serde_json::Error> for Failure {
    #[track_caller]
    fn from(error: serde_json::Error) -> Self {
        Self::new(format!("not the JSON that was expected: {error}"))
    }
}

impl From<tokio::task::JoinError> for Failure {
    #[track_caller]
    fn from(error: tokio::task::JoinError) -> Self {
        Self::new(format!("a task of the check did not finish: {error}"))
    }
}

impl From<String> for Failure {
    #[track_caller]
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

impl From<&str> for Failure {
    #[track_caller]
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

/// Returns a [`Failure`] unless the condition holds: `ensure!(cond)` or `ensure!(cond, "why {x}")`.
#[macro_export]
macro_rules! ensure {
    ($condition:expr $(,)?) => {
        $crate::ensure!($condition, "expected {}", stringify!($condition))
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new(format!($($message)+)));
        }
    };
}

/// The same for what holds if the machine keeps up: the failure is [late](Failure::late).
#[macro_export]
macro_rules! ensure_in_time {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::late(format!($($message)+)));
        }
    };
}

/// Returns a [`Failure`] that shows both sides unless they are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr $(,)?) => {
        $crate::ensure_eq!($left, $right, "{}", stringify!($left))
    };
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if *left != *right {
                    let what = format!($($message)+);
                    return Err($crate::Failure::unequal(&what, left, right));
                }
            }
        }
    };
}

/// Turns any error that can be shown into a failure.
pub trait OrFail<T> {
    /// The value, or a failure with the error's text.
    fn or_fail(self) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> OrFail<T> for std::result::Result<T, E> {
    #[track_caller]
    fn or_fail(self) -> Result<T, Failure> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(Failure::new(format!("{error:#}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks_the_store() -> Result<(), Failure> {
        Err(tenure::Error::unavailable("memory", "gone fishing"))?
    }

    fn compares(a: u32) -> Result<(), Failure> {
        ensure!(a > 0);
        ensure_eq!(a, 2, "the number of {}", "things");
        Ok(())
    }

    #[test]
    fn a_failure_names_the_reason_and_the_line() {
        let text = asks_the_store().unwrap_err().to_string();
        assert!(text.contains("gone fishing") && text.contains("failure.rs"), "{text}");
        let text = compares(1).unwrap_err().during("counting").to_string();
        assert!(text.starts_with("counting: the number of things: got 1, expected 2"), "{text}");
        assert!(compares(0).unwrap_err().to_string().contains("a > 0"));
        assert!(compares(2).is_ok());
        assert!(asks_the_store().unwrap_err().is_late() && !compares(0).unwrap_err().is_late());
        let long = Failure::unequal("x", &vec![1; 10_000], &0).to_string();
        assert!(long.len() < 700 && long.contains("bytes in all"), "{long}");
    }
}
