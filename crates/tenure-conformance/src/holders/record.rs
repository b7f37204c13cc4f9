//! What all holders have told so far, as far as it is needed to disturb them and to judge them.

use std::collections::{BTreeMap, BTreeSet};

use super::holder::{Entry, Said, entry_id};

/// A stretch of time in which a process believed to hold a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Belief {
    pub process: String,
    pub lease: String,
    pub token: u64,
    pub from: u64,
    pub until: u64,
}

/// A tenure that has not ended as far as its process has told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tenure {
    pub lease: String,
    pub token: u64,
    from: u64,
    /// The end of its life, as last told.
    until: u64,
    /// Counts under it.
    pub counted: u64,
}

/// What one process has told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub tenure: Option<Tenure>,
    /// How each tenure ended, by its token.
    pub ended: BTreeMap<u64, String>,
    pub beliefs: Vec<Belief>,
    /// Every acknowledged count, with its revision, by its id in the journal.
    pub counted: BTreeMap<String, (Entry, u64)>,
    pub unknown: BTreeSet<String>,
    pub refused: BTreeSet<String>,
    /// Late counts that the fence stopped.
    pub fenced_off: u64,
    /// The count that was under way when the process was killed, if one was.
    pub cut_off: Option<String>,
    /// It was killed or told to stop.
    dismissed: bool,
    /// Its output has ended.
    pub gone: bool,
    attempts: u64,
}

/// What all processes have told, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub told: BTreeMap<String, Told>,
    /// The first thing that must not happen.
    pub complaint: Option<String>,
    /// Counts of all processes.
    pub counts: u64,
}

impl Record {
    pub(super) fn complain(&mut self, process: &str, what: &str) {
        self.complaint.get_or_insert_with(|| format!("{process}: {what}"));
    }

    /// Takes in one thing that a process said.
    pub(super) fn hear(&mut self, process: &str, said: Said) {
        let told = self.told.entry(process.to_owned()).or_default();
        match said {
            Said::Acquired { lease, token, at, until } => {
                told.tenure = Some(Tenure { lease, token, from: at, until, counted: 0 });
            }
            Said::Counted { n, entry, revision, until, late } => {
                told.attempts = n;
                if let Some(tenure) = told.tenure.as_mut().filter(|_| !late) {
                    tenure.until = tenure.until.max(until);
                    tenure.counted += 1;
                }
                told.counted.insert(entry_id(process, n), (entry, revision));
                self.counts += 1;
            }
            Said::Refused { n, lost, late } => {
                told.attempts = n;
                told.refused.insert(entry_id(process, n));
                told.fenced_off += u64::from(lost && late);
            }
            Said::Unknown { n } => {
                told.attempts = n;
                told.unknown.insert(entry_id(process, n));
            }
            Said::Ended { lease, token, until, how } => {
                let from = told.tenure.take().map_or(until, |tenure| tenure.from);
                let process = process.to_owned();
                told.beliefs.push(Belief { process, lease, token, from, until });
                told.ended.insert(token, how);
            }
            Said::Complaint(what) => self.complain(process, &what),
        }
    }

    /// A process is about to end, as it should.
    pub(super) fn dismiss(&mut self, process: &str) {
        self.told.entry(process.to_owned()).or_default().dismissed = true;
    }

    /// A process's output has ended.
    pub(super) fn gone(&mut self, process: &str) {
        let told = self.told.entry(process.to_owned()).or_default();
        told.gone = true;
        if !told.dismissed {
            self.complain(process, "it ended by itself");
        }
    }

    /// A process was killed at this instant, and all it said was heard.
    pub(super) fn killed(&mut self, process: &str, at: u64) {
        let told = self.told.entry(process.to_owned()).or_default();
        told.cut_off = Some(entry_id(process, told.attempts + 1));
        if let Some(Tenure { lease, token, from, until, .. }) = told.tenure.take() {
            let (process, until) = (process.to_owned(), until.min(at));
            told.beliefs.push(Belief { process, lease, token, from, until });
        }
    }

    /// Those who hold something and have counted under it.
    pub(super) fn holders(&self) -> impl Iterator<Item = (&String, &Tenure)> {
        self.told.iter().filter_map(|(name, told)| {
            let tenure = told.tenure.as_ref()?;
            (tenure.counted > 0 && !told.gone).then_some((name, tenure))
        })
    }

    /// Whether somebody has counted on this lease under a later token.
    pub(super) fn has_successor(&self, lease: &str, token: u64) -> bool {
        self.holders().any(|(_, tenure)| tenure.lease == lease && tenure.token > token)
    }

    pub(super) fn beliefs(&self) -> Vec<Belief> {
        self.told.values().flat_map(|told| told.beliefs.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquired(token: u64, at: u64, until: u64) -> Said {
        Said::Acquired { lease: "l".into(), token, at, until }
    }

    fn counted(n: u64, token: u64, until: u64, late: bool) -> Said {
        let entry = Entry { process: "a".into(), lease: "l".into(), token, value: n };
        Said::Counted { n, entry, revision: 10 + n, until, late }
    }

    #[test]
    fn a_killed_process_believed_until_it_died_or_its_life_was_over() {
        for (at, until) in [(70, 70), (500, 90)] {
            let mut record = Record::default();
            record.hear("a", acquired(5, 10, 80));
            record.hear("a", counted(1, 5, 90, false));
            record.killed("a", at);
            let told = &record.told["a"];
            assert_eq!((told.beliefs[0].from, told.beliefs[0].until), (10, until));
            assert_eq!(told.cut_off.as_deref(), Some("a-2"));
        }
    }

    #[test]
    fn a_holder_is_one_who_has_counted_and_a_late_count_makes_none() {
        let mut record = Record::default();
        record.hear("a", acquired(5, 10, 80));
        assert_eq!(record.holders().count(), 0);
        record.hear("a", counted(1, 5, 90, false));
        assert_eq!(record.holders().count(), 1);
        assert!(record.has_successor("l", 4) && !record.has_successor("l", 5));
        let ended = Said::Ended { lease: "l".into(), token: 5, until: 60, how: "expired".into() };
        record.hear("a", ended);
        record.hear("a", counted(2, 5, 90, true));
        record.hear("a", Said::Refused { n: 3, lost: true, late: true });
        assert_eq!(record.holders().count(), 0);
        assert_eq!((record.counts, record.told["a"].fenced_off), (2, 1));
        assert_eq!(record.beliefs()[0].until, 60);
    }
}
