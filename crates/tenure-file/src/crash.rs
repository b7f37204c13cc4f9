//! Test only: a world that stops before a chosen step of [`crate::disk::Disk`].
//!
//! A kill leaves everything written so far in place. A power cut is crueller: what was not flushed
//! may be gone, so this undoes renames, removals and new files whose folder was not flushed, cuts
//! what was written but not flushed in half, and puts unflushed in-place writes back.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use crate::disk::Step;
use tenure::{Error, Result};

#[derive(Debug)]
pub(crate) struct CrashPoint {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps that still happen; `None` for all of them.
    left: Option<usize>,
    taken: usize,
    crashed: bool,
    /// Contents as they were when last flushed, of files written since.
    unflushed: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// Entries of folders not flushed since: path and what it held before, latest last.
    entries: Vec<(PathBuf, Option<Vec<u8>>)>,
}

impl CrashPoint {
    pub(crate) fn new(left: Option<usize>) -> Self {
        Self { state: Mutex::new(State { left, ..State::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Whether the world has stopped.
    pub(crate) fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Steps taken so far.
    pub(crate) fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Lets so many further steps happen.
    pub(crate) fn arm(&self, left: usize) {
        self.lock().left = Some(left);
    }

    pub(crate) fn before(&self, step: Step<'_>) -> Result<()> {
        let mut state = self.lock();
        match state.left {
            Some(0) if !state.crashed => {
                state.crashed = true;
                if let Step::Write(path, file, bytes, at) = step {
                    // A kill strikes in the middle of a long write.
                    state.writing(path);
                    file.write_all_at(&bytes[..bytes.len() / 2], at).unwrap();
                }
            }
            Some(left) => state.left = Some(left.saturating_sub(1)),
            None => {}
        }
        if state.crashed {
            return Err(Error::unavailable(crate::BACKEND, "injected crash"));
        }
        state.taken += 1;
        state.note(step);
        Ok(())
    }

    /// The process is dead; the next one does all its steps, on what the kernel still remembers.
    pub(crate) fn next_process(&self) {
        let mut state = self.lock();
        (state.left, state.crashed) = (None, false);
    }

    /// Takes back everything that was not flushed; bytes overwritten in place may have made it.
    pub(crate) fn cut_power(&self, in_place_stays: bool) {
        let mut state = self.lock();
        for (path, flushed) in std::mem::take(&mut state.unflushed) {
            let Ok(now) = std::fs::read(&path) else { continue };
            match flushed {
                Some(old) if old.len() == now.len() && in_place_stays => {}
                // In place: the old bytes are still on the disk. Appended: half made it.
                Some(old) if old.len() >= now.len() => std::fs::write(&path, old).unwrap(),
                Some(old) => {
                    std::fs::write(&path, &now[..usize::midpoint(old.len(), now.len())]).unwrap();
                }
                None => std::fs::write(&path, &now[..now.len() / 2]).unwrap(),
            }
        }
        for (path, before) in std::mem::take(&mut state.entries).into_iter().rev() {
            match before {
                Some(old) => std::fs::write(&path, old).unwrap(),
                // What is in a folder goes with it.
                None if path.is_dir() => drop(std::fs::remove_dir_all(&path)),
                None => drop(std::fs::remove_file(&path)),
            }
        }
    }
}

impl State {
    fn writing(&mut self, path: &Path) {
        if !self.unflushed.contains_key(path) {
            self.unflushed.insert(path.to_owned(), std::fs::read(path).ok());
        }
    }

    fn note(&mut self, step: Step<'_>) {
        match step {
            Step::Write(path, ..) | Step::Truncate(path) => self.writing(path),
            Step::SyncFile(path) => drop(self.unflushed.remove(path)),
            Step::Create(path) | Step::CreateFolder(path) => {
                self.entries.push((path.to_owned(), None));
            }
            Step::Remove(path) => {
                if let Ok(old) = std::fs::read(path) {
                    self.entries.push((path.to_owned(), Some(old)));
                }
            }
            Step::Rename(from, to) => {
                // The temp file was there; its entry goes and that of the target changes.
                self.entries.push((from.to_owned(), std::fs::read(from).ok()));
                self.entries.push((to.to_owned(), std::fs::read(to).ok()));
            }
            Step::SyncFolder(folder) => {
                self.entries.retain(|(path, _)| path.parent() != Some(folder));
            }
        }
    }
}
