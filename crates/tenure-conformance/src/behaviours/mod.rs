//! The suite: every behaviour, by subject.

mod cas;
mod commits;
mod faults;
mod fenced;
mod helping;
mod labels;
mod limits;
mod linearizable;
mod listing;
mod names;
mod objects;
mod processes;
mod races;
mod reopening;
mod touch;
mod ttl;
mod unchanged;
mod watching;
mod writers;

use crate::Behaviour;

/// Every behaviour, in an order that tells the simplest thing wrong first.
pub fn behaviours() -> Vec<Behaviour> {
    let groups = [
        objects::all(),
        cas::all(),
        unchanged::all(),
        names::all(),
        labels::all(),
        listing::all(),
        limits::all(),
        commits::all(),
        fenced::all(),
        ttl::all(),
        touch::all(),
        watching::all(),
        helping::all(),
        races::all(),
        writers::all(),
        faults::all(),
        linearizable::all(),
        reopening::all(),
        processes::all(),
    ];
    groups.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_sentences() {
        let all = behaviours();
        let names: BTreeSet<_> = all.iter().map(|behaviour| behaviour.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.iter().all(|name| name.contains('_')));
        assert!(all.iter().all(|behaviour| behaviour.about.len() > 15));
    }
}
