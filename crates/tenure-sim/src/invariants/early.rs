//! G5: nothing ends but by the store's clock, by its holder's will or by a revocation. A lease that
//! is taken off a living holder was judged by some other clock.

use crate::history::{Guarantee::G5, Verdict, Violation};
use crate::truth::End;

/// A tenure ended like this.
pub fn ended(id: &str, token: u64, end: &End, left_ms: i64) -> Verdict {
    match end {
        End::Robbed(by) => Err(Violation::new(
            G5,
            format!(
                "{by} ended token {token} of {id} without a revocation, {left_ms} ms before its \
                 time by the store's clock"
            ),
        )),
        _ => Ok(()),
    }
}

/// Two runs of one seed that differ only in the wall clocks have the same history.
pub fn same(with_skew: &[String], without: &[String]) -> Verdict {
    let differs = with_skew.iter().zip(without).find(|(a, b)| a != b);
    let message = match differs {
        Some((a, b)) => format!("with wall clocks apart: {a:?}; with true ones: {b:?}"),
        None if with_skew.len() != without.len() => {
            format!(
                "{} events with wall clocks apart, {} with true ones",
                with_skew.len(),
                without.len()
            )
        }
        None => return Ok(()),
    };
    Err(Violation::new(G5, message))
}
