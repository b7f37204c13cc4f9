//! The files of one store and the two ways into them: shared, for readers and touches, and
//! exclusive, for commits. The first to come in after a crash puts things right.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::{Disk, failed};
use crate::head::{Admission, Head};
use crate::layout::{Layout, TEMP_PREFIX, continues, decode};
use crate::locks::{Held, Locks, Mode};
use crate::record::{self, Sealed, Stored, seal};
use crate::{BACKEND, recover};
use tenure::{Error, Key, Result};

pub(crate) struct Files {
    pub(crate) layout: Layout,
    pub(crate) disk: Disk,
    pub(crate) locks: Locks,
    pub(crate) head_file: File,
    pub(crate) boot_id: String,
    admission: Admission,
}

/// The store, locked and in order.
pub(crate) struct Session {
    pub(crate) head: Head,
    _held: Held,
}

#[derive(Serialize, Deserialize)]
struct NameFile {
    tenure: u32,
    kind: String,
    name: String,
    id: String,
}

/// A whole file; `None` if there is none.
pub(crate) fn read_file(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        // A folder where a file should be continues longer names; no object has this path.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(failed("read", path, &error)),
    }
}

/// The file that says who has a name.
pub(crate) fn encode_name(kind: &str, name: &str, id: &str) -> Result<Vec<u8>> {
    let file = NameFile {
        tenure: record::FORMAT,
        kind: kind.to_owned(),
        name: name.to_owned(),
        id: id.to_owned(),
    };
    seal(&file, b"")
}

impl Files {
    /// The head file is created if need be; everything else is up to the caller.
    pub(crate) fn open(layout: Layout, disk: Disk, locks: Locks, boot_id: String) -> Result<Self> {
        let path = layout.head();
        let head_file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let head_file = head_file.map_err(|error| failed("open", &path, &error))?;
        Ok(Self { layout, disk, locks, head_file, boot_id, admission: Admission::default() })
    }

    /// Beside other readers and touches; no commit is under way.
    pub(crate) fn shared(&self) -> Result<Session> {
        // A crash between the two locks can make it dirty again, but hardly that often.
        for _ in 0..16 {
            let held = self.locks.store(Mode::Shared)?;
            if let Some(head) = self.clean_head()? {
                return Ok(Session { head, _held: held });
            }
            drop(held);
            drop(self.exclusive()?);
        }
        Err(Error::unavailable(BACKEND, "commits keep being left half done; see who is crashing"))
    }

    /// Beside other readers and touches, to write.
    pub(crate) fn shared_to_write(&self) -> Result<Session> {
        let session = self.shared()?;
        self.admission.check(&self.layout)?;
        Ok(session)
    }

    /// Alone, to write.
    pub(crate) fn exclusive(&self) -> Result<Session> {
        let held = self.locks.store(Mode::Exclusive)?;
        self.admission.check(&self.layout)?;
        let head = match self.clean_head()? {
            Some(head) => head,
            None => recover::recover(self)?,
        };
        Ok(Session { head, _held: held })
    }

    /// The head, if the canonical files are known to agree with history. Without a lock it tells
    /// what was so a moment ago.
    pub(crate) fn clean_head(&self) -> Result<Option<Head>> {
        let Some(head) = Head::read(&self.layout, &self.head_file)? else { return Ok(None) };
        if head.boot_id != self.boot_id {
            return Ok(None);
        }
        let path = self.layout.segment(head.segment);
        match std::fs::metadata(&path) {
            Ok(meta) if meta.len() == head.length => Ok(Some(head)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    pub(crate) fn write_head(&self, head: &Head) -> Result<()> {
        head.write(&self.layout, &self.disk, &self.head_file)
    }

    /// What the canonical file of a key says.
    pub(crate) fn read_object(&self, key: &Key) -> Result<Option<Stored>> {
        let path = self.layout.object(key);
        let Some(bytes) = read_file(&path)? else { return Ok(None) };
        record::decode_file(&path, key, bytes).map(Some)
    }

    /// Who is said to have a name; the object itself decides.
    pub(crate) fn read_name(&self, kind: &str, name: &str) -> Result<Option<String>> {
        let path = self.layout.name(kind, name);
        let Some(bytes) = read_file(&path)? else { return Ok(None) };
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let file = Sealed::<NameFile>::parse(line).and_then(|sealed| sealed.open(b""));
        match file {
            Some(file) if file.kind == kind && file.name == name => Ok(Some(file.id)),
            _ => Err(Error::corrupt(
                BACKEND,
                format!(
                    "{} is not readable; write into it which id has the name by putting that \
                     object once more after moving the file away",
                    path.display()
                ),
            )),
        }
    }

    /// All kinds that have a folder.
    pub(crate) fn kinds(&self) -> Result<Vec<String>> {
        let mut kinds = Vec::new();
        walk(&self.layout.objects(), "", &mut |name, is_folder| {
            kinds.extend(Some(name).filter(|_| is_folder).and_then(decode));
        })?;
        Ok(kinds)
    }

    /// The ids of a kind in bytewise order, expired ones included.
    pub(crate) fn ids(&self, kind: &str) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        walk(&self.layout.kind(kind), "", &mut |name, is_folder| {
            ids.extend(Some(name).filter(|_| !is_folder).and_then(decode));
        })?;
        ids.sort_unstable();
        // Somebody may have put a second spelling of the same name there.
        ids.dedup();
        Ok(ids)
    }

    /// Temp files that nobody will put in place any more, provided that the store is locked
    /// exclusively: a process that uses one holds the store lock.
    pub(crate) fn temp_files(&self) -> Result<Vec<std::path::PathBuf>> {
        let mut found = Vec::new();
        let mut folders = vec![self.layout.root().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in read_folder(&folder)? {
                let name = entry.file_name();
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder {
                    folders.push(folder.join(name));
                } else if name.to_str().is_some_and(|name| name.starts_with(TEMP_PREFIX)) {
                    found.push(folder.join(name));
                }
            }
        }
        Ok(found)
    }

    /// Removes what crashes left behind.
    pub(crate) fn remove_temp_files(&self) -> Result<()> {
        if self.temp_files()?.is_empty() {
            return Ok(());
        }
        let _alone = self.exclusive()?;
        for path in self.temp_files()? {
            self.disk.remove(&path)?;
        }
        Ok(())
    }
}

fn read_folder(folder: &Path) -> Result<Vec<std::fs::DirEntry>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("read", folder, &error)),
    };
    entries.collect::<io::Result<_>>().map_err(|error| failed("read", folder, &error))
}

/// Every name below a folder, those of long names put together. Hidden files are not ours to show.
fn walk(folder: &Path, prefix: &str, visit: &mut dyn FnMut(&str, bool)) -> Result<()> {
    for entry in read_folder(folder)? {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match continues(name) {
            Some(chunk) if is_folder => {
                walk(&folder.join(name), &format!("{prefix}{chunk}"), visit)?;
            }
            Some(_) => {}
            None => visit(&format!("{prefix}{name}"), is_folder),
        }
    }
    Ok(())
}
