//! G9: who is done with a lease lets go of it. What is held in the store is held by somebody, or on its
//! way to or from somebody.
//!
//! Not so what strayed on its way: a place in line or a lease that the network repeats, or delivers long
//! after its owner gave it up and last looked for it, is nobody's and ends with its life.

use std::collections::{BTreeMap, BTreeSet};

use tenure::lease::{HAND_OVER, LEASE, LeaseRecord, WAITER};
use tenure::store::{Commit, Write};

use crate::clock::TrueClock;
use crate::history::{Guarantee::G9, Verdict, Violation};

/// A grant or a release of a process that is well takes a few trips to the store; this is many.
const LONG_MS: i64 = 2_000;

/// Since when each tenure has had nobody.
#[derive(Debug, Default)]
pub struct Unattended {
    since: BTreeMap<(String, u64), i64>,
    /// The nonces under which something was written that nobody looks for any more.
    strays: BTreeSet<String>,
}

impl Unattended {
    /// A commit arrived a second time or far too late, and was applied.
    pub fn strayed(&mut self, commit: &Commit) {
        self.strays.extend(commit.writes.iter().filter_map(nonce));
    }

    /// Whether something under this nonce has strayed.
    pub fn is_stray(&self, nonce: &str) -> bool {
        self.strays.contains(nonce)
    }

    /// Somebody holds this, or it has ended.
    pub fn attended(&mut self, id: &str, token: u64) {
        self.since.remove(&(id.to_owned(), token));
    }

    /// Nobody does. Its process has been `well` since then.
    pub fn unattended(
        &mut self,
        who: &str,
        id: &str,
        token: u64,
        well_ms: i64,
        now_ms: i64,
    ) -> Verdict {
        let since = *self.since.entry((id.to_owned(), token)).or_insert(now_ms);
        let since = since.max(well_ms);
        if now_ms - since <= LONG_MS {
            return Ok(());
        }
        let message = format!(
            "{id} with token {token} is held by {who} in the store, and by nobody there since {}",
            TrueClock::label(since)
        );
        Err(Violation::new(G9, message))
    }
}

/// The nonce of the acquisition for which this is written.
fn nonce(write: &Write) -> Option<String> {
    let Write::Put(put) = write else { return None };
    match put.key.kind.as_str() {
        WAITER => put.key.id.rsplit_once('#').map(|(_, nonce)| nonce.to_owned()),
        HAND_OVER => Some(request(&put.key.id)),
        LEASE => serde_json::from_slice::<LeaseRecord>(&put.payload).ok().map(|lease| lease.nonce),
        _ => None,
    }
}

/// What a request to hand over is known by: its id is the nonce of the lease it is for.
pub fn request(id: &str) -> String {
    format!("{HAND_OVER} {id}")
}

#[cfg(test)]
mod tests {
    use tenure::Key;
    use tenure::store::Put;

    use super::*;

    #[test]
    fn what_strayed_is_known_by_its_nonce() {
        let mut tenures = Unattended::default();
        let place = Put::new(Key::new(WAITER, "a/b#17"), "");
        tenures.strayed(&Commit::new().put(place));
        assert!(tenures.is_stray("17") && !tenures.is_stray("18"));
    }

    #[test]
    fn nobody_for_long_is_too_long_only_while_the_process_is_well() {
        let mut tenures = Unattended::default();
        assert!(tenures.unattended("p0#1", "a/b", 7, 0, 10_000).is_ok());
        assert!(tenures.unattended("p0#1", "a/b", 7, 10_500, 12_500).is_ok());
        assert!(tenures.unattended("p0#1", "a/b", 7, 0, 12_001).is_err());
        tenures.attended("a/b", 7);
        assert!(tenures.unattended("p0#1", "a/b", 7, 0, 12_002).is_ok());
    }
}
