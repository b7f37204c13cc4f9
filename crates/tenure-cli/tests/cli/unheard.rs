//! Whoever reads what is printed may go at any time: `head` has read enough, a terminal hangs up, a disk is
//! full. That is no reason to leave anything half done.

use std::fs::File;
use std::io::PipeWriter;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::run::{Place, TENURE};
use crate::serve::{Served, command};
use crate::{Ran, ran, tenure};

/// A pipe that nobody reads from any more.
fn nobody() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("a device that is full")
}

fn printing_to(out: impl Into<Stdio>, store: &str, arguments: &[&str]) -> Ran {
    let mut line = Command::new(TENURE);
    line.args(arguments).env("TENURE_STORE", store).stdout(out).stderr(Stdio::piped());
    ran(line.spawn().expect("the binary runs").wait_with_output().expect("it ends"))
}

#[test]
fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_one() {
    let place = Place::new();
    let pages = place.file("man");
    let printing: &[&[&str]] = &[
        &["object", "put", "order", "1", "x"],
        &["object", "put", "order", "1", "y", "--json"],
        &["object", "ls", "order"],
        &["slots", "resize", "group", "3"],
        &["lease", "show", "a/b"],
        &["store", "capabilities", "--json"],
        &["store", "migrate", &place.store],
        &["store", "check", "memory:", "--only", "absent_object"],
        &["token", "me", "--may", "*"],
        &["completions", "bash"],
        &["man", &pages],
    ];
    for line in printing {
        let gone = printing_to(nobody(), &place.store, line);
        assert_eq!(gone.code, Some(0), "{line:?}: {}", gone.err);
        assert!(!gone.err.contains("panicked"), "{line:?}: {}", gone.err);
        printing_to(full(), &place.store, line).fails_late(1, "No space left");
    }
    // What was asked for is done all the same.
    assert_eq!(tenure(&place.store, &["object", "get", "order", "1", "--payload"]).ok(), "y");
}

#[test]
fn a_command_runs_as_ever_if_nobody_hears_what_is_said_about_it() {
    let place = Place::new();
    for says in [Stdio::from(nobody()), Stdio::from(full())] {
        let mut run = Command::new(TENURE);
        run.args(["run", "a/b", "--", "sh", "-c", "exit 3"]).env("TENURE_STORE", &place.store);
        let status = run.stderr(says).status().expect("the binary runs");
        assert_eq!(status.code(), Some(3));
        let shown = tenure(&place.store, &["lease", "show", "a/b"]).ok();
        assert!(shown.starts_with("free "), "{shown}");
    }
}

#[test]
fn a_server_whose_log_nobody_reads_serves_and_ends() {
    let place = Place::new();
    let mut served = Served::start_logging(&["--store", &place.store], nobody());
    // It is written to the audit log.
    let run = ["run", "a/b", "--quiet", "--server", &served.url, "--", TENURE, "lease", "revoke"];
    let told = ran(command(&run).args(["a/b", "--server", &served.url]).output().expect("it runs"));
    assert_eq!(told.out, "revoked a/b\n", "{}", told.err);
    served.send(Signal::TERM);
    assert_eq!(served.wait(), Some(0));
}
