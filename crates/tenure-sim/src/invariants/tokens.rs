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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::store::Commit;
    use tenure::{Key, Object};

    use super::*;

    const ID: &str = "a/b";

    /// A tenure begins with this token and ends at once.
    fn tenure(truth: &mut Truth, at_ms: i64, token: u64) {
        let object = Object {
            key: Key::new("lease", ID),
            name: None,
            labels: Default::default(),
            payload: Default::default(),
            version: 1,
            revision: token,
            created_revision: token,
            token,
            created_at_ms: 0,
            updated_at_ms: 0,
            ttl: None,
            expires_in: Some(Duration::from_secs(1)),
        };
        for after in [Some(&object), None] {
            truth.committed(at_ms, "p0#1", &Commit::new(), ID, after, false);
        }
    }

    #[test]
    fn a_store_whose_tokens_do_not_rise_is_found() {
        let mut tokens = Tokens::default();
        for (id, token) in [(ID, 5), (ID, 6), ("a/c", 3)] {
            assert!(tokens.began(id, token).is_ok(), "{id} {token}");
        }
        for token in [6, 5] {
            let found = tokens.began(ID, token).map_err(|violation| violation.guarantee);
            assert_eq!(found, Err(G2), "{token}");
        }
    }

    #[test]
    fn a_later_holder_with_a_smaller_token_is_found_though_the_store_gave_it() {
        let (mut truth, mut tokens) = (Truth::default(), Tokens::default());
        for (at_ms, token) in [(10, 5), (20, 7), (30, 6)] {
            tenure(&mut truth, at_ms, token);
        }
        assert!(tokens.granted(&truth, ID, 7, "p0#1").is_ok());
        // It learned late of a tenure that began before.
        assert!(tokens.granted(&truth, ID, 5, "p1#1").is_ok());
        let found = tokens.granted(&truth, ID, 6, "p1#1").map_err(|violation| violation.guarantee);
        assert_eq!(found, Err(G2));
    }
}
