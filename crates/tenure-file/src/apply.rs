//! From decided changes to canonical files: first everything that needs room, then the renames.
//!
//! [`stage`] writes all temp files before the commit point; if the disk is full it is full now, while
//! nothing has happened yet. The last of them are flushed together with history, which is one wait
//! instead of two. [`Staged::publish`], behind the commit point, only renames, removes and flushes
//! folders.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::disk::Temp;
use crate::files::Files;
use crate::overlay::Overlay;
use crate::record::{Stored, encode};
use tenure::Result;

/// Temp files held open at once.
const OPEN_FILES: usize = 64;

/// Changes that are ready to be put in place.
#[must_use]
pub(crate) struct Staged<'a> {
    files: &'a Files,
    /// From, to.
    renames: Vec<(PathBuf, PathBuf)>,
    /// Temp files that still have to be flushed.
    pub(crate) unflushed: Vec<Temp>,
    removals: Vec<PathBuf>,
    /// Where a process that was killed may have put things in place without flushing that.
    unsure: BTreeSet<PathBuf>,
}

/// Writes the temp files of everything that changed.
pub(crate) fn stage<'a>(files: &'a Files, overlay: &Overlay<'_>, redo: bool) -> Result<Staged<'a>> {
    let mut staged = Staged {
        files,
        renames: Vec::new(),
        unflushed: Vec::new(),
        removals: Vec::new(),
        unsure: BTreeSet::new(),
    };
    if redo {
        staged.doubt(overlay);
    }
    match staged.fill(overlay, redo) {
        Ok(()) => Ok(staged),
        Err(error) => {
            staged.discard();
            Err(error)
        }
    }
}

impl Staged<'_> {
    fn fill(&mut self, overlay: &Overlay<'_>, redo: bool) -> Result<()> {
        for (key, slot) in overlay.rows.iter().filter(|(_, slot)| slot.changed) {
            let path = self.files.layout.object(key);
            match &slot.after {
                Some(row) => {
                    let stored = Stored { row: row.clone(), written_at_ms: slot.at_ms };
                    self.temp(path, &encode(&stored)?)?;
                }
                None => self.removals.push(path),
            }
        }
        for ((kind, name), id) in &overlay.names {
            let path = self.files.layout.name(kind, name);
            let Some(id) = id else {
                self.removals.push(path);
                continue;
            };
            // A name that an object keeps need not be written again with every change to it.
            let keeps = |slot: &crate::overlay::Slot| {
                let before = slot.before.as_ref().map(|stored| &stored.row.object);
                before.is_some_and(|object| object.name.as_ref() == Some(name))
            };
            let key = tenure::Key::new(kind, id);
            if redo || !overlay.rows.get(&key).is_some_and(keeps) {
                self.temp(path, &crate::files::encode_name(kind, name, id)?)?;
            }
        }
        Ok(())
    }

    /// Nothing that history says is taken for durable because it is there already.
    fn doubt(&mut self, overlay: &Overlay<'_>) {
        let layout = &self.files.layout;
        let objects = overlay.rows.keys().map(|key| layout.object(key));
        let names = overlay.names.keys().map(|(kind, name)| layout.name(kind, name));
        let folders = objects.chain(names).filter_map(|path| path.parent().map(Path::to_owned));
        self.unsure = folders.filter(|folder| folder.is_dir()).collect();
    }

    fn temp(&mut self, path: PathBuf, bytes: &[u8]) -> Result<()> {
        let (disk, root) = (&self.files.disk, self.files.layout.root());
        let folder = path.parent().unwrap_or(root);
        disk.ensure_folder(root, folder)?;
        let temp = disk.write_temp(folder, bytes)?;
        self.renames.push((temp.path.clone(), path));
        self.unflushed.push(temp);
        if self.unflushed.len() >= OPEN_FILES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let files: Vec<_> = self.unflushed.iter().map(|t| (t.path.as_path(), &t.file)).collect();
        self.files.disk.flush(&files)?;
        self.unflushed.clear();
        Ok(())
    }

    /// Nothing happens after all.
    pub(crate) fn discard(self) {
        for (temp, _) in &self.renames {
            self.files.disk.discard(temp);
        }
    }

    /// Puts everything in place, durably. What goes, goes first: after a crash in between, the
    /// object as it was still tells which name it had.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.flush()?;
        let disk = &self.files.disk;
        let mut folders: BTreeSet<&Path> = self.unsure.iter().map(PathBuf::as_path).collect();
        for path in &self.removals {
            if disk.remove(path)? {
                folders.extend(path.parent());
            }
        }
        for (temp, path) in &self.renames {
            disk.rename(temp, path)?;
            folders.extend(path.parent());
        }
        disk.sync_folders(&folders.into_iter().collect::<Vec<_>>())?;
        for path in &self.removals {
            prune(path);
        }
        Ok(())
    }
}

/// Removes the folders that a long name needed, once they are empty. Folders of kinds stay.
fn prune(path: &Path) {
    for folder in path.ancestors().skip(1) {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Not a step that matters: an empty folder that comes back after a crash harms nobody.
        if crate::layout::continues(name).is_none() || std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}
