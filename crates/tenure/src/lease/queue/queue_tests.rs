//! Who is called when, in one line.

use super::*;
use crate::lease::queue::wakeup::Cue;
use futures::FutureExt;

const T0: Duration = Duration::from_secs(100);

fn line_of(ours: &[(&str, u64)], others: &[(&str, u64)]) -> (Line, Vec<Arc<Turn>>) {
    let mut line = Line::new(T0, 1);
    let turns = ours.iter().map(|(nonce, _)| line.announce(&Arc::from(*nonce))).collect();
    for (nonce, place) in ours {
        line.enter(&Arc::from(*nonce), *place);
    }
    let listed: Vec<_> =
        ours.iter().chain(others).map(|(nonce, place)| stored(nonce, *place, "")).collect();
    line.sync(&listed, 0, 1000);
    (line, turns)
}

fn stored(nonce: &str, place: u64, via: &str) -> Stored {
    Stored { nonce: nonce.into(), place, via: via.into() }
}

fn cue(turn: &Turn) -> Option<Cue> {
    turn.cue().now_or_never()
}

#[test]
fn one_waiter_is_called_at_a_time_in_order_of_arrival() {
    let (mut line, turns) = line_of(&[("b", 20), ("a", 10)], &[]);
    assert_eq!(line.next(T0), Next::Wait);
    assert_eq!((cue(&turns[1]), cue(&turns[0])), (Some(Cue::Try), None));
    assert_eq!(line.next(T0), Next::Wait, "nobody else while one tries");
    line.tried("a");
    line.leave("a");
    line.next(T0);
    assert_eq!(cue(&turns[0]), Some(Cue::Try));
}

#[test]
fn a_silent_waiter_of_another_process_is_passed_by_after_a_while() {
    let (mut line, turns) = line_of(&[("me", 30)], &[("x", 10), ("y", 20)]);
    assert_eq!(line.next(T0), Next::At(T0 + PATIENCE * 2));
    assert_eq!(line.next(T0 + PATIENCE * 2), Next::Wait);
    assert_eq!(cue(&turns[0]), Some(Cue::Try));
    assert_eq!(line.passed_by("me", 10).len(), 2);
}

#[test]
fn those_of_one_process_are_passed_by_together() {
    let (mut line, _turns) = line_of(&[("me", 3000)], &[]);
    for place in 1001..1500 {
        let via = if place % 2 == 0 { "dead" } else { "slow" };
        line.heard_waiter(&stored(&place.to_string(), place, via), place);
    }
    assert_eq!(line.next(T0), Next::At(T0 + PATIENCE * 2 * TURNS));
    // One that does not say where it waits may be anywhere.
    line.heard_waiter(&stored("old", 1600, ""), 1600);
    assert_eq!(line.next(T0), Next::At(T0 + PATIENCE * (2 * TURNS + 1)));
}

#[test]
fn busy_means_nobody_is_called_until_it_is_free_or_time_to_look() {
    let (mut line, turns) = line_of(&[("me", 30)], &[]);
    line.busy(T0 + PATIENCE);
    assert_eq!(line.next(T0), Next::At(T0 + PATIENCE));
    assert_eq!(cue(&turns[0]), None);
    line.heard_free(T0, 1);
    line.next(T0);
    assert_eq!(cue(&turns[0]), Some(Cue::Try));
    line.tried("me");
    line.busy(T0 + PATIENCE);
    line.next(T0 + PATIENCE);
    assert_eq!(cue(&turns[0]), Some(Cue::Try), "trying is how it looks");
}

#[test]
fn a_waiter_whose_place_goes_is_told_even_if_it_goes_before_it_was_entered() {
    let mut line = Line::new(T0, 1);
    let nonce: Arc<str> = "me".into();
    let turn = line.announce(&nonce);
    line.heard_waiter(&stored("me", 5, ""), 5);
    line.heard_gone("me", None, 6, T0);
    assert_eq!(cue(&turn), Some(Cue::Gone));
    line.enter(&nonce, 5);
    line.synced = true;
    assert_eq!(line.passed_by("me", 1).len(), 0);
    let (mut line, turns) = line_of(&[("me", 30)], &[]);
    line.sync(&[], 0, 2000);
    assert_eq!(cue(&turns[0]), Some(Cue::Gone));
    assert_eq!(line.next(T0), Next::Wait);
}

#[test]
fn the_mark_goes_only_with_the_last_waiter() {
    let (line, _) = line_of(&[("me", 30)], &[("x", 10)]);
    assert_eq!(line.mark_if_alone("me"), None);
    let (line, _) = line_of(&[("me", 30)], &[]);
    assert_eq!(line.mark_if_alone("me"), Some(30));
}

#[test]
fn news_older_than_the_list_changes_nothing() {
    let (mut line, _) = line_of(&[("me", 30)], &[]);
    line.heard_waiter(&stored("late", 7, ""), 900);
    assert_eq!(line.passed_by("me", 10).len(), 0);
    line.heard_waiter(&stored("new", 1001, ""), 1001);
    assert_eq!(line.mark_if_alone("me"), None);
}
