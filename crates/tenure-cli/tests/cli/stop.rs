//! `tenure run`: all that a command has started goes with it, wherever it went, and nothing else that
//! ends `tenure`'s processes does.

use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Place, finish, send, wait_for_work};

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
