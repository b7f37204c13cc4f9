//! A lock file beside the database, by which processes write in the order they came.
//!
//! SQLite's own way to wait for the write lock is to sleep and ask again, ever more rarely. A process that has
//! just written asks again at once, so a busy one is first nearly always. Here a process locks the file before
//! it asks for the write lock, and unlocks it when it has that. A process that has just written finds the file
//! locked and queues behind the one that waits. Only that one asks for the write lock, so it can ask often.
//!
//! The file keeps the order and nothing else; SQLite's lock keeps writers apart. So where the file cannot be
//! had, or a frozen process holds it, this process goes without. The kernel unlocks the file of a process that
//! dies.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tenure::clock::{Clock as _, SystemClock};

/// How long another process may hold the file before this one goes without.
const PATIENCE: Duration = Duration::from_secs(1);
/// For how long it goes without then.
const AROUND: Duration = Duration::from_secs(10);
/// Between two attempts, at first and at most.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_micros(500);

pub(crate) struct FairLock {
    file: Option<File>,
    busy_timeout: Duration,
    /// Not used until then.
    around_until: Cell<Duration>,
}

/// Holds the file's lock until dropped.
struct Held<'a>(&'a File);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the file of the order of writers stays locked until this process ends");
        }
    }
}

impl FairLock {
    /// The file beside the database at `path`. Waiting for the write lock takes this long at most.
    pub(crate) fn new(path: &Path, busy_timeout: Duration) -> Self {
        let mut beside = path.to_owned().into_os_string();
        beside.push("-turn");
        let made =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&beside);
        // A lock needs no right to write, and the file may be another user's.
        let file = made.or_else(|_| File::open(&beside));
        if let Err(error) = &file {
            tracing::debug!(%error, "busy processes may keep others waiting: no file for turns");
        }
        Self { file: file.ok(), busy_timeout, around_until: Cell::new(Duration::ZERO) }
    }

    /// Begins a transaction that writes, when it is this process's turn.
    pub(crate) fn begin(&self, conn: &Connection) -> rusqlite::Result<()> {
        let until = SystemClock.uptime().saturating_add(self.busy_timeout);
        let held = self.hold();
        // Asked for once and again here: SQLite's own way of waiting sleeps for too long.
        conn.busy_timeout(Duration::ZERO)?;
        let begin = || conn.prepare_cached("BEGIN IMMEDIATE")?.execute([]);
        let begun = retry(until, || match begin() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
            done => done.map(Some),
        });
        let begun = match begun {
            // Once more, for its own words; while it does not wait.
            Ok(None) => begin().map(Some),
            begun => begun,
        };
        drop(held);
        conn.busy_timeout(self.busy_timeout)?;
        begun.map(|_| ())
    }

    fn hold(&self) -> Option<Held<'_>> {
        let file = self.file.as_ref()?;
        let now = SystemClock.uptime();
        if now < self.around_until.get() {
            return None;
        }
        let locked = retry(now + PATIENCE, || match file.try_lock() {
            Ok(()) => Ok(Some(())),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        });
        match locked {
            Ok(Some(())) => Some(Held(file)),
            Ok(None) => {
                tracing::warn!("a process waits for its turn to write and does not take it");
                self.around_until.set(SystemClock.uptime() + AROUND);
                None
            }
            Err(error) => {
                tracing::debug!(%error, "no turns");
                None
            }
        }
    }
}

/// Tries until there is a result or the time is over, at least once.
fn retry<T, E>(
    until: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(done) = attempt()? {
            return Ok(Some(done));
        }
        if SystemClock.uptime() >= until {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> (Connection, FairLock) {
        (Connection::open(path).unwrap(), FairLock::new(path, Duration::from_millis(50)))
    }

    fn timed(work: impl FnOnce()) -> Duration {
        let began = SystemClock.uptime();
        work();
        SystemClock.uptime() - began
    }

    #[test]
    fn the_write_lock_is_waited_for_and_the_wait_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let ((one, first), (two, second)) = (open(&path), open(&path));
        first.begin(&one).unwrap();
        // A process that has begun no longer holds the file.
        assert!(second.hold().is_some());
        let began = SystemClock.uptime();
        let busy = second.begin(&two).unwrap_err();
        assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
        let patient = FairLock { busy_timeout: Duration::from_secs(2), ..second };
        let took = timed(|| assert!(patient.begin(&two).is_err()));
        assert!(took < Duration::from_secs(3), "it waited twice: {took:?}");
        assert!(SystemClock.uptime() - began > Duration::from_secs(2));
        let second = patient;
        one.execute_batch("COMMIT").unwrap();
        second.begin(&two).unwrap();
        two.execute_batch("COMMIT").unwrap();
    }

    #[test]
    fn one_that_stands_still_in_the_doorway_is_gone_around() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let ((_one, first), (two, second)) = (open(&path), open(&path));
        let held = first.hold();
        assert!(held.is_some());
        second.begin(&two).unwrap();
        two.execute_batch("COMMIT").unwrap();
        // The next one does not wait for it again.
        let took = timed(|| second.begin(&two).unwrap());
        assert!(took < PATIENCE / 2, "{took:?}");
    }

    #[test]
    fn without_a_file_it_goes_without() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        std::fs::create_dir(folder.path().join("a.db-turn")).unwrap();
        let (one, first) = open(&path);
        first.begin(&one).unwrap();
    }
}
