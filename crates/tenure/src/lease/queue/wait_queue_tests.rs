//! Who is called when, in one queue.

use super::*;
use crate::lease::queue::wakeup::Wake;
use futures::FutureExt;

const T0: Duration = Duration::from_secs(100);

fn line_of(ours: &[(&str, u64)], others: &[(&str, u64)]) -> (WaitQueue, Vec<Arc<Wakeup>>) {
    let mut queue = WaitQueue::new(T0, 1);
    let turns = ours.iter().map(|(nonce, _)| queue.announce(&Arc::from(*nonce))).collect();
    for (nonce, place) in ours {
        queue.enter(&Arc::from(*nonce), *place);
    }
    let listed: Vec<_> =
        ours.iter().chain(others).map(|(nonce, place)| stored(nonce, *place, "")).collect();
    queue.sync(&listed, 0, 1000);
    (queue, turns)
}

fn stored(nonce: &str, place: u64, via: &str) -> ListedWaiter {
    ListedWaiter { nonce: nonce.into(), place, via: via.into() }
}

fn woken(turn: &Wakeup) -> Option<Wake> {
    turn.woken().now_or_never()
}

#[test]
fn one_waiter_is_called_at_a_time_in_order_of_arrival() {
    let (mut queue, turns) = line_of(&[("b", 20), ("a", 10)], &[]);
    assert_eq!(queue.next(T0), Next::Wait);
    assert_eq!((woken(&turns[1]), woken(&turns[0])), (Some(Wake::Try), None));
    assert_eq!(queue.next(T0), Next::Wait, "nobody else while one tries");
    queue.tried("a");
    queue.leave("a");
    queue.next(T0);
    assert_eq!(woken(&turns[0]), Some(Wake::Try));
}

#[test]
fn a_silent_waiter_of_another_process_is_passed_by_after_a_while() {
    let (mut queue, turns) = line_of(&[("me", 30)], &[("x", 10), ("y", 20)]);
    assert_eq!(queue.next(T0), Next::At(T0 + PATIENCE * 2));
    assert_eq!(queue.next(T0 + PATIENCE * 2), Next::Wait);
    assert_eq!(woken(&turns[0]), Some(Wake::Try));
    assert_eq!(queue.passed_by("me", 10).len(), 2);
}

#[test]
fn those_of_one_process_are_passed_by_together() {
    let (mut queue, _turns) = line_of(&[("me", 3000)], &[]);
    for place in 1001..1500 {
        let via = if place % 2 == 0 { "dead" } else { "slow" };
        queue.heard_waiter(&stored(&place.to_string(), place, via), place);
    }
    assert_eq!(queue.next(T0), Next::At(T0 + PATIENCE * 2 * TURNS));
    // One that does not say where it waits may be anywhere.
    queue.heard_waiter(&stored("old", 1600, ""), 1600);
    assert_eq!(queue.next(T0), Next::At(T0 + PATIENCE * (2 * TURNS + 1)));
}

#[test]
fn busy_means_nobody_is_called_until_it_is_free_or_time_to_look() {
    let (mut queue, turns) = line_of(&[("me", 30)], &[]);
    queue.busy(T0 + PATIENCE);
    assert_eq!(queue.next(T0), Next::At(T0 + PATIENCE));
    assert_eq!(woken(&turns[0]), None);
    queue.heard_free(T0, 1);
    queue.next(T0);
    assert_eq!(woken(&turns[0]), Some(Wake::Try));
    queue.tried("me");
    queue.busy(T0 + PATIENCE);
    queue.next(T0 + PATIENCE);
    assert_eq!(woken(&turns[0]), Some(Wake::Try), "trying is how it looks");
}

#[test]
fn a_waiter_whose_place_goes_is_told_even_if_it_goes_before_it_was_entered() {
    let mut queue = WaitQueue::new(T0, 1);
    let nonce: Arc<str> = "me".into();
    let turn = queue.announce(&nonce);
    queue.heard_waiter(&stored("me", 5, ""), 5);
    queue.heard_gone("me", None, 6, T0);
    assert_eq!(woken(&turn), Some(Wake::Gone));
    queue.enter(&nonce, 5);
    queue.synced = true;
    assert_eq!(queue.passed_by("me", 1).len(), 0);
    let (mut queue, turns) = line_of(&[("me", 30)], &[]);
    queue.sync(&[], 0, 2000);
    assert_eq!(woken(&turns[0]), Some(Wake::Gone));
    assert_eq!(queue.next(T0), Next::Wait);
}

#[test]
fn the_mark_goes_only_with_the_last_waiter() {
    let (queue, _) = line_of(&[("me", 30)], &[("x", 10)]);
    assert_eq!(queue.marker_if_alone("me"), None);
    let (queue, _) = line_of(&[("me", 30)], &[]);
    assert_eq!(queue.marker_if_alone("me"), Some(30));
}

#[test]
fn news_older_than_the_list_changes_nothing() {
    let (mut queue, _) = line_of(&[("me", 30)], &[]);
    queue.heard_waiter(&stored("late", 7, ""), 900);
    assert_eq!(queue.passed_by("me", 10).len(), 0);
    queue.heard_waiter(&stored("new", 1001, ""), 1001);
    assert_eq!(queue.marker_if_alone("me"), None);
}
