//! Seeds that must hold, histories that must repeat, and flaws that must be found.

use std::sync::atomic::{AtomicU64, Ordering};

use tenure::flaws::Flaw;
use tenure_sim::{Settings, check, flaws, report, run};

/// Runs these seeds on both cores; the report of the first that fails.
fn first_failure(seeds: std::ops::Range<u64>) -> Option<String> {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return None;
                }
                let outcome = check(seed, Settings::default());
                if outcome.violation.is_some() {
                    next.store(seeds.end, Ordering::Relaxed);
                    return Some(report::failure(&outcome, Settings::default(), false));
                }
            }
        };
        let other = scope.spawn(work);
        let mine = work();
        mine.or(other.join().expect("a seed does not panic"))
    })
}

/// A hundred seeds before a landing, and two thousand in `./test --long`.
#[test]
fn seeds_hold() {
    let seeds = if std::env::var_os("TENURE_TEST_LONG").is_some() { 2_000 } else { 100 };
    if let Some(report) = first_failure(0..seeds) {
        panic!("{report}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
        let (first, second) = (run(seed, Settings::default()), run(seed, Settings::default()));
        let differs = first.history.iter().zip(&second.history).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.history.len(), second.history.len(), "seed {seed}");
    }
}

#[test]
fn runs_are_full_of_life() {
    let outcomes: Vec<_> = (0..60).map(|seed| run(seed, Settings::default())).collect();
    let granted: u64 = outcomes.iter().map(|outcome| outcome.granted).sum();
    assert!(granted > 1_500, "{granted} leases in sixty seeds");
    // About one a seed, but some have many and most have none.
    let reaped: usize = outcomes.iter().map(|outcome| outcome.reaped).sum();
    assert!(reaped > 60, "{reaped} reaped in sixty seeds");
    for reason in ["expired", "taken", "revoked", "released", "handed_over"] {
        let told = outcomes.iter().flat_map(|outcome| &outcome.losses);
        assert!(told.into_iter().any(|(code, _)| *code == reason), "nobody was told: {reason}");
    }
}

#[test]
fn a_store_of_single_objects_is_full_of_life_too() {
    let settings = Settings { single: true, ..Settings::default() };
    let outcomes: Vec<_> = (0..20).map(|seed| check(seed, settings)).collect();
    let granted: u64 = outcomes.iter().map(|outcome| outcome.granted).sum();
    assert!(granted > 500, "{granted} leases in twenty seeds");
    let wrong = outcomes.iter().find(|outcome| outcome.violation.is_some());
    assert!(
        wrong.is_none(),
        "{}",
        wrong.map_or(String::new(), |o| report::failure(o, settings, false))
    );
}

/// The simulation finds this flaw soon, and names the guarantee that it breaks.
fn finds(flaw: Flaw) {
    finds_with(Settings { flaw: Some(flaw), ..Settings::default() });
}

fn finds_with(settings: Settings) {
    let flaw = settings.flaw.expect("a flaw to find");
    let (_, expected) =
        flaws::ALL.iter().find(|(known, _)| *known == flaw).expect("every flaw is listed");
    let found = (0..60).find_map(|seed| check(seed, settings).violation);
    let found = found.unwrap_or_else(|| panic!("{flaw:?} goes unnoticed for 60 seeds"));
    assert_eq!(found.guarantee, *expected, "{flaw:?}: {found}");
}

#[test]
fn g1_taking_what_is_held_is_found() {
    finds(Flaw::TakesWhatIsHeld);
}

#[test]
fn g1_overbooking_a_group_is_found() {
    finds(Flaw::OverbooksSlots);
}

#[test]
fn g2_tokens_that_restart_are_found() {
    finds(Flaw::TokenRestarts);
}

#[test]
fn g3_counting_from_the_reply_is_found() {
    finds(Flaw::CountsFromReply);
}

#[test]
fn g4_a_fence_for_nobody_is_found() {
    finds(Flaw::FencesNobody);
}

#[test]
fn g5_trusting_wall_clocks_is_found() {
    finds(Flaw::TrustsWallClocks);
}

#[test]
fn g6_changing_the_story_is_found() {
    finds(Flaw::ChangesItsStory);
}

#[test]
fn g7_giving_up_at_once_is_found() {
    finds(Flaw::GivesUpAtOnce);
}

#[test]
fn g8_calling_everybody_is_found() {
    finds(Flaw::CallsEverybody);
}

#[test]
fn g9_releasing_before_stopping_is_found() {
    finds(Flaw::ReleasesBeforeStopping);
}

#[test]
fn g9_keeping_what_is_dropped_is_found() {
    finds(Flaw::KeepsWhatIsDropped);
}

#[test]
fn g10_reaping_twice_is_found() {
    finds(Flaw::ReapsTwice);
}

/// Fences and remains need commits of several objects; all else is found there, too.
#[test]
fn flaws_are_found_on_a_store_of_single_objects() {
    for flaw in [
        Flaw::TakesWhatIsHeld,
        Flaw::TokenRestarts,
        Flaw::CountsFromReply,
        Flaw::TrustsWallClocks,
        Flaw::ChangesItsStory,
        Flaw::GivesUpAtOnce,
        Flaw::ReleasesBeforeStopping,
        Flaw::KeepsWhatIsDropped,
    ] {
        finds_with(Settings { flaw: Some(flaw), single: true, ..Settings::default() });
    }
}
