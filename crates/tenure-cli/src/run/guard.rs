//! The guardian: a second process that stops the command in time if `tenure` itself cannot.
//!
//! `tenure` may be stopped, starved or killed while the command goes on. So another process, which
//! does nothing else, knows the deadline too. It is told of every renewal through its standard input;
//! when the news stop, or end, it stops the command and all that it started before the lease can be
//! anybody else's.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process_group, pidfd_open};
use tenure::clock::{Clock as _, SystemClock};

use super::family::Family;
use super::schedule::{Act, Pace, Schedule};
use super::signals;

/// The kernel's timers stand still while the machine is suspended, so look at the clock this often.
const LOOK: Duration = Duration::from_millis(200);
/// The exit code of a guardian that had to stop the command.
const ACTED: u8 = 3;
/// One that is being started may miss the last signal, so it is sent again and again.
const AGAIN: Duration = Duration::from_millis(20);
/// After the last signal there is nothing to wait for but the end of our input.
const LINGER: Duration = Duration::from_secs(5);

/// How the guardian is started.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Who started us and the command.
    tenure: i32,
    /// The command's process group.
    group: i32,
    /// The deadline, in nanoseconds of uptime.
    until: u64,
    /// Nanoseconds between asking and forcing.
    grace: u64,
    /// Nanoseconds between forcing and the deadline.
    margin: u64,
}

impl Arguments {
    /// The arguments to start it with.
    pub(crate) fn list(tenure: Pid, group: Pid, until: Duration, pace: Pace) -> [String; 5] {
        let nanos = |duration: Duration| duration.as_nanos().to_string();
        let [tenure, group] = [tenure, group].map(|pid| pid.as_raw_nonzero().to_string());
        [tenure, group, nanos(until), nanos(pace.grace), nanos(pace.margin)]
    }

    /// Stands guard until it is told that all is done.
    pub(crate) fn run(self) -> ExitCode {
        let (Some(tenure), Some(group)) = (Pid::from_raw(self.tenure), Pid::from_raw(self.group))
        else {
            return ExitCode::FAILURE;
        };
        let Ok(leader) = pidfd_open(group, PidfdFlags::empty()) else { return ExitCode::FAILURE };
        let pace = Pace {
            grace: Duration::from_nanos(self.grace),
            margin: Duration::from_nanos(self.margin),
        };
        let schedule = Schedule::new(pace, Duration::from_nanos(self.until));
        // Who stops a service asks all of its processes to end. The command may take its time, and needs
        // its guardian until then.
        if signals::outlive().is_err() {
            return ExitCode::FAILURE;
        }
        let family = Family::new(tenure, group, getpid());
        // Whoever started us waits for this before the command may begin.
        let ready =
            std::io::stdout().write_all(b"ready\n").and_then(|()| std::io::stdout().flush());
        match ready {
            Ok(()) => stand_guard(group, &leader, family, schedule),
            Err(_) => ExitCode::FAILURE,
        }
    }
}

/// What `tenure` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The lease was renewed: the deadline, on the uptime clock.
    Until(Duration),
    /// The command is gone, and with it our task.
    Done,
}

impl News {
    pub(crate) fn line(self) -> String {
        match self {
            Self::Until(until) => format!("{}\n", until.as_nanos()),
            Self::Done => "done\n".into(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        match line {
            "done" => Some(Self::Done),
            number => number.parse().ok().map(|nanos| Self::Until(Duration::from_nanos(nanos))),
        }
    }
}

/// Whether a guardian that ended like this had to stop the command.
pub(crate) fn has_acted(status: ExitStatus) -> bool {
    status.code() == Some(i32::from(ACTED))
}

fn stand_guard(
    group: Pid,
    leader: &OwnedFd,
    mut family: Family,
    mut schedule: Schedule,
) -> ExitCode {
    let mut input = Input::default();
    let mut linger = None;
    let mut end = ExitCode::SUCCESS;
    loop {
        let now = SystemClock.uptime();
        let wake = match schedule.next(now) {
            Act::Wait(until) => until,
            Act::Ask => {
                end = if has_ended(leader) { end } else { ExitCode::from(ACTED) };
                // Those that lose their parents now may be out of our sight later.
                family.notice();
                let _ = kill_process_group(group, Signal::TERM);
                continue;
            }
            Act::Force => {
                end = if has_ended(leader) { end } else { ExitCode::from(ACTED) };
                family.kill();
                let last = *linger.get_or_insert(now + LINGER);
                let lives = family.lives();
                if now >= last || (input.ended && !lives) {
                    return end;
                }
                now + if lives { AGAIN } else { LOOK }
            }
        };
        for news in input.wait(wake.saturating_sub(now)) {
            match news {
                News::Until(until) => schedule.prolong(until),
                News::Done => return end,
            }
        }
        if input.ended {
            schedule.stop();
        }
    }
}

/// Whether the command itself has ended, be it that some of its group are left.
fn has_ended(leader: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(leader, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap_or(0) > 0
}

/// Standard input, line by line.
#[derive(Default)]
struct Input {
    line: Vec<u8>,
    ended: bool,
}

impl Input {
    /// Waits for news, but not for longer than this.
    fn wait(&mut self, most: Duration) -> Vec<News> {
        let most = most.min(LOOK);
        if self.ended {
            std::thread::sleep(most);
            return Vec::new();
        }
        let stdin = std::io::stdin();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(most.subsec_nanos()) };
        let readable = {
            let fd = stdin.as_fd();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0
        };
        if !readable {
            return Vec::new();
        }
        let mut bytes = [0; 512];
        match stdin.lock().read(&mut bytes) {
            Ok(0) | Err(_) => {
                self.ended = true;
                Vec::new()
            }
            Ok(count) => self.take(&bytes[..count]),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Vec<News> {
        let mut news = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    news.extend(std::str::from_utf8(&line).ok().and_then(News::parse));
                }
                byte => self.line.push(*byte),
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_arrive_as_they_were_sent_however_they_are_cut() {
        let sent = [News::Until(Duration::from_nanos(123_456_789_012)), News::Done];
        let text: String = sent.iter().map(|news| news.line()).collect();
        let mut input = Input::default();
        let heard: Vec<News> = text.bytes().flat_map(|byte| input.take(&[byte])).collect();
        assert_eq!(heard, sent);
        assert_eq!(Input::default().take(b"nonsense\ndone\n"), [News::Done]);
    }
}
