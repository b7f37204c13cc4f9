//! The doorway before the write lock, through which processes go one after the other.
//!
//! Whoever waits for SQLite's write lock sleeps and asks again, ever more rarely; a process that has
//! just written asks again at once. So a busy one is first nearly always. Here whoever wants to write
//! locks a file beside the database first, and holds it until the write lock is its own: a process
//! that has just written finds the doorway taken and queues behind the one that waits there. Only that
//! one asks for the write lock, so it can ask often.
//!
//! This is about whose turn it is and nothing else; what keeps writers apart is SQLite's lock. So where
//! the file cannot be had, or one who was frozen stands in the doorway, it goes without. The kernel drops
//! the lock of a process that dies.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tenure::clock::{Clock as _, SystemClock};

/// How long somebody may stand in the doorway before it is gone around.
const PATIENCE: Duration = Duration::from_secs(1);
/// For how long it is left alone then.
const AROUND: Duration = Duration::from_secs(10);
/// Between two attempts, at first and at most.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_micros(500);

pub(crate) struct Doorway {
    file: Option<File>,
    busy_timeout: Duration,
    /// Gone around until then.
    around_until: Cell<Duration>,
}

/// Stands in the doorway until dropped.
struct Standing<'a>(&'a File);

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the doorway before the write lock stays shut until this ends");
        }
    }
}

impl Doorway {
    /// The doorway of the database at `path`. Whoever waits, waits for this long at most.
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
        let standing = self.enter();
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
        drop(standing);
        conn.busy_timeout(self.busy_timeout)?;
        begun.map(|_| ())
    }

    fn enter(&self) -> Option<Standing<'_>> {
        let file = self.file.as_ref()?;
        let now = SystemClock.uptime();
        if now < self.around_until.get() {
            return None;
        }
        let entered = retry(now + PATIENCE, || match file.try_lock() {
            Ok(()) => Ok(Some(())),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        });
        match entered {
            Ok(Some(())) => Some(Standing(file)),
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

    fn open(path: &Path) -> (Connection, Doorway) {
        (Connection::open(path).unwrap(), Doorway::new(path, Duration::from_millis(50)))
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
        // Whoever has begun no longer stands in the doorway.
        assert!(second.enter().is_some());
        let began = SystemClock.uptime();
        let busy = second.begin(&two).unwrap_err();
        assert_eq!(busy.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
        let patient = Doorway { busy_timeout: Duration::from_secs(2), ..second };
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
        let standing = first.enter();
        assert!(standing.is_some());
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
