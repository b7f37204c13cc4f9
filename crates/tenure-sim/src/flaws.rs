//! Every mistake that can be made on purpose, and the guarantee that it breaks.

use tenure::flaws::Flaw;

use crate::history::Guarantee;

/// The flaws, each with the guarantee the simulation must find violated.
pub const ALL: [(Flaw, Guarantee); 12] = [
    (Flaw::TakesWhatIsHeld, Guarantee::G1),
    (Flaw::OverbooksSlots, Guarantee::G1),
    (Flaw::TokenRestarts, Guarantee::G2),
    (Flaw::CountsFromReply, Guarantee::G3),
    (Flaw::FencesNobody, Guarantee::G4),
    (Flaw::TrustsWallClocks, Guarantee::G5),
    (Flaw::ChangesItsStory, Guarantee::G6),
    (Flaw::GivesUpAtOnce, Guarantee::G7),
    (Flaw::CallsEverybody, Guarantee::G8),
    (Flaw::ReleasesBeforeStopping, Guarantee::G9),
    (Flaw::KeepsWhatIsDropped, Guarantee::G9),
    (Flaw::ReapsTwice, Guarantee::G10),
];
