//! `--watch`, for people and for programs; and what is said about what is logged.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::orphans::Holder;
use crate::run::{Place, TENURE, send};
use crate::{ran, tenure};

/// For a line to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A command that goes on; killed when dropped.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn start(store: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(TENURE)
            .args(arguments)
            .env("TENURE_STORE", store)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Self { child, lines }
    }

    /// The next line, which is a document of its own.
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("a line in time");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a watching command prints while a lease comes and goes tells of both.
fn tells_of_a_lease(arguments: &[&str], is_held: fn(&Value) -> bool) {
    let place = Place::new();
    tenure(&place.store, &["store", "migrate", &place.store]).ok();
    let watching = Watching::start(&place.store, arguments);
    assert!(!is_held(&watching.next()), "nothing is held yet");
    let mut holder = place.start(&["a.b/slot-0", "--", "sleep", "300"]);
    while !is_held(&watching.next()) {}
    send(&holder, Signal::TERM);
    while is_held(&watching.next()) {}
    holder.wait().expect("it ends");
}

#[test]
fn programs_that_watch_read_one_document_per_line() {
    let any = |list: &Value| !list.as_array().expect("a list").is_empty();
    let lists = [&["lease", "ls"][..], &["slots", "ls"], &["object", "ls", "lease"]];
    for list in lists {
        tells_of_a_lease(&[list, &["--watch", "--json"]].concat(), any);
    }
    let held = |status: &Value| status["holder"].is_object();
    tells_of_a_lease(&["lease", "show", "a.b/slot-0", "--watch", "--json"], held);
    let held = |group: &Value| !group["holders"].as_array().expect("a list").is_empty();
    tells_of_a_lease(&["slots", "ls", "a.b", "--watch", "--json"], held);
}

#[test]
fn whoever_came_and_went_between_two_looks_is_in_the_history() {
    let place = Place::new();
    let holder = Holder::on(&place.folder);
    holder.hold_briefly("a/b");
    let watching = Watching::start(&place.store, &["lease", "show", "a/b", "--watch", "--json"]);
    let last = |shown: &Value| shown["history"]["tenures"][0]["token"].as_u64();
    assert_eq!(last(&watching.next()), Some(1));
    let token = (0..3).map(|_| holder.hold_briefly("a/b")).last();
    while last(&watching.next()) != token {}
}

#[test]
fn a_setting_of_the_log_that_makes_no_sense_is_told() {
    let with = |said: &str| {
        let mut line = Command::new(TENURE);
        line.args(["lease", "ls", "--store", "memory:"]).env("TENURE_LOG", said);
        line.env_remove("TENURE_STORE").env_remove("TENURE_SERVER");
        let ran = ran(line.output().expect("the binary runs"));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.err
    };
    assert_eq!(with("warn,tenure=error"), "");
    for nonsense in ["verbose", "tenure=loud"] {
        let told = with(nonsense);
        let expected = format!("tenure: TENURE_LOG={nonsense:?}: ");
        assert!(told.starts_with(&expected) && told.contains("write off, error"), "{told}");
    }
}
