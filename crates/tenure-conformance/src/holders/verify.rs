//! What must hold when all is over, judged from the store and from what the holders told.
//!
//! - No lost update: the counter is the number of journal entries, and in the order of their revisions
//!   they hold 1, 2, 3, ….
//! - No late writer: in that order tokens never fall, and each belongs to one process.
//! - Nothing acknowledged is missing, nothing refused is there; what nobody knew is settled by the
//!   journal.
//! - No overlap: the stretches in which two processes believed to hold one lease share no instant.
//!
//! The first two need fenced commits, so they are judged where there are any.

use std::collections::{BTreeMap, BTreeSet};

use tenure::store::{Query, Store};

use super::holder::Entry;
use super::record::{Belief, Record};
use crate::Failure;
use crate::helpers::number;

/// One journal entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub id: String,
    pub revision: u64,
    pub entry: Entry,
}

/// What the store says when all is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Books {
    /// By revision.
    pub journal: Vec<Stored>,
    /// The counters, by lease.
    pub counters: BTreeMap<String, u64>,
}

impl Books {
    pub(super) async fn read(
        store: &Store,
        counters: &str,
        journal: &str,
    ) -> Result<Self, Failure> {
        let mut books = Self::default();
        for object in store.list_all(&Query::new(counters)).await? {
            books.counters.insert(object.key.id.clone(), number(&object));
        }
        for object in store.list_all(&Query::new(journal)).await? {
            let entry = serde_json::from_slice(&object.payload)?;
            books.journal.push(Stored { id: object.key.id, revision: object.revision, entry });
        }
        books.journal.sort_by_key(|stored| stored.revision);
        Ok(books)
    }

    /// Judges everything.
    pub(super) fn verify(&self, record: &Record, at_most: u32) -> Result<(), Failure> {
        self.no_update_is_lost()?;
        self.tokens_rise()?;
        self.verify_unfenced(record, at_most)
    }

    /// Judges what holds without fences, too.
    pub(super) fn verify_unfenced(&self, record: &Record, at_most: u32) -> Result<(), Failure> {
        self.tokens_have_one_owner()?;
        self.everybody_was_told_the_truth(record)?;
        let beliefs = record.beliefs();
        nobody_overlaps(&beliefs)?;
        let most = most_at_once(&beliefs);
        ensure!(most <= at_most, "{most} believed to hold at once, {at_most} may");
        Ok(())
    }

    fn by_lease(&self) -> BTreeMap<&str, Vec<&Stored>> {
        let mut leases: BTreeMap<&str, Vec<&Stored>> = BTreeMap::new();
        for stored in &self.journal {
            leases.entry(&stored.entry.lease).or_default().push(stored);
        }
        leases
    }

    fn no_update_is_lost(&self) -> Result<(), Failure> {
        let leases = self.by_lease();
        ensure_eq!(
            leases.keys().copied().collect::<Vec<_>>(),
            self.counters.keys().collect::<Vec<_>>(),
            "leases with entries, and with counters"
        );
        for (lease, entries) in leases {
            for (expected, stored) in (1_u64..).zip(&entries) {
                ensure_eq!(stored.entry.value, expected, "the value of {stored:?}");
            }
            ensure_eq!(
                self.counters.get(lease).copied(),
                Some(entries.len() as u64),
                "the counter of {lease}"
            );
        }
        Ok(())
    }

    fn tokens_rise(&self) -> Result<(), Failure> {
        for entries in self.by_lease().values() {
            for pair in entries.windows(2) {
                let (before, after) = (pair[0], pair[1]);
                ensure!(
                    before.entry.token <= after.entry.token,
                    "a former holder wrote after its successor: {before:?}, then {after:?}"
                );
            }
        }
        Ok(())
    }

    fn tokens_have_one_owner(&self) -> Result<(), Failure> {
        let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
        for Stored { entry, .. } in &self.journal {
            let owner = *owners.entry(entry.token).or_insert(&entry.process);
            ensure_eq!(owner, entry.process, "the process of token {}", entry.token);
        }
        Ok(())
    }

    fn everybody_was_told_the_truth(&self, record: &Record) -> Result<(), Failure> {
        let mut there: BTreeMap<&str, &Stored> =
            self.journal.iter().map(|stored| (stored.id.as_str(), stored)).collect();
        for (process, told) in &record.told {
            for (id, (entry, revision)) in &told.counted {
                let Some(stored) = there.remove(id.as_str()) else {
                    return Err(Failure::new(format!("acknowledged and lost: {id} ({entry:?})")));
                };
                ensure_eq!((&stored.entry, stored.revision), (entry, *revision), "{id}");
            }
            for id in &told.refused {
                ensure!(!there.contains_key(id.as_str()), "refused and applied: {id}");
            }
            // Of these the journal alone knows; either way is fine.
            for id in told.unknown.iter().chain(&told.cut_off) {
                there.remove(id.as_str());
            }
            ensure!(told.tenure.is_none(), "{process} never told how its tenure ended");
        }
        ensure!(there.is_empty(), "applied, though nobody was under way with it: {there:?}");
        Ok(())
    }
}

/// Whether two processes, or two tenures of one, believed to hold one lease at the same instant.
fn nobody_overlaps(beliefs: &[Belief]) -> Result<(), Failure> {
    let mut leases: BTreeMap<&str, Vec<&Belief>> = BTreeMap::new();
    for belief in beliefs.iter().filter(|belief| belief.from < belief.until) {
        leases.entry(&belief.lease).or_default().push(belief);
    }
    for beliefs in leases.values_mut() {
        beliefs.sort_by_key(|belief| belief.from);
        for pair in beliefs.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            ensure!(before.until <= after.from, "two holders at once: {before:?} and {after:?}");
            ensure!(before.token < after.token, "tokens fell: {before:?}, then {after:?}");
        }
    }
    Ok(())
}

/// How many believed to hold something at the same instant.
pub(super) fn most_at_once(beliefs: &[Belief]) -> u32 {
    // An end comes before a beginning of the same instant.
    let edges: BTreeSet<(u64, bool, u64)> = beliefs
        .iter()
        .filter(|belief| belief.from < belief.until)
        .flat_map(|b| [(b.from, true, b.token), (b.until, false, b.token)])
        .collect();
    let (mut now, mut most) = (0_u32, 0);
    for (_, begins, _) in edges {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::super::holder::Said;
    use super::*;

    /// Entries of the lease `l` as (process, token, value), in order of their revisions, all told.
    fn books(entries: &[(&str, u64, u64)]) -> (Books, Record) {
        let (mut books, mut record) = (Books::default(), Record::default());
        for (n, (process, token, value)) in (1_u64..).zip(entries) {
            let (process, token, value) = ((*process).to_owned(), *token, *value);
            let entry = Entry { process: process.clone(), lease: "l".into(), token, value };
            let (id, revision) = (super::super::holder::entry_id(&process, n), 100 + n);
            let (until, late) = (0, false);
            books.journal.push(Stored { id, revision, entry: entry.clone() });
            record.hear(&process, Said::Counted { n, entry, revision, until, late });
        }
        books.counters.insert("l".into(), entries.len() as u64);
        (books, record)
    }

    fn belief(process: &str, token: u64, from: u64, until: u64) -> Belief {
        Belief { process: process.into(), lease: "l".into(), token, from, until }
    }

    #[track_caller]
    fn fails(result: Result<(), Failure>, with: &str) {
        let failure = result.expect_err(with).to_string();
        assert!(failure.contains(with), "{failure}");
    }

    #[test]
    fn orderly_books_pass() {
        let (books, mut record) = books(&[("a", 5, 1), ("a", 5, 2), ("b", 9, 3)]);
        record.told.entry("a".into()).or_default().beliefs = vec![belief("a", 5, 10, 20)];
        record.told.entry("b".into()).or_default().beliefs = vec![belief("b", 9, 20, 30)];
        books.verify(&record, 1).expect("nothing is wrong");
    }

    #[test]
    fn a_lost_update_is_noticed() {
        let (books, record) = books(&[("a", 5, 1), ("a", 5, 2), ("b", 9, 2)]);
        fails(books.verify(&record, 1), "the value of");
    }

    #[test]
    fn a_late_writer_is_noticed() {
        let (books, record) = books(&[("a", 5, 1), ("b", 9, 2), ("a", 5, 3)]);
        fails(books.verify(&record, 1), "a former holder wrote");
    }

    #[test]
    fn one_token_for_two_is_noticed() {
        let (books, record) = books(&[("a", 5, 1), ("b", 5, 2)]);
        fails(books.verify(&record, 1), "the process of token 5");
    }

    #[test]
    fn without_fences_a_late_writer_is_nobodys_fault_but_two_owners_are() {
        let (late, record) = books(&[("a", 5, 1), ("b", 9, 2), ("a", 5, 3)]);
        late.verify_unfenced(&record, 1).expect("nothing could have stopped it");
        let (shared, record) = books(&[("a", 5, 1), ("b", 5, 2)]);
        fails(shared.verify_unfenced(&record, 1), "the process of token 5");
    }

    #[test]
    fn what_was_acknowledged_refused_or_never_asked_for_is_compared_with_the_journal() {
        let orderly = [("a", 5, 1), ("a", 5, 2)];
        let (mut without, record) = books(&orderly);
        without.journal.pop();
        without.counters.insert("l".into(), 1);
        fails(without.verify(&record, 1), "acknowledged and lost");
        let (full, mut record) = books(&orderly);
        let told = record.told.entry("a".into()).or_default();
        told.counted.remove("a-2");
        fails(full.verify(&record, 1), "nobody was under way");
        let mut refused = record.clone();
        refused.hear("a", Said::Refused { n: 2, lost: true, late: false });
        fails(full.verify(&refused, 1), "refused and applied");
        record.hear("a", Said::Unknown { n: 2 });
        full.verify(&record, 1).expect("the journal settles what was unknown");
    }

    #[test]
    fn beliefs_that_share_an_instant_are_noticed() {
        nobody_overlaps(&[belief("a", 5, 10, 20), belief("b", 9, 20, 30)]).expect("they touch");
        fails(nobody_overlaps(&[belief("a", 5, 10, 21), belief("b", 9, 20, 30)]), "two holders");
        fails(nobody_overlaps(&[belief("a", 9, 10, 20), belief("b", 5, 20, 30)]), "tokens fell");
        let other = Belief { lease: "m".into(), ..belief("c", 7, 15, 40) };
        let three = [belief("a", 5, 10, 20), belief("b", 9, 20, 30), other];
        nobody_overlaps(&three).expect("two leases");
        assert_eq!(most_at_once(&three), 2);
    }
}
