//! G2: a later holder's token is greater than every earlier one's, for ever.

use std::collections::BTreeMap;

use crate::history::{Guarantee::G2, Verdict, Violation};
use crate::truth::Truth;

/// The greatest token so far, for each scope.
#[derive(Debug, Default)]
pub struct Tokens {
    begun: BTreeMap<String, u64>,
    granted: BTreeMap<String, (u64, String)>,
}

impl Tokens {
    /// A tenure with this token has begun in the store.
    pub fn began(&mut self, id: &str, token: u64) -> Verdict {
        let before = self.begun.insert(id.to_owned(), token).unwrap_or(0);
        if token > before {
            return Ok(());
        }
        let message = format!("a tenure of {id} began with token {token}, after token {before}");
        Err(Violation::new(G2, message))
    }

    /// Somebody was handed a lease with this token. It may have learned of it so late that others
    /// have held it since; but then its tenure began before theirs.
    pub fn granted(&mut self, truth: &Truth, id: &str, token: u64, who: &str) -> Verdict {
        let began = |token: u64| truth.tenure(id, token).map(|tenure| tenure.began_ms);
        if began(token).is_none() {
            let message =
                format!("{who} holds {id} with token {token}, which the store never gave");
            return Err(Violation::new(G2, message));
        }
        let (greatest, holder) = self.granted.entry(id.to_owned()).or_default();
        if token > *greatest {
            (*greatest, *holder) = (token, who.to_owned());
        } else if began(token) >= began(*greatest) {
            let message = format!(
                "{who} holds {id} with token {token}, {holder} had token {greatest} before"
            );
            return Err(Violation::new(G2, message));
        }
        Ok(())
    }
}
