//! All that the command has started, in whatever process group or session it is now.
//!
//! The command's own group is not all of it: `timeout`, a shell with job control or another `tenure run`
//! give what they start a group of its own. But whoever loses its parent becomes `tenure`'s child, so the
//! table of processes tells who belongs to the command for as long as `tenure` lives. The guardian of one
//! that is dead knows those whom it saw when it noticed.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, test_kill_process_group, waitid,
};

/// The command and all that descends from it.
pub(crate) struct Family {
    /// Who inherits whoever loses its parent.
    tenure: i32,
    /// The command, and its process group.
    command: Pid,
    /// When it was started, in ticks since the machine was. What is older is none of its.
    begun: u64,
    /// A child of `tenure` that is not of the family.
    guardian: i32,
    /// Who was seen, by a handle that can be nobody else's, though its parent and its number go.
    seen: BTreeMap<i32, OwnedFd>,
}

impl Family {
    /// Of a command that has been started and waits to begin.
    pub(crate) fn new(tenure: Pid, command: Pid, guardian: Pid) -> Self {
        // Without a table of processes there is still the group, and nobody else is taken for the command's.
        let begun = read(command.as_raw_nonzero().get()).map_or(u64::MAX, |process| process.begun);
        let (tenure, guardian) = (tenure.as_raw_nonzero().get(), guardian.as_raw_nonzero().get());
        Self { tenure, command, begun, guardian, seen: BTreeMap::new() }
    }

    /// Remembers who there is, whatever becomes of their parents.
    pub(crate) fn notice(&mut self) {
        for process in self.members().into_iter().filter(|process| !process.dead) {
            if let std::collections::btree_map::Entry::Vacant(entry) = self.seen.entry(process.pid)
                && let Some(handle) = handle(process.pid)
            {
                entry.insert(handle);
            }
        }
    }

    /// Asks all of them to stop.
    pub(crate) fn ask(&self) {
        let _ = kill_process_group(self.command, Signal::TERM);
        let group = self.command.as_raw_nonzero().get();
        for process in self.members().iter().filter(|process| process.group != group) {
            let _ = Pid::from_raw(process.pid).map(|pid| kill_process(pid, Signal::TERM));
        }
    }

    /// Stops all of them. One that is being started meanwhile may be missed: to be said until nobody is left.
    pub(crate) fn kill(&mut self) {
        let _ = kill_process_group(self.command, Signal::KILL);
        self.notice();
        self.seen.retain(|_, handle| pidfd_send_signal(&*handle, Signal::KILL) != Err(Errno::SRCH));
    }

    /// Whether any of them lives.
    pub(crate) fn lives(&self) -> bool {
        self.members().iter().any(|process| !process.dead)
    }

    /// Whether any of them is left, for `tenure` to ask after the command itself has ended. The dead count
    /// until nobody else is there: what they leave behind becomes our child before they are gone.
    pub(crate) fn is_anybody_left(&self) -> bool {
        loop {
            let members = self.members();
            if members.is_empty() {
                return test_kill_process_group(self.command) != Err(Errno::SRCH);
            }
            if members.iter().any(|process| !process.dead) || !self.bury(&members) {
                return true;
            }
        }
    }

    /// Takes leave of the dead that nobody else does, while the command itself goes on. They would fill the
    /// table of processes.
    pub(crate) fn tidy(&self) {
        let dead = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::All, dead), Ok(Some(_))) {
            let mut members = self.members();
            // Whose end others wait for.
            members.retain(|process| process.pid != self.command.as_raw_nonzero().get());
            self.bury(&members);
        }
    }

    /// Whether any of them was buried. Only our own children can be.
    fn bury(&self, members: &[Process]) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let ours = members.iter().filter(|process| process.dead && process.parent == self.tenure);
        let buried = ours
            .filter_map(|process| Pid::from_raw(process.pid))
            .filter(|pid| matches!(waitid(WaitId::Pid(*pid), options), Ok(Some(_))));
        buried.count() > 0
    }

    fn members(&self) -> Vec<Process> {
        let table = table();
        // Asked after the table was read: a number that is another's by now would be somebody else's family.
        let heir = [Some(getpid()), getppid()]
            .into_iter()
            .flatten()
            .map(|pid| pid.as_raw_nonzero().get())
            .find(|pid| *pid == self.tenure);
        let group = self.command.as_raw_nonzero().get();
        let younger = table.into_iter().filter(|process| {
            process.begun >= self.begun && ![self.guardian, self.tenure].contains(&process.pid)
        });
        descendants(younger.collect(), heir, group)
    }
}

/// Those in the group, the children of the heir, and all that descends from them.
fn descendants(mut rest: Vec<Process>, heir: Option<i32>, group: i32) -> Vec<Process> {
    let mut family: Vec<Process> = Vec::new();
    loop {
        let (found, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|process| {
            process.group == group
                || Some(process.parent) == heir
                || family.iter().any(|above| above.pid == process.parent)
        });
        if found.is_empty() {
            return family;
        }
        family.extend(found);
        rest = others;
    }
}

fn handle(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// A row of the table of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    begun: u64,
    dead: bool,
}

impl Process {
    /// A line of `/proc/PID/stat`. The name, in parentheses, may contain anything.
    fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let fields: Vec<&str> = rest.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            pid: pid.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            begun: fields.get(19)?.parse().ok()?,
            dead: matches!(*fields.first()?, "Z" | "X"),
        })
    }
}

fn read(pid: i32) -> Option<Process> {
    let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Process::parse(&String::from_utf8_lossy(&line))
}

fn table() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    names.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32) -> Process {
        Process { pid, parent, group, begun: 1, dead: false }
    }

    #[test]
    fn a_family_is_the_group_the_orphans_and_all_below_them() {
        let all = vec![
            process(9, 8, 9),
            process(8, 5, 8),
            process(5, 1, 5),
            process(6, 2, 6),
            process(7, 3, 7),
            process(3, 1, 3),
        ];
        let pids = |heir| {
            let mut pids: Vec<_> =
                descendants(all.clone(), heir, 5).iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(Some(2)), [5, 6, 8, 9]);
        assert_eq!(pids(None), [5, 8, 9]);
    }

    #[test]
    fn a_row_is_read_whatever_the_name_is() {
        let line = "12 (a) Z (b) S 3 4 5 0 -1 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        let read = Process { pid: 12, parent: 3, group: 4, begun: 4711, dead: false };
        assert_eq!(Process::parse(line), Some(read));
        assert_eq!(Process::parse("12 (a"), None);
        let me = getpid().as_raw_nonzero().get();
        assert!(table().iter().any(|process| process.pid == me && !process.dead));
    }
}
