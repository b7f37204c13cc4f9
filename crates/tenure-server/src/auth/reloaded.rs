//! Files that are read again when they change.
//!
//! Whether they have changed is looked at when somebody asks, and not more often than every two seconds;
//! the files are small and local. A change that cannot be used is logged, and what was there before stays
//! in force: a slip of the pen must not lock everybody out.

use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use tenure::clock::SharedClock;
use tenure::{Error, Result};

/// How often to look at most.
pub(super) const EVERY: Duration = Duration::from_secs(2);
/// Timestamps of files are coarse: one that changed this recently may have changed again unnoticed.
const SETTLED_MS: i64 = 2_000;
/// More than anything we read could need.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

type Load<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T> + Send + Sync>;

/// The present meaning of one or more files.
pub(super) struct Reloaded<T> {
    paths: Vec<PathBuf>,
    load: Load<T>,
    clock: SharedClock,
    current: RwLock<Arc<T>>,
    look: Mutex<Look>,
}

/// What tells that a file is another one or has other contents.
type Stamp = Vec<[i128; 5]>;

struct Look {
    next: Duration,
    seen: Option<Stamp>,
    told: Option<String>,
}

impl<T> Reloaded<T> {
    /// Reads the files for the first time; now an error is an error.
    pub(super) fn open(
        paths: &[&Path],
        clock: SharedClock,
        load: impl Fn(&[Vec<u8>]) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let paths: Vec<_> = paths.iter().map(|path| path.to_path_buf()).collect();
        let seen = stamp(&paths, &clock);
        let first = read(&paths).and_then(|files| load(&files))?;
        let look = Look { next: clock.uptime() + EVERY, seen, told: None };
        let (current, look) = (RwLock::new(Arc::new(first)), Mutex::new(look));
        Ok(Self { paths, load: Box::new(load), clock, current, look })
    }

    /// What the files are looked at by.
    pub(super) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// What the files say.
    pub(super) fn current(&self) -> Arc<T> {
        // While one caller looks at the files, the others go on with what is there.
        let look = match self.look.try_lock() {
            Ok(look) => Some(look),
            Err(TryLockError::Poisoned(look)) => Some(look.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut look) = look {
            let now = self.clock.uptime();
            if now >= look.next {
                look.next = now + EVERY;
                self.look(&mut look);
            }
        }
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn look(&self, look: &mut Look) {
        let stamp = stamp(&self.paths, &self.clock);
        if stamp.is_some() && stamp == look.seen {
            return;
        }
        look.seen = stamp;
        let error = match read(&self.paths).and_then(|files| (self.load)(&files)) {
            Ok(new) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                look.told = None;
                return;
            }
            Err(error) => error.to_string(),
        };
        if look.told.as_ref() != Some(&error) {
            let files = self.names();
            tracing::error!(files, error, "what was read before stays in force");
            look.told = Some(error);
        }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.paths.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    }
}

/// Nothing if a file cannot be looked at, or changed a moment ago: then it is read.
fn stamp(paths: &[PathBuf], clock: &SharedClock) -> Option<Stamp> {
    let now = clock.wall_ms();
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        let settled = meta.mtime().saturating_mul(1_000).saturating_add(SETTLED_MS) < now;
        let at = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let (written, changed) =
            (at(meta.mtime(), meta.mtime_nsec()), at(meta.ctime(), meta.ctime_nsec()));
        let (device, file, size) = (meta.dev().into(), meta.ino().into(), meta.size().into());
        settled.then_some([device, file, size, written, changed])
    };
    paths.iter().map(stamp).collect()
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    paths.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &Path) -> Result<Vec<u8>> {
    let wrong = |reason: String| Error::invalid(format!("file {}", path.display()), reason);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(format!("{error}")))?;
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| wrong(format!("{error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(wrong(format!("it has more than {MAX_BYTES} bytes; is it the right one?")));
    }
    Ok(bytes)
}

impl<T> fmt::Debug for Reloaded<T> {
    /// The names only: what is in the files may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reloaded({})", self.names())
    }
}

#[cfg(test)]
mod tests {
    use tenure::clock::SystemClock;

    use super::*;

    fn number(files: &[Vec<u8>]) -> Result<u32> {
        let text = String::from_utf8_lossy(&files[0]).into_owned();
        text.trim().parse().map_err(|error| Error::invalid("number", format!("{error}")))
    }

    struct Steps(Mutex<Duration>);

    impl tenure::clock::Clock for Steps {
        fn uptime(&self) -> Duration {
            *self.0.lock().unwrap()
        }
        fn wall_ms(&self) -> i64 {
            SystemClock::shared().wall_ms()
        }
        fn sleep_until(&self, _: Duration) -> futures::future::BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn a_change_is_seen_a_broken_one_is_not_taken_and_a_mended_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let clock = Arc::new(Steps(Mutex::default()));
        let reloaded = Reloaded::open(&[&path], clock.clone(), number).unwrap();
        let later = || *clock.0.lock().unwrap() += EVERY;
        assert_eq!(*reloaded.current(), 1);
        // The same length within the same tick of the file system's clock.
        std::fs::write(&path, "2").unwrap();
        assert_eq!(*reloaded.current(), 1, "looked again too soon");
        later();
        assert_eq!(*reloaded.current(), 2);
        std::fs::write(&path, "x").unwrap();
        later();
        assert_eq!(*reloaded.current(), 2);
        std::fs::remove_file(&path).unwrap();
        later();
        assert_eq!(*reloaded.current(), 2);
        std::fs::write(&path, "31415926").unwrap();
        later();
        assert_eq!(*reloaded.current(), 31_415_926);
        assert!(!format!("{reloaded:?}").contains("31415926"), "{reloaded:?}");
    }

    #[test]
    fn the_first_reading_must_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none");
        let error = Reloaded::open(&[&path], SystemClock::shared(), number).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
        std::fs::write(&path, "x").unwrap();
        assert!(Reloaded::open(&[&path], SystemClock::shared(), number).is_err());
    }
}
