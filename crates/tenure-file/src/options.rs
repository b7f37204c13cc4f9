//! Opening a store: what can be chosen, and what is checked first.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{Disk, failed};
use crate::files::Files;
use crate::head::{Head, check_format, read_anchor, write_anchor};
use crate::history::HistoryLimits;
use crate::inner::Inner;
use crate::layout::Layout;
use crate::locks::{Locks, Mode};

use crate::{BACKEND, FileStore};
use tenure::backend::hosttime::{Anchor, HostTime};
use tenure::backend::local::refuse_remote;
use tenure::clock::{SharedClock, SystemClock, boot_id};
use tenure::{Error, Result};

/// The longest path of a store; what lies below needs the rest of the 4096 bytes a path may have.
const ROOT_BYTES: usize = 1024;

/// How to open a file store.
#[derive(Clone)]
#[must_use]
pub struct FileOptions {
    clock: SharedClock,
    boot_id: Option<String>,
    history: HistoryLimits,
    allow_network_filesystem: bool,
    pub(crate) poll_every: Duration,
    lock_timeout: Duration,
    #[cfg(test)]
    pub(crate) crash: Option<std::sync::Arc<crate::crash::CrashPoint>>,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            clock: SystemClock::shared(),
            boot_id: None,
            history: HistoryLimits::default(),
            allow_network_filesystem: false,
            poll_every: Duration::from_secs(1),
            // Below the ten seconds of a store's calls, so that the answer is a definite one.
            lock_timeout: Duration::from_secs(8),
            #[cfg(test)]
            crash: None,
        }
    }
}

impl FileOptions {
    /// Judges expiry by this clock. All processes on one store must use the same.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Pretends to be in this boot of the host, for tests that reboot.
    pub fn boot_id(mut self, boot_id: impl Into<String>) -> Self {
        self.boot_id = Some(boot_id.into());
        self
    }

    /// How much history is kept for watchers.
    pub fn history(mut self, limits: HistoryLimits) -> Self {
        self.history = limits;
        self
    }

    /// Opens a store on NFS, SMB, FUSE and the like. Locks, renames and flushes are then only as
    /// good as that file system's.
    pub fn allow_network_filesystem(mut self, allow: bool) -> Self {
        self.allow_network_filesystem = allow;
        self
    }

    /// How often watchers look for commits of other processes even if the kernel tells of none.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.poll_every = every;
        self
    }

    /// How long to wait for a lock that another process holds.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Opens or creates the store in this folder. Blocks for a moment; after a crash it puts things
    /// right first.
    ///
    /// # Errors
    /// [`Error::Refused`] on a network file system, on a folder that holds something else, and on a
    /// store made for newer programs.
    pub fn open(self, folder: impl AsRef<Path>) -> Result<FileStore> {
        let root = self.prepare(folder.as_ref())?;
        let layout = Layout::new(root);
        let locks = Locks::new(layout.clone(), self.lock_timeout);
        #[cfg_attr(not(test), expect(unused_mut))]
        let mut disk = Disk::new();
        #[cfg(test)]
        disk.crash.clone_from(&self.crash);

        let alone = locks.store(Mode::Exclusive)?;
        check_format(&layout, &disk)?;
        for folder in [layout.locks(), layout.history(), layout.objects(), layout.names()] {
            disk.ensure_folder(layout.root(), &folder)?;
        }
        drop(alone);

        let boot_id = self.boot_id.clone().unwrap_or_else(boot_id);
        let files = Files::open(layout, disk, locks, boot_id.clone())?;
        let time = self.resume(&files, boot_id)?;
        FileStore::start(Inner::new(files, time, self.history), &self)
    }

    fn prepare(&self, folder: &Path) -> Result<PathBuf> {
        // Before anything is made there.
        refuse_remote(crate::BACKEND, folder, self.allow_network_filesystem)?;
        let missing =
            folder.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists());
        let missing = missing.count();
        std::fs::create_dir_all(folder).map_err(|error| failed("create folder", folder, &error))?;
        let root = folder.canonicalize().map_err(|error| failed("find", folder, &error))?;
        flush_above(&root, missing)?;
        if root.as_os_str().len() > ROOT_BYTES {
            return Err(Error::invalid(
                format!("folder {}", root.display()),
                format!("a store's path may have {ROOT_BYTES} bytes"),
            ));
        }
        // And where it has led to in the end.
        refuse_remote(crate::BACKEND, &root, self.allow_network_filesystem)?;
        refuse_foreign(&root)?;
        Ok(root)
    }

    /// Takes up the store's timeline, and writes it down if this is the first sight in this boot.
    fn resume(&self, files: &Files, boot_id: String) -> Result<HostTime> {
        let session = files.exclusive()?;
        let stored = read_anchor(&files.layout)?;
        let last_ms = stored.as_ref().map_or(i64::MIN, |a| a.last_ms).max(session.head.at_ms);
        let anchor = match &stored {
            Some(anchor) => Some(Anchor { last_ms, ..anchor.clone() }),
            // The record of the clock is gone, history is not: as after a reboot.
            None if session.head.revision > 0 => {
                Some(Anchor { boot_id: String::new(), offset_ms: 0, last_ms })
            }
            None => None,
        };
        let time = HostTime::resume_in(self.clock.clone(), boot_id, anchor.as_ref());
        if stored.is_none_or(|anchor| anchor != time.anchor(anchor.last_ms)) {
            let now_ms = time.now_ms();
            write_anchor(&files.layout, &files.disk, time.anchor(now_ms))?;
            if session.head.revision == 0 {
                // The first segment was begun before the time was known.
                files.write_head(&Head { segment_at_ms: now_ms, ..session.head.clone() })?;
            }
        }
        Ok(time)
    }
}

/// Makes the store's folder durable, with so many folders above it as were made along with it. At least
/// one is flushed: the process that made it may have been killed before it did so.
fn flush_above(root: &Path, missing: usize) -> Result<()> {
    for above in root.ancestors().skip(1).take(missing.max(1)) {
        match File::open(above).and_then(|folder| folder.sync_all()) {
            // A folder that we may pass through but not read was made by somebody else, and not every
            // file system that a store lies below can flush folders.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied
                        | io::ErrorKind::InvalidInput
                        | io::ErrorKind::Unsupported
                ) => {}
            Err(error) => return Err(failed("flush folder", above, &error)),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Refuses a folder that is in use for something else, before anything is written into it.
fn refuse_foreign(root: &Path) -> Result<()> {
    let entries = std::fs::read_dir(root).map_err(|error| failed("read", root, &error))?;
    for entry in entries {
        let name = entry.map_err(|error| failed("read", root, &error))?.file_name();
        let name = name.to_string_lossy();
        if !Layout::is_ours(&name) {
            return Err(Error::Refused {
                backend: BACKEND,
                reason: format!(
                    "{} holds {name:?}, which is not part of a store; give it a folder of its own",
                    root.display()
                ),
            });
        }
    }
    Ok(())
}
