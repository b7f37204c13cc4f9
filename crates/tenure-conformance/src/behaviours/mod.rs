//! The suite: every behaviour, by subject.

mod blocked;
mod cas;
mod commits;
mod faults;
mod fenced;
mod gates;
mod grants;
mod handing;
mod helping;
mod hooked;
mod labels;
mod leases;
mod letting_go;
mod limits;
mod linearizable;
mod listing;
mod names;
mod objects;
mod processes;
mod races;
mod recipe;
mod refusing;
mod reopening;
mod reporting;
mod resuming;
mod sharing;
mod slots;
mod tenures;
mod touch;
mod ttl;
mod unchanged;
mod user_sql;
mod waiting;
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
        user_sql::everywhere(),
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
        leases::all(),
        recipe::all(),
        tenures::all(),
        letting_go::all(),
        blocked::all(),
        waiting::all(),
        handing::all(),
        slots::all(),
        sharing::all(),
        grants::all(),
        resuming::all(),
        hooked::all(),
        reporting::all(),
        gates::all(),
        refusing::all(),
    ];
    groups.into_iter().flatten().collect()
}

/// The behaviours of stores that run the user's own SQL in a commit. They need a table of the user's,
/// so only tests that bring one can run them, with [`crate::run_one_with_sql`].
pub fn sql_behaviours() -> Vec<Behaviour> {
    user_sql::all().into_iter().chain(hooked::with_sql()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_sentences() {
        let mut all = behaviours();
        all.extend(sql_behaviours());
        let names: BTreeSet<_> = all.iter().map(|behaviour| behaviour.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.iter().all(|name| name.contains('_')));
        assert!(all.iter().all(|behaviour| behaviour.about.len() > 15));
    }
}
