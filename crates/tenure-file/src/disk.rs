//! Every change to the disk, one small step at a time.
//!
//! All writing goes through [`Disk`], for two reasons: an error names the file and what failed, and
//! the tests can stop the world (as a kill would) or cut the power before any single step, see
//! [`crate::crash`].

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::BACKEND;
use crate::layout::TEMP_PREFIX;
use tenure::random::{SystemRandom, nonce};
use tenure::{Error, Result};

/// Threads that flush side by side.
const FLUSHERS: usize = 8;
/// Folders at most that are known to be on the disk. Beyond, they are looked at anew.
const FOLDERS: usize = 4096;

/// Tells a folder from one that another process made in its place: number and time of birth.
type Identity = (u64, Option<SystemTime>);

/// `None` if there is no such folder.
fn identity(folder: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(folder).ok().filter(Metadata::is_dir)?;
    Some((meta.ino(), meta.created().ok()))
}

/// Turns an operating system's error into what the caller can do about it.
pub(crate) fn failed(action: &str, path: &Path, error: &io::Error) -> Error {
    let what = format!("{action} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::Full { backend: BACKEND, reason: what }
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::unavailable(
            BACKEND,
            format!("{what}; run as a user who may write there, or correct owner and mode"),
        ),
        _ => Error::unavailable(BACKEND, what),
    }
}

/// What is about to happen to the disk.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only the tests look at the steps"))]
pub(crate) enum Step<'a> {
    Create(&'a Path),
    Write(&'a Path, &'a File, &'a [u8], u64),
    SyncFile(&'a Path),
    Truncate(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    CreateFolder(&'a Path),
    SyncFolder(&'a Path),
}

/// The only one who writes.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Tells this store's temp files from those of other processes, also of other containers.
    nonce: String,
    temps: AtomicU64,
    /// Folders that this process knows to be on the disk.
    durable: Mutex<HashMap<PathBuf, Identity>>,
    #[cfg(test)]
    pub(crate) crash: Option<std::sync::Arc<crate::crash::CrashPoint>>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let mut nonce = nonce(&SystemRandom);
        nonce.truncate(12);
        Self {
            nonce,
            temps: AtomicU64::new(0),
            durable: Mutex::default(),
            #[cfg(test)]
            crash: None,
        }
    }

    /// Writes a temp file next to where it shall go. It has to be flushed before it goes there.
    pub(crate) fn write_temp(&self, folder: &Path, bytes: &[u8]) -> Result<Temp> {
        let number = self.temps.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{TEMP_PREFIX}{}-{number}", self.nonce));
        self.before(Step::Create(&path))?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| failed("create", &path, &error))?;
        if let Err(error) = self.write_at(&path, &file, bytes, 0) {
            self.discard(&path);
            return Err(error);
        }
        Ok(Temp { path, file })
    }

    /// Moves a temp file into its place, over what may be there.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.before(Step::Rename(from, to))?;
        std::fs::rename(from, to).map_err(|error| failed("rename to", to, &error))
    }

    /// Removes a file; whether it was there.
    pub(crate) fn remove(&self, path: &Path) -> Result<bool> {
        self.before(Step::Remove(path))?;
        match std::fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("remove", path, &error)),
        }
    }

    /// Removes a temp file that is not needed after all. One that stays is found by the next
    /// process that opens the store.
    pub(crate) fn discard(&self, temp: &Path) {
        if let Err(error) = self.remove(temp) {
            tracing::debug!(%error, "a temp file stays for now");
        }
    }

    /// Makes renames and removals in folders durable.
    pub(crate) fn sync_folders(&self, folders: &[&Path]) -> Result<()> {
        for folder in folders {
            self.before(Step::SyncFolder(folder))?;
        }
        side_by_side(folders, |folder| {
            let synced = File::open(folder).and_then(|file| file.sync_all());
            synced.map_err(|error| failed("flush folder", folder, &error))
        })
    }

    /// Creates a folder below `root` with all that is missing above it, durably. One that is there may
    /// have been made by a process that was killed before it flushed that, so what is above it is
    /// flushed at first sight.
    pub(crate) fn ensure_folder(&self, root: &Path, folder: &Path) -> Result<()> {
        let Some(parent) = folder.parent().filter(|_| folder != root) else { return Ok(()) };
        let there = identity(folder);
        if there.is_some() && self.durable().get(folder) == there.as_ref() {
            return Ok(());
        }
        self.ensure_folder(root, parent)?;
        if there.is_none() {
            self.before(Step::CreateFolder(folder))?;
            match std::fs::create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("create folder", folder, &error));
                }
                _ => {}
            }
        }
        let made = identity(folder);
        self.sync_folders(&[parent])?;
        let mut durable = self.durable();
        if durable.len() >= FOLDERS {
            durable.clear();
        }
        durable.extend(made.map(|made| (folder.to_owned(), made)));
        Ok(())
    }

    fn durable(&self) -> MutexGuard<'_, HashMap<PathBuf, Identity>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a whole file: temp file, flush, rename, flush of the folder.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let folder = path.parent().unwrap_or(path);
        let temp = self.write_temp(folder, bytes)?;
        let placed = self.flush(&[(&temp.path, &temp.file)]);
        if let Err(error) = placed.and_then(|()| self.rename(&temp.path, path)) {
            self.discard(&temp.path);
            return Err(error);
        }
        self.sync_folders(&[folder])
    }

    /// Cuts a file off, down to the disk.
    pub(crate) fn truncate(&self, path: &Path, file: &File, len: u64) -> Result<()> {
        self.before(Step::Truncate(path))?;
        let cut = file.set_len(len).and_then(|()| file.sync_all());
        cut.map_err(|error| failed("truncate", path, &error))
    }

    /// Overwrites bytes in place, not flushed.
    pub(crate) fn write_at(&self, path: &Path, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        self.before(Step::Write(path, file, bytes, at))?;
        file.write_all_at(bytes, at).map_err(|error| failed("write", path, &error))
    }

    /// Makes everything written to these files durable.
    pub(crate) fn flush(&self, files: &[(&Path, &File)]) -> Result<()> {
        for (path, _) in files {
            self.before(Step::SyncFile(path))?;
        }
        side_by_side(files, |(path, file)| {
            file.sync_data().map_err(|error| failed("flush", path, &error))
        })
    }

    /// In tests, the point at which everything may stop.
    #[cfg_attr(not(test), expect(clippy::unused_self, clippy::unnecessary_wraps))]
    fn before(&self, _step: Step<'_>) -> Result<()> {
        #[cfg(test)]
        if let Some(crash) = &self.crash {
            return crash.before(_step);
        }
        Ok(())
    }
}

/// A temp file: written, not yet flushed.
#[derive(Debug)]
pub(crate) struct Temp {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

/// Flushes side by side: a file system writes its journal once for all that wait, so sixty-four
/// flushes take hardly longer than one (4 to 20 ms instead of 250 on a busy ext4).
fn side_by_side<T: Sync>(items: &[T], flush: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let share = items.len().div_ceil(FLUSHERS).max(1);
    let (mine, others) = items.split_at(share.min(items.len()));
    let work = |items: &[T]| items.iter().try_for_each(&flush);
    std::thread::scope(|scope| {
        let others: Vec<_> = others
            .chunks(share)
            .map(|chunk| std::thread::Builder::new().spawn_scoped(scope, move || work(chunk)))
            .collect();
        let mut result = work(mine);
        for (thread, chunk) in others.into_iter().zip(items[mine.len()..].chunks(share)) {
            let theirs = match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(done)) => done,
                // No thread to be had, or one that panicked: it is done here then.
                Ok(Err(_)) | Err(_) => work(chunk),
            };
            result = result.and(theirs);
        }
        result
    })
}
