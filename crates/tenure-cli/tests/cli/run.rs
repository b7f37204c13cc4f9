//! `tenure run`: a command never runs beside another under the same lease, whatever happens to
//! `tenure`, to the store or to the command.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure_testkit::{Postgres, StopMode};

use crate::{Ran, ran, tenure};

pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// For those whose lease is to end soon.
pub(crate) const TTL: &str = "4s";
/// For those whose lease is to be held, however busy the machine is.
pub(crate) const LONG: &str = "60s";
/// Writes the time to a file for as long as it lives, whoever asks it to stop.
pub(crate) const STUBBORN: &str =
    "trap '' TERM INT; while :; do date +%s%N >> \"$0\"; sleep 0.02; done";
/// The same, but it can be asked.
pub(crate) const WORK: &str = "while :; do date +%s%N >> \"$0\"; sleep 0.02; done";

pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) store: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = format!("sqlite:{}", folder.path().join("t.db").display());
        Self { folder, store }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let all: Vec<&str> = ["run", "--ttl", LONG].into_iter().chain(arguments.to_vec()).collect();
        tenure(&self.store, &all)
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        start(&self.store, LONG, arguments, Stdio::piped())
    }

    /// The same, under a lease that ends soon if nobody renews it.
    pub(crate) fn start_brief(&self, arguments: &[&str]) -> Child {
        start(&self.store, TTL, arguments, Stdio::piped())
    }

    /// The same, and a way to read what it has said so far.
    fn start_said(&self, arguments: &[&str]) -> (impl Fn() -> String, Child) {
        let path = self.file("said");
        let file = std::fs::File::create(&path).expect("a file");
        let child = start(&self.store, LONG, arguments, file.into());
        (move || std::fs::read_to_string(&path).unwrap_or_default(), child)
    }
}

pub(crate) fn start(store: &str, ttl: &str, arguments: &[&str], says: Stdio) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["run", "--ttl", ttl])
        .args(arguments)
        .env("TENURE_STORE", store)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(says)
        .spawn()
        .expect("the binary runs")
}

pub(crate) fn finish(child: Child) -> Ran {
    ran(child.wait_with_output().expect("it ends"))
}

pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

/// Freezes it, but not while it has the store's only lock for writing: then nobody else could follow.
pub(crate) fn freeze(store: &str, child: &Child) {
    for _ in 0..5 {
        send(child, Signal::STOP);
        let mut write = Command::new(TENURE)
            .args(["object", "put", "probe", "1", "x", "--store", store])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        for _ in 0..200 {
            if write.try_wait().expect("a process").is_some_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        send(child, Signal::CONT);
        write.wait().expect("it ends");
    }
    panic!("it has the lock whenever it is frozen");
}

/// The times that a command wrote; the last line may be half written.
pub(crate) fn times(file: &str) -> Vec<u128> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

#[track_caller]
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..1_500 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no {what} within fifteen seconds");
}

pub(crate) fn wait_for_work(file: &str) {
    wait_for("work", || times(file).len() > 2);
}

/// Runs a second command under the same lease and makes sure that the first had stopped by then.
#[track_caller]
pub(crate) fn succeeds(store: &str, first: &str, place: &Path) {
    let second = place.join("second").to_string_lossy().into_owned();
    let next = ["l/l", "--wait", "20s", "--", "sh", "-c", "date +%s%N > \"$0\"", &second];
    finish(start(store, LONG, &next, Stdio::piped())).ok();
    let began = *times(&second).first().expect("the second ran");
    std::thread::sleep(Duration::from_millis(300));
    let ended = *times(first).last().expect("the first ran");
    assert!(ended < began, "the first wrote {} ns after the second began", ended - began);
}

#[test]
fn a_command_gets_its_lease_and_gives_its_code() {
    let place = Place::new();
    let script = "echo $TENURE_SCOPE $TENURE_TOKEN; test $TENURE_DEADLINE -gt $(date +%s000); exit $((7 + $?))";
    let ran = place.run(&["a.b/c", "--", "sh", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(7), "a.b/c 1\n"), "{}", ran.err);
    assert!(ran.err.contains("acquired a.b/c, token 1") && ran.err.contains("released a.b/c"));
    let quiet = place.run(&["a.b/c", "--quiet", "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
    place.run(&["a.b/c", "--", "sh", "-c", "kill -9 $$"]).fails(137, "tenure: ");
    place.run(&["a.b/c", "--", "no-such-program"]).fails(127, "cannot run no-such-program");
    place.run(&["a.b/c", "--", &place.store]).fails(127, "cannot run");
    let slots = place.run(&["a.b", "--slots", "2", "--", "sh", "-c", "echo $TENURE_SCOPE"]);
    assert!(slots.ok().starts_with("a.b/slot-"));
}

#[test]
fn mistakes_are_named_before_anything_runs() {
    let place = Place::new();
    // A bad scope is the same mistake wherever it is made.
    place.run(&["a.b", "--", "true"]).fails_on_line("invalid value 'a.b' for '<SCOPE>'");
    place.run(&["a/b", "--slots", "2", "--", "true"]).fails_on_line("invalid value 'a/b'");
    tenure(&place.store, &["lease", "show", "a.b"])
        .fails_on_line("invalid value 'a.b' for '<SCOPE>'");
    tenure(&place.store, &["lease", "reap", "a..b/c"]).fails_on_line("invalid value 'a..b/c'");
    place.run(&["a/b", "--grace", "31s", "--", "true"]).fails(6, "half the life");
    place.run(&["a/b", "--metadata", "x", "--", "true"]).fails(6, "KEY=VALUE");
    tenure("postgres://nobody@127.0.0.1:1/x", &["run", "a/b", "--", "true"])
        .fails(7, "is the server running");
}

#[test]
fn who_does_not_wait_is_told_who_holds_it_and_who_waits_gets_it() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start(&["l/l", "--name", "one", "--", "sh", "-c", WORK, &file]);
    wait_for_work(&file);
    place.run(&["l/l", "--wait", "0", "--", "true"]).fails(11, "held by one#");
    let (said, second) = place.start_said(&["l/l", "--name", "two", "--", "echo", "second"]);
    let show = || tenure(&place.store, &["lease", "show", "l/l"]).ok();
    wait_for("waiter", || show().contains("waiting   two#"));
    // Whoever waits for longer than a moment is told what for.
    wait_for("word of it", || said().contains("held by one#") && said().contains("; waiting"));
    // A signal is the command's to answer; what it says is passed on.
    send(&first, Signal::TERM);
    let first = finish(first);
    assert_eq!(first.code, Some(143), "{}", first.err);
    assert!(first.err.contains("released l/l"), "{}", first.err);
    assert_eq!(finish(second).ok(), "second\n");
}

#[test]
fn somebody_who_waits_can_be_interrupted() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start(&["l/l", "--", "sh", "-c", WORK, &file]);
    wait_for_work(&file);
    let second = place.start(&["l/l", "--name", "two", "--", "echo", "second"]);
    let show = || tenure(&place.store, &["lease", "show", "l/l"]).ok();
    wait_for("waiter", || show().contains("waiting   two#"));
    send(&second, Signal::INT);
    assert_eq!(finish(second).code, Some(130));
    wait_for("end of the wait", || !show().contains("waiting"));
    send(&first, Signal::INT);
    finish(first);
}

#[test]
fn a_frozen_tenure_does_not_keep_its_command_going() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start_brief(&["l/l", "--", "sh", "-c", STUBBORN, &file]);
    wait_for_work(&file);
    freeze(&place.store, &first);
    succeeds(&place.store, &file, place.folder.path());
    send(&first, Signal::CONT);
    finish(first).fails_late(5, "lost l/l");
}

#[test]
fn work_that_was_cut_short_is_no_success() {
    let place = Place::new();
    let file = place.file("f");
    // It ends as if all were well when it is asked to stop.
    let polite = format!("trap 'exit 0' TERM; {WORK}");
    let first = place.start_brief(&["l/l", "--", "sh", "-c", &polite, &file]);
    wait_for_work(&file);
    freeze(&place.store, &first);
    succeeds(&place.store, &file, place.folder.path());
    send(&first, Signal::CONT);
    finish(first).fails_late(5, "lost l/l");
    // What ends by itself is one, though nobody was there to see it.
    let brief = place.file("brief");
    let second = place.start_brief(&[
        "l/l",
        "--",
        "sh",
        "-c",
        "date +%s%N > \"$0\"; sleep 0.3; exit 4",
        &brief,
    ]);
    wait_for("work", || !times(&brief).is_empty());
    freeze(&place.store, &second);
    // By the time that somebody else has had the lease, this one's is long over.
    succeeds(&place.store, &brief, place.folder.path());
    send(&second, Signal::CONT);
    assert_eq!(finish(second).code, Some(4));
}

#[test]
fn a_killed_tenure_takes_its_command_along() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start_brief(&["l/l", "--", "sh", "-c", STUBBORN, &file]);
    wait_for_work(&file);
    send(&first, Signal::KILL);
    finish(first);
    succeeds(&place.store, &file, place.folder.path());
}

#[test]
fn a_store_that_is_gone_stops_the_command_in_time() {
    let mut server = Postgres::start().expect("a server");
    let url = server.fresh_database().expect("a database");
    let place = Place::new();
    let file = place.file("f");
    let first = start(&url, TTL, &["l/l", "--", "sh", "-c", STUBBORN, &file], Stdio::piped());
    wait_for_work(&file);
    server.stop(StopMode::Immediate).expect("it stops");
    finish(first).fails_late(5, "lost l/l");
    server.start_again().expect("it starts");
    succeeds(&url, &file, place.folder.path());
}

#[test]
fn a_revoked_lease_stops_the_command_and_says_why() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start_brief(&["l/l", "--", "sh", "-c", WORK, &file]);
    wait_for_work(&file);
    let revoke = ["lease", "revoke", "l/l", "--reason", "it was Tuesday"];
    assert_eq!(tenure(&place.store, &revoke).ok(), "revoked l/l\n");
    finish(first).fails_late(5, "it was Tuesday");
    tenure(&place.store, &revoke).fails(3, "l/l");
    let run = ["l/l", "--quiet", "--", TENURE, "lease", "revoke", "l/l", "--json"];
    let told =
        "{\"reason\":\"revoked from the command line\",\"revoked\":true,\"scope\":\"l/l\"}\n";
    assert_eq!(place.run(&run).out, told);
}

#[test]
fn what_a_command_leaves_behind_goes_before_the_release() {
    let place = Place::new();
    let file = place.file("f");
    let script = format!("({STUBBORN}) & sleep 0.2; exit 3");
    let ran = place.run(&["l/l", "--grace", "200ms", "--", "sh", "-c", &script, &file]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    succeeds(&place.store, &file, place.folder.path());
}

#[test]
fn holders_are_listed_followed_and_observed() {
    let place = Place::new();
    let file = place.file("f");
    let first = place.start(&[
        "l/l",
        "--name",
        "one",
        "--metadata",
        "address=here",
        "--",
        "sh",
        "-c",
        WORK,
        &file,
    ]);
    wait_for_work(&file);
    let list = |arguments: &[&str]| tenure(&place.store, arguments).ok();
    assert!(list(&["lease", "ls"]).contains("l/l    one#"), "{}", list(&["lease", "ls"]));
    assert!(list(&["lease", "ls", "l", "--json"]).contains("\"address\":\"here\""));
    assert_eq!(list(&["lease", "ls", "other"]).lines().count(), 1);
    let shown = list(&["lease", "show", "l/l"]);
    assert!(shown.starts_with("held by   one#"), "{shown}");
    // A life that is counted from its last renewal.
    let line = shown.lines().next().unwrap_or_default();
    assert!(line.contains("s (renewed ") && line.ends_with("s ago)"), "{shown}");
    let shown: serde_json::Value =
        serde_json::from_str(&list(&["lease", "show", "l/l", "--json"])).expect("JSON");
    let ms = |field: &str| shown["holder"][field].as_u64().expect("a number");
    assert_eq!(ms("renewed_ago_ms") + ms("expires_in_ms"), ms("ttl_ms"));
    assert!(list(&["lease", "show", "l/l", "--json"]).contains("\"waiters\": []"));
    assert!(list(&["lease", "show", "x/y"]).starts_with("free      x/y"));
    assert!(list(&["elect", "leader", "l/l"]).contains("address here"));
    tenure(&place.store, &["elect", "leader", "x/y"]).fails(3, "nobody leads x/y\n");
    let seen_file = place.file("seen");
    let observer = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["elect", "observe", "l/l", "--limit", "2"])
        .env("TENURE_STORE", &place.store)
        .stdout(std::fs::File::create(&seen_file).expect("a file"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let seen = || std::fs::read_to_string(&seen_file).unwrap_or_default();
    wait_for("leader", || seen().starts_with("one#"));
    send(&first, Signal::TERM);
    finish(first);
    finish(observer).ok();
    assert!(seen().lines().count() == 2 && seen().ends_with("\nnobody\n"), "{}", seen());
    assert_eq!(list(&["slots", "resize", "group", "3"]), "group has 3 slots\n");
    let resized = list(&["slots", "resize", "group", "3", "--json"]);
    assert_eq!(resized, "{\"count\":3,\"group\":\"group\"}\n");
    assert!(list(&["slots", "ls", "group"]).ends_with("0 of 3 slots held, 0 waiting\n"));
    let groups = list(&["run", "other", "--slots", "2", "-q", "--", TENURE, "slots", "ls"]);
    let rows: Vec<Vec<&str>> = groups.lines().map(|row| row.split_whitespace().collect()).collect();
    let expected = [["group", "3", "0", "0"], ["other", "2", "1", "0"]];
    assert_eq!(rows[1..], expected.map(Vec::from), "{groups}");
    let groups = list(&["slots", "ls", "--json"]);
    let first = "{\"count\":3,\"group\":\"group\",\"held\":0,\"waiting\":0}\n";
    assert!(groups.starts_with(first) && groups.lines().count() == 2, "{groups}");
    assert!(list(&["completions", "bash"]).contains("_tenure"));
}

impl Ran {
    /// It failed after it had said other things.
    #[track_caller]
    pub(crate) fn fails_late(self, code: i32, says: &str) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(self.err.contains(says), "{says:?} not in {:?}", self.err);
    }
}
