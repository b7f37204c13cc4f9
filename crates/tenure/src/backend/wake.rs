//! Waking on changes that another process made to files: inotify, with a slow poll behind it.
//!
//! The embedded stores have no server to tell one process of another's commit; the kernel does. A
//! wake-up is a hint to look, never a fact, and nothing is concluded from its absence: the poll looks
//! anyway. Where the kernel cannot tell, for instance because a user has used up its inotify watches,
//! only the poll is left.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, Timestamps};

/// Calls back whenever one of its paths may have changed, from a thread of its own.
pub struct FileWatcher {
    stop: Arc<AtomicBool>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    /// Watches files and directories. `on_change` is called after changes and at least every
    /// `poll_every`.
    pub fn new(
        paths: &[PathBuf],
        poll_every: Duration,
        mut on_change: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let notify = watch(paths)
            .inspect_err(|error| {
                tracing::warn!(%error, ?poll_every, "no notice of other processes' changes; polling");
            })
            .ok();
        let (wake_read, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tenure-wake".into()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                wait(notify.as_ref(), &wake_read, poll_every);
                if !stopped.load(Ordering::Acquire) {
                    on_change();
                }
            }
        })?;
        Ok(Self { stop, wake, thread: Some(thread) })
    }
}

/// Wakes the watchers of this file, for a change that counts only some time after it was written: a log
/// is flushed, and only then its commit has happened. A flush by itself wakes no watcher.
pub fn tell(path: &Path) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::empty())?)
}

fn watch(paths: &[PathBuf]) -> io::Result<OwnedFd> {
    let notify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let what = WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::MOVED_TO
        | WatchFlags::CREATE
        | WatchFlags::DELETE;
    for path in paths {
        inotify::add_watch(&notify, path, what)?;
    }
    Ok(notify)
}

fn wait(notify: Option<&OwnedFd>, wake: &OwnedFd, at_most: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    let both = notify.into_iter().chain([wake]);
    let mut fds: Vec<_> = both.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    if poll(&mut fds, Some(&timeout)).is_err() {
        // Interrupted, or out of memory for a moment: the caller looks and comes back.
        std::thread::sleep(Duration::from_millis(1));
    }
    let Some(notify) = notify else { return };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(notify, &mut buffer);
    // Drained, so that a burst of changes is one wake-up. What they were does not matter.
    while events.next().is_ok() {}
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, b"x");
        if let Some(thread) = self.thread.take() {
            // A watcher dropped by its own callback cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn without_the_kernels_help_it_looks_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, woken) = mpsc::channel();
        let nowhere = folder.path().join("not-there");
        let watcher = FileWatcher::new(&[nowhere], Duration::from_millis(1), move || {
            let _ = sender.send(());
        });
        let watcher = watcher.unwrap();
        for _ in 0..3 {
            woken.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        drop(watcher);
        while woken.recv_timeout(Duration::from_secs(10)).is_ok() {}
        assert_eq!(woken.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn a_change_wakes_and_dropping_stops() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, woken) = mpsc::channel();
        let watcher =
            FileWatcher::new(&[folder.path().to_owned()], Duration::from_secs(3600), move || {
                let _ = sender.send(());
            })
            .unwrap();
        std::fs::write(folder.path().join("x"), "1").unwrap();
        woken.recv_timeout(Duration::from_secs(10)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        while woken.try_recv().is_ok() {}
        tell(&folder.path().join("x")).unwrap();
        woken.recv_timeout(Duration::from_secs(10)).unwrap();
        drop(watcher);
        while woken.recv_timeout(Duration::from_secs(10)).is_ok() {}
        assert_eq!(woken.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
