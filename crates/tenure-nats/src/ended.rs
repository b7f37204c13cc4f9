//! Whose end was told already: the server may mark the end of something that was deleted at that very
//! instant.

use std::collections::{HashSet, VecDeque};

/// Subjects that are remembered.
const ENDED: usize = 4_096;

/// The subjects whose end was told last, in bounded memory.
#[derive(Default)]
pub(crate) struct Ended {
    subjects: HashSet<String>,
    order: VecDeque<String>,
}

impl Ended {
    /// Whether it had not ended before.
    pub(crate) fn insert(&mut self, subject: &str) -> bool {
        if !self.subjects.insert(subject.to_owned()) {
            return false;
        }
        self.order.push_back(subject.to_owned());
        while self.order.len() > ENDED {
            let Some(oldest) = self.order.pop_front() else { break };
            self.subjects.remove(&oldest);
        }
        true
    }

    pub(crate) fn remove(&mut self, subject: &str) {
        self.subjects.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_new_once_until_the_object_is_back() {
        let mut ended = Ended::default();
        assert!(ended.insert("a") && !ended.insert("a"));
        ended.remove("a");
        assert!(ended.insert("a"));
        for n in 0..ENDED * 3 {
            assert!(ended.insert(&format!("s{n}")));
        }
        assert!(ended.subjects.len() <= ENDED && ended.order.len() <= ENDED);
    }
}
