//! G10: what ended without a release is reaped once, whoever reaps; nothing else is.

use std::collections::BTreeSet;

use crate::history::{Guarantee::G10, Verdict, Violation};
use crate::truth::{End, Truth};

/// What has been reaped.
#[derive(Debug, Default)]
pub struct Reaped {
    all: BTreeSet<(String, u64)>,
}

impl Reaped {
    /// A hook took effect for this tenure just now.
    pub fn reaped(&mut self, truth: &Truth, who: &str, id: &str, token: u64) -> Verdict {
        let end = truth.tenure(id, token).map(|tenure| tenure.end.as_ref().map(|(_, end)| end));
        let wrong = match end {
            None => Some("nobody ever held".to_owned()),
            Some(None) => Some("is still held".to_owned()),
            Some(Some(End::Expired | End::Revoked(_) | End::Robbed(_))) => None,
            Some(Some(end)) => Some(format!("was not left behind: {end:?}")),
        };
        if let Some(wrong) = wrong {
            let message = format!("{who} reaped token {token} of {id}, which {wrong}");
            return Err(Violation::new(G10, message));
        }
        if !self.all.insert((id.to_owned(), token)) {
            let message = format!("{who} reaped token {token} of {id}, as somebody had before");
            return Err(Violation::new(G10, message));
        }
        Ok(())
    }

    /// How many were.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// Once everybody is done and somebody has reaped, nothing of this lease is left.
pub fn left(orphan: &str) -> Verdict {
    Err(Violation::new(G10, format!("{orphan} is left after everything was reaped")))
}
