//! Locks between threads and processes: `flock`, which the kernel drops when its holder dies.
//!
//! Two levels, always taken in this order, so that nobody waits in a circle:
//!
//! 1. The *store lock*. Readers and touches hold it shared; a commit, which needs the next revision
//!    and may concern many keys, holds it exclusively, and with it every key.
//! 2. The *key locks*, one of 256 files by hash of the key, in ascending order. A touch holds those
//!    of its keys: renewals run side by side, and beside readers, and still one at a time per key.
//!
//! `flock` is unfair, so a process that waits for the store lock holds the *turn* meanwhile, and a busy
//! one that has just released the store lock queues behind it. Every wait is bounded. A process that is frozen
//! while it holds a lock holds up the others, as with any lock; they are told who it is.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::BACKEND;
use crate::disk::failed;
use crate::layout::Layout;
use crate::record::{FNV_SEED, fnv};
use tenure::clock::{Clock, SystemClock};
use tenure::{Error, Key, Result};

/// Number of key locks. Bounded, so that lock files do not pile up; two keys that share one only
/// wait for each other a little more often.
const STRIPES: u64 = 256;

/// Who else may hold a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// Locks held until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Held(#[expect(dead_code, reason = "closing the files unlocks them")] Vec<File>);

/// The lock files of one store.
#[derive(Debug)]
pub(crate) struct Locks {
    layout: Layout,
    timeout: Duration,
}

impl Locks {
    pub(crate) fn new(layout: Layout, timeout: Duration) -> Self {
        Self { layout, timeout }
    }

    /// Locks the store.
    pub(crate) fn store(&self, mode: Mode) -> Result<Held> {
        let deadline = SystemClock.uptime() + self.timeout;
        let _turn = self.lock(&self.layout.turn_lock(), Mode::Exclusive, deadline)?;
        let held = self.lock(&self.layout.store_lock(), mode, deadline)?;
        Ok(Held(vec![held]))
    }

    /// Locks these keys, while the store is locked shared.
    pub(crate) fn keys<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Result<Held> {
        let deadline = SystemClock.uptime() + self.timeout;
        let stripes: BTreeSet<u64> = keys.map(stripe).collect();
        let folder = self.layout.locks();
        let lock = |stripe: u64| {
            self.lock(&folder.join(format!("{stripe:02x}")), Mode::Exclusive, deadline)
        };
        Ok(Held(stripes.into_iter().map(lock).collect::<Result<_>>()?))
    }

    /// Locks the record of the store's clock, behind all other locks.
    pub(crate) fn clock(&self) -> Result<Held> {
        let deadline = SystemClock.uptime() + self.timeout;
        Ok(Held(vec![self.lock(&self.layout.locks().join("clock"), Mode::Exclusive, deadline)?]))
    }

    fn lock(&self, path: &Path, mode: Mode, deadline: Duration) -> Result<File> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| failed("open lock", path, &error))?;
        let operation = match mode {
            Mode::Shared => FlockOperation::NonBlockingLockShared,
            Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let mut pause = Duration::from_micros(20);
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed("lock", path, &error.into())),
            }
            if SystemClock.uptime() >= deadline {
                return Err(self.timed_out(path, &file));
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(2));
        }
    }

    fn timed_out(&self, path: &Path, file: &File) -> Error {
        let holders = file.metadata().map_or_else(|_| Vec::new(), |meta| holders(meta.ino()));
        let by = match holders.as_slice() {
            [] => "another process".to_owned(),
            some => format!("process {}", some.join(", ")),
        };
        Error::unavailable(
            BACKEND,
            format!(
                "{} was held by {by} for {:?}; nothing was done. If that process is frozen, let it \
                 go on or end it: the lock goes with it",
                path.display(),
                self.timeout
            ),
        )
    }
}

fn stripe(key: &Key) -> u64 {
    let hash = fnv(fnv(fnv(FNV_SEED, key.kind.as_bytes()), b"/"), key.id.as_bytes());
    (hash ^ (hash >> 32)) % STRIPES
}

/// The processes that hold locks on a file, as far as the kernel tells.
fn holders(inode: u64) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let suffix = format!(":{inode}");
    let holds = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // `1: FLOCK ADVISORY WRITE 4711 fe:00:131 0 EOF`; a waiter has `->` in second place.
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, file, ..] if file.ends_with(&suffix) => Some((*pid).to_owned()),
            _ => None,
        }
    };
    table.lines().filter_map(holds).take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(timeout: Duration) -> (tempfile::TempDir, Locks) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("locks")).unwrap();
        let locks = Locks::new(Layout::new(folder.path().to_owned()), timeout);
        (folder, locks)
    }

    #[test]
    fn readers_share_and_a_writer_is_alone_and_a_wait_is_bounded() {
        let (_folder, locks) = locks(Duration::from_millis(50));
        let (one, two) = (locks.store(Mode::Shared).unwrap(), locks.store(Mode::Shared).unwrap());
        let error = locks.store(Mode::Exclusive).unwrap_err().to_string();
        let me = format!("process {}", std::process::id());
        assert!(error.contains(&me) && error.contains("nothing was done"), "{error}");
        drop((one, two));
        let writer = locks.store(Mode::Exclusive).unwrap();
        assert!(locks.store(Mode::Shared).is_err());
        drop(writer);
        drop(locks.store(Mode::Shared).unwrap());
    }

    #[test]
    fn a_key_is_locked_once_and_others_are_free() {
        let (_folder, locks) = locks(Duration::from_millis(50));
        let (a, b) = (Key::new("k", "a"), Key::new("k", "b"));
        let held = locks.keys([&a, &a].into_iter()).unwrap();
        assert!(locks.keys([&b, &a].into_iter()).is_err());
        drop(locks.keys([&b].into_iter()).unwrap());
        drop(held);
        drop(locks.keys([&b, &a].into_iter()).unwrap());
    }
}
