//! Ways to break each guarantee on purpose, for the simulation that must notice.
//!
//! This is the one seam for them. A mistake is an `if planted(Flaw::…)` where it would be made. In
//! this crate `planted` is always `false`, so that what ships and what is tested is the same code, and
//! the compiler drops the branch. The crate `tenure-flawed` builds the same files with the feature
//! `flaws`; there, [`plant`] chooses the mistake of everything that runs on this thread.

// The module is public where mistakes can be planted.
#![cfg_attr(not(feature = "flaws"), allow(unreachable_pub))]

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// G1: acquires what somebody else holds.
    TakesWhatIsHeld,
    /// G1: takes one slot more than the group has.
    OverbooksSlots,
    /// G2: the token is the record's version, which starts again after each release.
    TokenRestarts,
    /// G3: the deadline counts from the reply, without a margin.
    CountsFromReply,
    /// G4: the fence lets everybody through.
    FencesNobody,
    /// G5: a waiter judges expiry by its own wall clock.
    TrustsWallClocks,
    /// G6: a later reason replaces the first one.
    ChangesItsStory,
    /// G7: one renewal that fails ends the tenure.
    GivesUpAtOnce,
    /// G8: every waiter is called at once.
    CallsEverybody,
    /// G9: the gate releases first and stops the work afterwards.
    ReleasesBeforeStopping,
    /// G9: a handle that is dropped lets go of nothing.
    KeepsWhatIsDropped,
    /// G10: a reaper does not mind that another was quicker.
    ReapsTwice,
}

#[cfg(not(feature = "flaws"))]
pub(crate) const fn planted(_flaw: Flaw) -> bool {
    false
}

#[cfg(feature = "flaws")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

/// From now on everything on this thread makes this mistake, or none.
#[cfg(feature = "flaws")]
pub fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}

#[cfg(feature = "flaws")]
pub(crate) fn planted(flaw: Flaw) -> bool {
    PLANTED.get() == Some(flaw)
}
