//! Which deletions watches were told of last. The server may mark the end of a life at the very instant
//! at which somebody deletes the object; watches are told once.

use std::collections::{HashSet, VecDeque};

/// Subjects that are remembered.
const SUBJECTS: usize = 4_096;

/// The subjects that were deleted last, in bounded memory.
#[derive(Default)]
pub(crate) struct RecentDeletes {
    subjects: HashSet<String>,
    order: VecDeque<String>,
}

impl RecentDeletes {
    /// Notes a deletion; `false` if it was known.
    pub(crate) fn insert(&mut self, subject: &str) -> bool {
        if !self.subjects.insert(subject.to_owned()) {
            return false;
        }
        self.order.push_back(subject.to_owned());
        while self.order.len() > SUBJECTS {
            let Some(oldest) = self.order.pop_front() else { break };
            self.subjects.remove(&oldest);
        }
        true
    }

    /// The object is back.
    pub(crate) fn remove(&mut self, subject: &str) {
        self.subjects.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_new_once_until_the_object_is_back() {
        let mut deleted = RecentDeletes::default();
        assert!(deleted.insert("a") && !deleted.insert("a"));
        deleted.remove("a");
        assert!(deleted.insert("a"));
        for n in 0..SUBJECTS * 3 {
            assert!(deleted.insert(&format!("s{n}")));
        }
        assert!(deleted.subjects.len() <= SUBJECTS && deleted.order.len() <= SUBJECTS);
    }
}
