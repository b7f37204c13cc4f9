//! Ways to break each guarantee on purpose, compiled only for the tests that must notice.

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
