//! G4: a commit fenced by a lease never applies once the lease is lost, whatever its holder believes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::{Guarantee::G4, Verdict, Violation};
use crate::truth::Truth;

/// What holders write under the protection of their lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    /// The lease it is fenced by.
    pub lease: String,
    /// The token its author had.
    pub token: u64,
    /// How often it was counted up.
    pub count: u64,
}

/// What has been written so far, for each key.
#[derive(Debug, Default)]
pub struct Written {
    last: BTreeMap<String, Work>,
}

impl Written {
    /// This was written just now. `counted` if its author meant to count up what it had read.
    pub fn applied(
        &mut self,
        truth: &Truth,
        who: &str,
        key: &str,
        work: Work,
        counted: bool,
    ) -> Verdict {
        let Work { lease, token, count } = &work;
        if truth.holder(lease) != Some(*token) {
            let now = truth.holder(lease).map_or("nobody".into(), |token| format!("token {token}"));
            return Err(Violation::new(
                G4,
                format!(
                    "{who} wrote {key} fenced by token {token} of {lease}, which {now} holds now"
                ),
            ));
        }
        let before = self.last.get(key);
        if let Some(before) = before
            && before.token > *token
        {
            let message =
                format!("{who} wrote {key} with token {token} after token {}", before.token);
            return Err(Violation::new(G4, message));
        }
        let expected = before.map_or(0, |before| before.count) + 1;
        if counted && *count != expected {
            let message = format!("{who} counted {key} to {count}, it should be {expected}");
            return Err(Violation::new(G4, message));
        }
        self.last.insert(key.to_owned(), work);
        Ok(())
    }
}
