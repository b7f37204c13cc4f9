//! What `tenure run` holds is handed over from the command line, and never held by two; and what was can
//! be read afterwards.

use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use crate::run::{Place, STUBBORN, WORK, finish, start, times, wait_for, wait_for_work};
use crate::serve::Served;
use crate::tenure;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Somebody who waits for it, once that can be seen.
fn waiter(place: &Place, name: &str, file: &str) -> Child {
    let child = place.start(&["l/l", "--name", name, "--", "sh", "-c", WORK, file]);
    let waiting = format!("{name}#");
    wait_for("waiter", || {
        let shown = tenure(&place.store, &["lease", "show", "l/l", "--history", "0"]).ok();
        shown.split("waiting").nth(1).is_some_and(|line| line.contains(&waiting))
    });
    child
}

#[track_caller]
fn one_after_the_other(first: &str, second: &str) {
    wait_for_work(second);
    std::thread::sleep(Duration::from_millis(200));
    let (ended, began) = (*times(first).last().expect("the first ran"), times(second)[0]);
    assert!(ended < began, "the first wrote {} ns after the second began", ended - began);
}

#[test]
fn a_command_is_stopped_before_its_lease_is_somebody_elses() {
    let place = Place::new();
    let [one, two, three] = ["one", "two", "three"].map(|name| place.file(name));
    // It does not stop when it is asked to, so it takes force.
    let stubborn = ["l/l", "--name", "one", "--grace", "1s", "--", "sh", "-c", STUBBORN, &one];
    let first = place.start(&stubborn);
    wait_for_work(&one);
    let second = waiter(&place, "two", &two);
    let third = waiter(&place, "three", &three);

    tenure(&place.store, &["lease", "hand-over", "l/l", "--to", "nobody"])
        .fails(6, "does not wait");
    tenure(&place.store, &["lease", "hand-over", "l/l", "--expect-token", "99"]).fails(5, "lost");
    let told = tenure(&place.store, &["elect", "hand-over", "l/l", "--to", "three"]).ok();
    assert!(told.starts_with("handed over l/l to three#"), "{told}");
    let first = finish(first);
    assert_eq!(first.code, Some(137), "{}", first.err);
    assert!(first.err.contains("asks to hand over to three#"), "{}", first.err);
    assert!(first.err.contains("handed over l/l to three#"), "{}", first.err);
    one_after_the_other(&one, &three);

    let told = tenure(&place.store, &["lease", "hand-over", "l/l", "--json"]).ok();
    let told = json(&told);
    assert_eq!((&told["handed_over"], &told["lease"]["name"]), (&true.into(), &"two".into()));
    let third = finish(third);
    assert_eq!(third.code, Some(143), "as if it had been sent TERM: {}", third.err);
    one_after_the_other(&three, &two);

    tenure(&place.store, &["lease", "hand-over", "l/l"]).fails(6, "nobody waits");
    tenure(&place.store, &["lease", "revoke", "l/l", "--reason", "enough"]).ok();
    assert_eq!(finish(second).code, Some(5));
    tenure(&place.store, &["lease", "hand-over", "l/l"]).fails(3, "nobody holds l/l");
    remembered(&place);
}

/// All that has happened, as it is told over a store and over a server.
fn remembered(place: &Place) {
    let served = Served::start(&["--store", &place.store]);
    let show = ["lease", "show", "l/l"];
    let as_json = ["lease", "show", "l/l", "--json"];
    let texts = [tenure(&place.store, &show).ok(), served.tenure(&show).ok()];
    let told = [tenure(&place.store, &as_json).ok(), served.tenure(&as_json).ok()];
    assert_eq!(json(&told[0]), json(&told[1]));
    let history = &json(&told[0])["history"];
    let words = |key: &str| -> Vec<String> {
        let all = history["tenures"].as_array().expect("a list").iter();
        all.map(|past| past[key].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(words("ended"), ["revoked", "handed_over", "handed_over"], "{history}");
    assert_eq!(words("name"), ["two", "three", "one"]);
    assert_eq!(words("reason")[0], "enough");
    assert!(history["tenures"][0]["until_ms"].is_i64(), "{history}");
    assert_eq!(history["older"], "none");
    for text in texts {
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0] == "free      l/l" && lines.len() == 4, "{text}");
        assert!(
            lines[1].starts_with("history   token ") && lines[1].ends_with(": enough"),
            "{text}"
        );
        assert!(lines[3].contains("one#") && lines[3].contains("handed over to three#"), "{text}");
    }
    let one = tenure(&place.store, &["lease", "show", "l/l", "--history", "1"]).ok();
    assert!(one.contains("older ones are left off") && !one.contains("three#"), "{one}");
    let none = tenure(&place.store, &["lease", "show", "l/l", "--history", "0"]).ok();
    assert_eq!(none, "free      l/l\n");
    let never = tenure(&place.store, &["lease", "show", "l/never"]).ok();
    assert_eq!(never, "free      l/never\nhistory   nobody held it before\n");
}

#[test]
fn a_slot_is_handed_over_through_a_server() {
    let place = Place::new();
    let served = Served::start(&["--store", &place.store]);
    let [one, two] = ["one", "two"].map(|name| place.file(name));
    let run = |name: &str, file: &str| {
        let line = ["s.s", "--slots", "1", "--name", name, "--server", &served.url];
        let all = [&line[..], &["--", "sh", "-c", WORK, file]].concat();
        start("", "60s", &all, std::process::Stdio::piped())
    };
    let first = run("one", &one);
    wait_for_work(&one);
    served.tenure(&["slots", "hand-over", "s.s", "0"]).fails(6, "nobody waits");
    let second = run("two", &two);
    wait_for("waiter", || served.tenure(&["slots", "ls", "s.s"]).ok().contains("1 waiting"));
    served.tenure(&["slots", "hand-over", "s.s", "7"]).fails(3, "nobody holds s.s/slot-7");
    let told = served.tenure(&["slots", "hand-over", "s.s", "0", "--to", "two"]).ok();
    assert!(told.starts_with("handed over s.s/slot-0 to two#"), "{told}");
    assert_eq!(finish(first).code, Some(143));
    one_after_the_other(&one, &two);
    served.tenure(&["lease", "revoke", "s.s/slot-0"]).ok();
    assert_eq!(finish(second).code, Some(5));
}

#[test]
fn a_holder_that_does_not_listen_keeps_what_it_has() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start(&["l/l", "--name", "one", "--", "sh", "-c", WORK, &file]);
    wait_for_work(&file);
    let second = waiter(&place, "two", &place.file("g"));
    // Frozen, it is as deaf as a program that knows nothing of such requests.
    crate::run::freeze(&place.store, &first);
    let asked = ["lease", "hand-over", "l/l", "--wait", "500ms"];
    let told = tenure(&place.store, &asked);
    assert!(told.err.contains("held by one#") && told.err.contains("lease revoke"), "{}", told.err);
    told.fails(11, "it was not handed over");
    crate::run::send(&first, rustix::process::Signal::CONT);
    std::thread::sleep(Duration::from_millis(1_500));
    let shown = tenure(&place.store, &["lease", "show", "l/l", "--history", "0"]).ok();
    assert!(shown.contains("held by   one#"), "what was taken back is not followed later: {shown}");
    for child in [second, first] {
        crate::run::send(&child, rustix::process::Signal::TERM);
        finish(child);
    }
}
