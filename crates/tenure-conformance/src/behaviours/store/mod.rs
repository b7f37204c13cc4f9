//! What a store promises: objects, commits, lives, watches; under races, faults and several processes.

mod cas;
mod commits;
pub(super) mod faults;
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
pub(super) mod user_sql;
mod watching;
mod writers;

use crate::Behaviour;

/// In an order that tells the simplest thing wrong first.
pub(super) fn all() -> Vec<Behaviour> {
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
    ];
    groups.into_iter().flatten().collect()
}
