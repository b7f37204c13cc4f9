//! What the checker accepts and what it rejects.

use super::*;

/// Lives of a hundred milliseconds.
const LIVES: Lives = Lives {
    ttl: Duration::from_millis(100),
    early: Duration::from_millis(2),
    late: Duration::from_millis(10),
};

/// One tick is a millisecond.
fn op(sent: u64, answered: u64, call: Call, answer: Answer) -> Operation {
    let ended = match answered {
        u64::MAX => Duration::MAX,
        answered => Duration::from_millis(answered),
    };
    Operation { sent, answered, begun: Duration::from_millis(sent), ended, call, answer }
}

fn lend(key: usize, condition: Condition, value: u64) -> Call {
    Call::Commit(vec![(key, condition, Action::Lend(value))])
}

fn put(key: usize, condition: Condition, value: u64) -> Call {
    Call::Commit(vec![(key, condition, Action::Put(value))])
}

fn done(version: u64) -> Answer {
    Answer::Done(vec![Effect::Put(version)])
}

fn read(version: u64, value: u64) -> Answer {
    Answer::Read(Some((version, value)))
}

fn verdict(history: &[Operation]) -> Verdict {
    check(history, 2, &LIVES, 100_000)
}

fn is_violation(history: &[Operation]) -> bool {
    matches!(verdict(history), Verdict::Violation { .. })
}

#[test]
fn accepts_what_one_thing_at_a_time_could_have_done() {
    let any = Condition::Any;
    let history = [
        op(0, 10, put(0, any, 1), done(1)),
        // Overlaps the put: may see nothing yet, or the value.
        op(1, 5, Call::Get(0), Answer::Read(None)),
        op(2, 9, Call::Get(0), read(1, 1)),
        op(11, 20, put(0, Condition::Version(1), 2), done(2)),
        op(12, 19, put(0, Condition::Version(1), 3), Answer::Refused(0, 2)),
        op(
            21,
            22,
            Call::Commit(vec![(0, any, Action::Delete)]),
            Answer::Done(vec![Effect::Deleted]),
        ),
        op(23, 24, Call::List, Answer::Listed(vec![None, None])),
    ];
    assert_eq!(verdict(&history), Verdict::Linearizable);
}

#[test]
fn rejects_a_stale_read() {
    let history = [
        op(0, 1, put(0, Condition::Any, 1), done(1)),
        op(2, 3, put(0, Condition::Any, 2), done(2)),
        op(4, 5, Call::Get(0), read(1, 1)),
    ];
    assert!(is_violation(&history));
    // The same answers are fine if the read was sent before the second put was answered.
    let mut overlapping = history.to_vec();
    (overlapping[2].sent, overlapping[2].answered) = (2, 5);
    assert_eq!(verdict(&overlapping), Verdict::Linearizable);
}

#[test]
fn rejects_reads_that_go_back_in_time() {
    let history = [
        op(0, 1, put(0, Condition::Any, 1), done(1)),
        op(2, 100, put(0, Condition::Any, 2), done(2)),
        op(3, 4, Call::Get(0), read(2, 2)),
        op(5, 6, Call::Get(0), read(1, 1)),
    ];
    assert!(is_violation(&history));
}

#[test]
fn rejects_a_lost_update() {
    let history = [
        op(0, 1, put(0, Condition::Any, 1), done(1)),
        op(2, 10, put(0, Condition::Version(1), 2), done(2)),
        op(2, 10, put(0, Condition::Value(1), 3), done(2)),
    ];
    assert!(is_violation(&history));
}

#[test]
fn rejects_two_creations_and_a_wrong_version() {
    let twice = [
        op(0, 10, put(0, Condition::Absent, 1), done(1)),
        op(0, 10, put(0, Condition::Absent, 2), done(1)),
    ];
    assert!(is_violation(&twice));
    let skipped =
        [op(0, 1, put(0, Condition::Any, 1), done(1)), op(2, 3, Call::Get(0), read(2, 1))];
    assert!(is_violation(&skipped));
}

fn both(value: u64) -> Call {
    let any = Condition::Any;
    Call::Commit(vec![(0, any, Action::Put(value)), (1, any, Action::Put(value + 1))])
}

#[test]
fn rejects_a_commit_that_is_seen_in_two_halves() {
    let wrote = Answer::Done(vec![Effect::Put(1), Effect::Put(1)]);
    let torn = [
        op(0, 100, both(1), wrote.clone()),
        op(1, 2, Call::Get(0), read(1, 1)),
        op(3, 4, Call::Get(1), Answer::Read(None)),
    ];
    assert!(is_violation(&torn));
    let listed = Answer::Listed(vec![Some((1, 1)), None]);
    assert!(is_violation(&[op(0, 100, both(1), wrote.clone()), op(1, 2, Call::List, listed)]));
    let whole = [op(0, 100, both(1), wrote), op(3, 4, Call::Get(1), read(1, 2))];
    assert_eq!(verdict(&whole), Verdict::Linearizable);
}

#[test]
fn rejects_write_skew() {
    let (any, first) = (Condition::Any, Condition::Version(1));
    let leave = |me: usize, value| {
        Call::Commit(vec![(1 - me, first, Action::Check), (me, first, Action::Put(value))])
    };
    let history = [
        op(0, 1, put(0, any, 1), done(1)),
        op(0, 1, put(1, any, 2), done(1)),
        op(2, 9, leave(0, 3), done(2)),
        op(2, 9, leave(1, 4), done(2)),
    ];
    assert!(is_violation(&history));
}

#[test]
fn an_unknown_write_may_happen_late_or_never_but_once() {
    let unknown = op(0, u64::MAX, put(0, Condition::Any, 1), Answer::Unknown);
    let never = op(5, 6, Call::Get(0), Answer::Read(None));
    let late = op(7, 8, Call::Get(0), read(1, 1));
    let again = op(9, 10, Call::Get(0), Answer::Read(None));
    assert_eq!(verdict(&[unknown.clone(), never.clone()]), Verdict::Linearizable);
    let both = [unknown.clone(), never, late.clone()];
    assert_eq!(verdict(&both), Verdict::Linearizable);
    assert!(is_violation(&[unknown, late, again]));
}

/// Lent between 0 and 5, so it ends between 98 and 115.
fn lent() -> Operation {
    op(0, 5, lend(0, Condition::Absent, 1), done(1))
}

fn gone(sent: u64, answered: u64) -> Operation {
    op(sent, answered, Call::Get(0), Answer::Read(None))
}

fn there(sent: u64, answered: u64) -> Operation {
    op(sent, answered, Call::Get(0), read(1, 1))
}

#[test]
fn a_life_may_end_anywhere_within_its_bounds() {
    for history in [
        vec![lent(), there(90, 92), gone(120, 122)],
        vec![lent(), there(90, 98), gone(97, 99)],
        vec![lent(), there(114, 130), gone(98, 120)],
        // What is over may begin again, with version 1.
        vec![lent(), op(105, 106, lend(0, Condition::Absent, 2), done(1))],
        vec![lent(), op(105, 106, put(0, Condition::Version(1), 2), Answer::Refused(0, 0))],
        vec![lent(), op(105, 106, put(0, Condition::Version(1), 2), done(2))],
    ] {
        assert_eq!(verdict(&history), Verdict::Linearizable, "{history:?}");
    }
}

#[test]
fn rejects_what_ends_too_soon_or_too_late() {
    assert!(is_violation(&[lent(), gone(90, 95)]));
    assert!(is_violation(&[lent(), there(116, 118)]));
    assert!(is_violation(&[lent(), op(90, 95, lend(0, Condition::Absent, 2), done(1))]));
    let seen = Answer::Listed(vec![Some((1, 1)), None]);
    assert!(is_violation(&[lent(), op(116, 117, Call::List, seen)]));
    let put = op(116, 117, put(0, Condition::Exists, 2), done(2));
    assert!(is_violation(&[lent(), put]));
}

#[test]
fn rejects_what_is_there_again_after_it_was_gone() {
    assert!(is_violation(&[lent(), gone(100, 102), there(103, 104)]));
    // A touch finds it gone, and so does everybody behind it.
    let late = op(100, 102, Call::Touch(0, 1), Answer::Refused(0, 0));
    assert!(is_violation(&[lent(), late.clone(), there(103, 104)]));
    assert_eq!(verdict(&[lent(), late, gone(103, 104)]), Verdict::Linearizable);
}

#[test]
fn a_touch_begins_the_life_anew_and_one_that_was_dropped_is_noticed() {
    let touch = op(60, 65, Call::Touch(0, 1), Answer::Touched);
    assert_eq!(verdict(&[lent(), touch.clone(), there(150, 151)]), Verdict::Linearizable);
    assert_eq!(verdict(&[lent(), touch.clone(), gone(160, 161)]), Verdict::Linearizable);
    assert!(is_violation(&[lent(), touch.clone(), gone(120, 121)]), "dropped");
    assert!(is_violation(&[lent(), touch, there(180, 181)]), "too long");
    // Of what is over nothing is prolonged.
    assert!(is_violation(&[lent(), op(120, 121, Call::Touch(0, 1), Answer::Touched)]));
}

#[test]
fn a_touch_is_for_one_revision_and_for_what_has_a_life() {
    let other = op(60, 65, Call::Touch(0, 7), Answer::Touched);
    assert!(is_violation(&[lent(), other]));
    let refused = op(60, 65, Call::Touch(0, 7), Answer::Refused(0, 1));
    assert_eq!(verdict(&[lent(), refused]), Verdict::Linearizable);
    let lasting = op(0, 5, put(0, Condition::Any, 1), done(1));
    let immortal = op(60, 65, Call::Touch(0, 1), Answer::Immortal);
    let history = [lasting.clone(), immortal, there(900, 901)];
    assert_eq!(verdict(&history), Verdict::Linearizable);
    assert!(is_violation(&[lasting, op(60, 65, Call::Touch(0, 1), Answer::Touched)]));
}

#[test]
fn an_unknown_touch_may_have_happened_or_not() {
    let unknown = op(60, u64::MAX, Call::Touch(0, 1), Answer::Unknown);
    for last in [there(150, 151), gone(120, 121), there(400, 401)] {
        assert_eq!(verdict(&[lent(), unknown.clone(), last]), Verdict::Linearizable);
    }
    // It does not end anything before its time.
    assert!(is_violation(&[lent(), unknown, gone(80, 81)]));
}
