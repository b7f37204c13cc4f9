//! The suite: every behaviour, by subject.

mod lease;
mod store;

use crate::Behaviour;

/// Every behaviour, in an order that tells the simplest thing wrong first.
pub fn behaviours() -> Vec<Behaviour> {
    store::all().into_iter().chain(lease::all()).collect()
}

/// The behaviours of stores that run the user's own SQL in a commit. They need a table of the user's,
/// so only tests that bring one can run them, with [`crate::run_one_with_sql`].
pub fn sql_behaviours() -> Vec<Behaviour> {
    store::user_sql::all().into_iter().chain(lease::hooked::with_sql()).collect()
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
