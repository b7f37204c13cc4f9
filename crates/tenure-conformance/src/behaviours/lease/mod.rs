//! What leases promise on any store that can hold them: tenures, waiting, slots, hand-over, gates.

mod blocked;
mod gates;
mod grants;
mod handing;
pub(super) mod hooked;
mod leases;
mod letting_go;
mod recipe;
mod refusing;
mod reporting;
mod resuming;
mod sharing;
mod slots;
mod tenures;
mod waiting;

use crate::Behaviour;

/// In an order that tells the simplest thing wrong first.
pub(super) fn all() -> Vec<Behaviour> {
    let groups = [
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
