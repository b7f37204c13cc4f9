//! `tenure run`: all that a command has started goes with it, wherever it went, and nothing else that
//! ends `tenure`'s processes does.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{
    LONG, Place, STUBBORN, TENURE, finish, freeze, send, start, succeeds, times, wait_for,
    wait_for_work,
};
use crate::{ran, tenure};

/// The children of a process, with their state and their command line.
fn children(parent: u32) -> Vec<(Pid, String, String)> {
    let entries = std::fs::read_dir("/proc").expect("a table of processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, above) = (fields.next()?, fields.next()?);
        (above == parent.to_string()).then(|| (Pid::from_raw(pid), state.to_owned(), line))
    })
    .filter_map(|(pid, state, line)| Some((pid?, state, line)))
    .collect()
}

fn guardian(tenure: &Child) -> Pid {
    let mut all = children(tenure.id()).into_iter();
    all.find(|(_, _, line)| line.contains("run-guard")).expect("a guardian").0
}

#[test]
fn a_service_that_is_stopped_gives_its_command_the_time_it_needs() {
    let place = Place::new();
    let file = place.file("f");
    // It takes ten times its grace to end, which is for those who have lost their lease.
    let tidy = "trap 'sleep 1; echo tidied; exit 3' TERM; ";
    let script = format!("{tidy}while :; do date +%s%N >> \"$0\"; sleep 0.02; done");
    let first = place.start(&["l/l", "--grace", "100ms", "--", "sh", "-c", &script, &file]);
    wait_for_work(&file);
    // As a service manager does: all of them are asked.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        kill_process(guardian(&first), signal).expect("a signal");
    }
    send(&first, Signal::TERM);
    let ran = finish(first);
    assert_eq!((ran.code, ran.out.as_str()), (Some(3), "tidied\n"), "{}", ran.err);
    assert!(ran.err.contains("released l/l"), "{}", ran.err);
}

/// A command that gives what it starts a process group of its own.
fn apart(place: &Place, file: &str) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let nested = [TENURE, "run", "in/ner", "--ttl", "60s", "--store", &place.store, "--", "sh"];
    vec![
        words(&[&nested[..], &["-c", STUBBORN, file]].concat()),
        words(&["timeout", "300", "sh", "-c", STUBBORN, file]),
        words(&["setsid", "--wait", "sh", "-c", STUBBORN, file]),
    ]
}

/// Takes the lease away from each of them, and makes sure that they are gone when it can be another's.
fn all_gone_after(take: impl Fn(&Place, &mut Child) + Sync) {
    let run = |at: usize| {
        let place = Place::new();
        let file = place.file("f");
        let command = apart(&place, &file).swap_remove(at);
        let command = command.iter().map(String::as_str);
        let arguments: Vec<&str> = ["l/l", "--"].into_iter().chain(command).collect();
        let mut first = place.start_brief(&arguments);
        wait_for_work(&file);
        take(&place, &mut first);
        succeeds(&place.store, &file, place.folder.path());
        if first.try_wait().expect("a process").is_none() {
            send(&first, Signal::CONT);
        }
        finish(first);
    };
    std::thread::scope(|scope| {
        for at in 0..3 {
            scope.spawn(move || run(at));
        }
    });
}

#[test]
fn what_runs_in_a_group_of_its_own_goes_when_the_lease_is_revoked() {
    all_gone_after(|place, first| {
        tenure(&place.store, &["lease", "revoke", "l/l"]).ok();
        // It is free at once; what ran under it is gone when the one that held it is.
        first.wait().expect("it ends");
    });
}

#[test]
fn what_runs_in_a_group_of_its_own_goes_when_tenure_is_frozen() {
    all_gone_after(|place, first| freeze(&place.store, first));
}

#[test]
fn what_runs_in_a_group_of_its_own_goes_when_tenure_is_killed() {
    all_gone_after(|_, first| send(first, Signal::KILL));
}

#[test]
fn a_daemon_that_a_command_leaves_behind_goes_before_the_release() {
    let place = Place::new();
    let file = place.file("f");
    // Twice removed from the command, in a session of its own, and deaf to TERM.
    let script =
        "(setsid sh -c \"$1\" \"$0\" &) ; while ! test -s \"$0\"; do sleep 0.02; done; exit 3";
    let arguments = ["l/l", "--grace", "200ms", "--", "sh", "-c", script, &file, STUBBORN];
    let ran = finish(place.start(&arguments));
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("released l/l"), "{}", ran.err);
    succeeds(&place.store, &file, place.folder.path());
}

#[test]
fn what_was_there_before_the_command_stays() {
    let place = Place::new();
    let file = place.file("f");
    // The shell becomes tenure, so what it had started is tenure's child now.
    let script = "sleep 300 & echo $! > \"$0\"; exec \"$1\" run l/l -- true";
    let output = Command::new("sh")
        .args(["-c", script, &file, TENURE])
        .env("TENURE_STORE", &place.store)
        .stdout(Stdio::null())
        .status()
        .expect("a shell");
    assert!(output.success());
    let older = Pid::from_raw(i32::try_from(times(&file)[0]).unwrap()).expect("a process");
    kill_process(older, Signal::KILL).expect("it lives");
}

#[test]
fn the_dead_that_a_command_leaves_to_tenure_are_buried() {
    let place = Place::new();
    let file = place.file("f");
    let script = "for i in 1 2 3; do (sleep 0.01 &); done; while :; do date +%s%N >> \"$0\"; sleep 0.02; done";
    let first = place.start(&["l/l", "--", "sh", "-c", script, &file]);
    wait_for_work(&file);
    let dead = || children(first.id()).iter().any(|(_, state, _)| state == "Z");
    let orphans = || children(first.id()).len() > 2;
    wait_for("end of the orphans", || !dead() && !orphans());
    send(&first, Signal::TERM);
    assert_eq!(finish(first).code, Some(143));
}

#[test]
fn a_signal_before_the_command_ends_tenure_at_once() {
    // A store that takes connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("postgres://nobody@{}/x", silent.local_addr().expect("an address"));
    let first = start(&url, LONG, &["l/l", "--", "true"], Stdio::piped());
    let _connection = silent.accept().expect("a connection");
    send(&first, Signal::INT);
    assert_eq!(finish(first).code, Some(130));
}

#[test]
fn a_holder_goes_by_its_hosts_name() {
    let place = Place::new();
    let show = |set: Option<&str>| {
        let mut command = Command::new(TENURE);
        command.args(["run", "l/l", "--quiet", "--", TENURE, "lease", "show", "l/l"]);
        command.env("TENURE_STORE", &place.store).env_remove("HOSTNAME").env_remove("TENURE_NAME");
        command.envs(set.map(|name| ("HOSTNAME", name)));
        ran(command.output().expect("the binary runs")).ok()
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Cron and many shells do not say.
    let shown = show(None);
    assert!(shown.starts_with(&format!("held by   {host}#")), "{shown}");
    let shown = show(Some("another"));
    assert!(shown.starts_with("held by   another#"), "{shown}");
}
