//! Three small files: `head` (how far the canonical files are), `clock` (the store's timeline) and
//! `store.json` (which programs may write).
//!
//! `head` is overwritten in place and not flushed, because it can be found out again: whatever
//! history holds behind it is done once more. In the boot in which it was written it is exact; in
//! another boot, where an older head may have come back after a power cut, history is looked at.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::BACKEND;
use crate::disk::{Disk, failed};
use crate::layout::Layout;
use crate::record::{FORMAT, Sealed, seal};
use tenure::backend::hosttime::Anchor;
use tenure::backend::{WRITER_LEVEL, check_writer};
use tenure::{Error, Result};

/// The head is padded to this, so that overwriting it never changes the file's length.
const HEAD_BYTES: usize = 512;

/// How far the canonical files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The last revision drawn, applied to the canonical files, all of them flushed.
    pub(crate) revision: u64,
    /// The segment of history that is written to.
    pub(crate) segment: u64,
    /// Where its last whole frame ends.
    pub(crate) length: u64,
    /// The store's instant of the last commit.
    pub(crate) at_ms: i64,
    /// When the segment was begun.
    pub(crate) segment_at_ms: i64,
    /// The boot in which this was written.
    pub(crate) boot_id: String,
}

impl Head {
    /// `None` if there is no head, or none that can be believed.
    pub(crate) fn read(layout: &Layout, file: &File) -> Result<Option<Self>> {
        let mut bytes = [0; HEAD_BYTES];
        let mut filled = 0;
        while filled < HEAD_BYTES {
            match file.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) => return Err(failed("read", &layout.head(), &error)),
            }
        }
        let line = bytes[..filled].split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(Sealed::parse(line).and_then(|sealed| sealed.open(b"")))
    }

    pub(crate) fn write(&self, layout: &Layout, disk: &Disk, file: &File) -> Result<()> {
        let mut bytes = seal(self, b"")?;
        bytes.resize(HEAD_BYTES.max(bytes.len()), b'\n');
        disk.write_at(&layout.head(), file, &bytes, 0)
    }
}

#[derive(Serialize, Deserialize)]
struct Timeline {
    boot_id: String,
    offset_ms: i64,
    last_ms: i64,
}

/// The timeline as recorded; `None` in a new store.
pub(crate) fn read_anchor(layout: &Layout) -> Result<Option<Anchor>> {
    let path = layout.clock();
    let Some(bytes) = crate::read_file(&path)? else { return Ok(None) };
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let timeline: Timeline =
        Sealed::parse(line).and_then(|sealed| sealed.open(b"")).ok_or_else(|| {
            Error::corrupt(
                BACKEND,
                format!(
                    "{} is not readable; stop every process that uses this store, remove the file \
                     and start again: lives then count from there",
                    path.display()
                ),
            )
        })?;
    let Timeline { boot_id, offset_ms, last_ms } = timeline;
    Ok(Some(Anchor { boot_id, offset_ms, last_ms }))
}

pub(crate) fn write_anchor(layout: &Layout, disk: &Disk, anchor: Anchor) -> Result<()> {
    let Anchor { boot_id, offset_ms, last_ms } = anchor;
    disk.replace(&layout.clock(), &seal(&Timeline { boot_id, offset_ms, last_ms }, b"")?)
}

#[derive(Serialize, Deserialize)]
struct Format {
    /// So that a person who finds the folder knows what it is.
    about: String,
    format: u32,
    min_writer: u32,
}

/// Refuses a store made for other programs, and marks a new one. One that lets in programs which would be
/// unsafe beside this one does so no longer.
pub(crate) fn check_format(layout: &Layout, disk: &Disk) -> Result<()> {
    match allowed(layout)? {
        Some(level) if level >= WRITER_LEVEL => Ok(()),
        _ => write_format(layout, disk),
    }
}

/// Looks whether this program may still write: a newer one may have opened the store meanwhile. The file is
/// read again only if it was replaced.
#[derive(Debug, Default)]
pub(crate) struct Admission(Mutex<Option<Stamp>>);

/// What changes when a file is replaced: number, length, and when it was written.
type Stamp = (u64, u64, i64, i64);

impl Admission {
    pub(crate) fn check(&self, layout: &Layout) -> Result<()> {
        let stamp = match std::fs::metadata(layout.format()) {
            Ok(meta) => Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())),
            Err(_) => None,
        };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stamp.is_none() || *seen != stamp {
            allowed(layout)?;
            *seen = stamp;
        }
        Ok(())
    }
}

/// The lowest writer level that the store accepts, if it says one; refuses if this program may not write.
fn allowed(layout: &Layout) -> Result<Option<u32>> {
    let path = layout.format();
    let Some(bytes) = crate::read_file(&path)? else { return Ok(None) };
    let format: Format = serde_json::from_slice(&bytes).map_err(|error| {
        Error::corrupt(
            BACKEND,
            format!("{} is not readable ({error}); put back a good copy", path.display()),
        )
    })?;
    if format.format != FORMAT {
        return Err(Error::Refused {
            backend: BACKEND,
            reason: format!(
                "{} says format {}, this program knows format {FORMAT}; use a program that knows it",
                path.display(),
                format.format
            ),
        });
    }
    check_writer(BACKEND, format.min_writer)?;
    Ok(Some(format.min_writer))
}

fn write_format(layout: &Layout, disk: &Disk) -> Result<()> {
    let about = "Tenure file store".to_owned();
    let format = Format { about, format: FORMAT, min_writer: WRITER_LEVEL };
    let mut text = serde_json::to_vec(&format)
        .map_err(|error| Error::invalid("store format", error.to_string()))?;
    text.push(b'\n');
    disk.replace(&layout.format(), &text)
}
