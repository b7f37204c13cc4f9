//! After a crash: bring the canonical files up to what history says was committed.
//!
//! Runs under the exclusive store lock, in the process that comes first. Frames behind the head are
//! done again; doing so twice, or after another process went on, changes nothing. A frame that is not whole
//! was never committed: it is cut off.
//!
//! A process that was killed may have left history that only the kernel remembers. It is flushed before
//! anything is done again from it: objects must never outlive the frames that they come from, or their
//! revisions would be drawn again after a power cut.

use std::fs::OpenOptions;

use crate::BACKEND;
use crate::apply::stage;
use crate::disk::failed;
use crate::files::Files;
use crate::head::Head;
use crate::history::{self, Reader};
use crate::overlay::Overlay;
use tenure::{Error, Result};

/// Objects redone before they are written out, so that a long history is redone in bounded memory.
const AT_ONCE: usize = 1024;

/// What helps where history is shorter than it was.
const COPY: &str = "put back a good copy of the folder, made while no process used the store";

/// Returns the head as it is now; it has been written.
pub(crate) fn recover(files: &Files) -> Result<Head> {
    let layout = &files.layout;
    let stale = Head::read(layout, &files.head_file)?;
    let mut bases = history::segments(layout)?;
    let Some(oldest) = bases.first().copied() else { return begin(files, stale) };

    let lost = stale.as_ref().map(|head| head.revision);
    let known = stale.filter(|head| bases.contains(&head.segment));
    let (mut head, mut offset) = match known {
        Some(head) => {
            let length = head.length;
            (head, length)
        }
        None => (blank(files, oldest), 0),
    };
    bases.retain(|base| *base >= head.segment);
    flush(files, &bases)?;
    let (mut overlay, mut redone) = (Overlay::new(files), 0_u64);
    for (at, base) in bases.iter().copied().enumerate() {
        let path = layout.segment(base);
        let mut reader = Reader::open(&path, offset, None)?;
        let mut frames = 0_u64;
        while let Some(frame) = reader.next(&path)? {
            offset += frame.len;
            frames += 1;
            redone += u64::from(!frame.changes.is_empty());
            overlay.redo(&frame)?;
            head.revision = head.revision.max(frame.revision);
            head.at_ms = head.at_ms.max(frame.at_ms);
            if base != head.segment {
                (head.segment, head.segment_at_ms) = (base, frame.at_ms);
            }
            if overlay.rows.len() >= AT_ONCE {
                stage(files, &overlay, true)?.publish()?;
                overlay = Overlay::new(files);
            }
        }
        let is_last = at + 1 == bases.len();
        end_segment(files, base, offset, is_last)?;
        if is_last && frames == 0 && offset == 0 {
            // Nothing in it can be read, not even its beginning, though it was flushed before it got
            // its name.
            return Err(Error::corrupt(
                BACKEND,
                format!("{} is empty; put back a good copy", path.display()),
            ));
        }
        head.length = offset;
        offset = 0;
    }
    stage(files, &overlay, true)?.publish()?;
    for temp in files.temp_files()? {
        files.disk.remove(&temp)?;
    }
    if let Some(lost) = lost.filter(|revision| *revision > head.revision) {
        return Err(Error::corrupt(
            BACKEND,
            format!(
                "{} ends at revision {}, though the store was at revision {lost}; {COPY}",
                layout.history().display(),
                head.revision
            ),
        ));
    }
    head.boot_id.clone_from(&files.boot_id);
    files.write_head(&head)?;
    if redone > 0 {
        tracing::info!(
            root = %layout.root().display(),
            revision = head.revision,
            redone,
            "file store brought up to its history after a crash or a reboot"
        );
    }
    Ok(head)
}

/// Makes durable what a process that was killed may not have flushed: the segments, and that they exist.
fn flush(files: &Files, bases: &[u64]) -> Result<()> {
    for base in bases {
        let path = files.layout.segment(*base);
        let file = OpenOptions::new().write(true).open(&path);
        let file = file.map_err(|error| failed("open", &path, &error))?;
        files.disk.flush(&[(&path, &file)])?;
    }
    files.disk.sync_folders(&[&files.layout.history()])
}

/// Cuts a torn tail off the last segment. In an earlier one it would mean that commits are lost.
fn end_segment(files: &Files, base: u64, whole: u64, is_last: bool) -> Result<()> {
    let path = files.layout.segment(base);
    let file = OpenOptions::new().write(true).open(&path);
    let file = file.map_err(|error| failed("open", &path, &error))?;
    let length = file.metadata().map_err(|error| failed("read", &path, &error))?.len();
    if length == whole {
        return Ok(());
    }
    if length < whole {
        return Err(Error::corrupt(
            BACKEND,
            format!(
                "{} ends at byte {length}, though commits reached byte {whole}; {COPY}",
                path.display()
            ),
        ));
    }
    if !is_last {
        return Err(Error::corrupt(
            BACKEND,
            format!(
                "{} is damaged at byte {whole}, with newer history behind it; put back a good copy \
                 of the store",
                path.display()
            ),
        ));
    }
    files.disk.truncate(&path, &file, whole)
}

fn blank(files: &Files, segment: u64) -> Head {
    Head {
        revision: segment,
        segment,
        length: 0,
        at_ms: 0,
        segment_at_ms: 0,
        boot_id: files.boot_id.clone(),
    }
}

/// A store without history is a new one, unless objects say otherwise.
fn begin(files: &Files, stale: Option<Head>) -> Result<Head> {
    if stale.is_some() || !files.kinds()?.is_empty() {
        return Err(Error::corrupt(
            BACKEND,
            format!(
                "{} holds no history though the store has been used: revisions could repeat; put \
                 back a good copy of the folder",
                files.layout.history().display()
            ),
        ));
    }
    let mut head = blank(files, 0);
    history::begin(&files.layout, &files.disk, &mut head, 0)?;
    files.write_head(&head)?;
    Ok(head)
}
