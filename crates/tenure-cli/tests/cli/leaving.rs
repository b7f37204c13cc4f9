//! `tenure run`, when its command is gone: what it says then, and that nothing keeps it for long.

use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_testkit::Postgres;

use crate::run::{Place, WORK, finish, start, times, wait_for, wait_for_work};
use crate::tenure;

#[test]
fn a_command_that_ends_before_it_hears_of_the_revocation_has_lost_its_lease_all_the_same() {
    let place = Place::new();
    let file = place.file("f");
    // Its next renewal is twenty seconds away.
    let work = "date +%s%N > \"$0\"; while test -e \"$0\"; do sleep 0.02; done";
    let first = place.start(&["l/l", "--", "sh", "-c", work, &file]);
    wait_for("work", || !times(&file).is_empty());
    tenure(&place.store, &["lease", "revoke", "l/l", "--reason", "it was Wednesday"]).ok();
    std::fs::remove_file(&file).expect("it was there");
    let ran = finish(first);
    assert!(ran.err.contains("lost l/l, token 1: revoked by "), "{}", ran.err);
    assert!(!ran.err.contains("released l/l"), "{}", ran.err);
    ran.fails_late(5, ": it was Wednesday");
}

#[test]
fn a_store_that_does_not_answer_does_not_keep_the_host() {
    let server = Postgres::start().expect("a server");
    let url = server.fresh_database().expect("a database");
    let place = Place::new();
    let file = place.file("f");
    let first = start(&url, "6s", &["l/l", "--", "sh", "-c", WORK, &file], Stdio::piped());
    wait_for_work(&file);
    server.pause().expect("it is frozen");
    let ran = finish(first);
    let date = Command::new("date").arg("+%s%N").output().expect("a date").stdout;
    server.resume().expect("it goes on");
    let now: u128 = String::from_utf8_lossy(&date).trim().parse().expect("a number");
    let last = *times(&file).last().expect("it ran");
    let late = Duration::from_nanos(u64::try_from(now - last).expect("a moment"));
    assert!(late < Duration::from_secs(12), "{late:?} after the command: {}", ran.err);
    ran.fails_late(5, "lost l/l");
}

#[test]
fn what_nobody_else_sees_is_said() {
    let ran = tenure("memory:", &["run", "a/b", "--", "true"]);
    assert!(ran.err.contains("nobody else sees what is in memory:"), "{}", ran.err);
    let quiet = tenure("memory:", &["run", "a/b", "--quiet", "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
}
