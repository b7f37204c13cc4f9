//! History on disk: segments of frames, appended to by commits, read by watchers, forgotten in time.
//!
//! The append is the commit point: a commit whose frame is on disk has happened, and what it changes
//! is done again after a crash (see [`crate::recover`]). A segment is named after the revision it
//! starts behind, so the oldest name says how far back a watch can begin.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::disk::{Disk, Temp, failed};
use crate::frame::{self, Frame, Frames};
use crate::head::Head;
use crate::layout::{Layout, segment_base};
use tenure::{Error, Result};

/// How much history is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// How long, by the store's clock.
    pub keep: Duration,
    /// How many bytes at most; it takes precedence.
    pub bytes: u64,
    /// When a new segment is begun. Whole segments are forgotten.
    pub segment_bytes: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(600),
            bytes: 1024 * 1024 * 1024,
            segment_bytes: 4 * 1024 * 1024,
        }
    }
}

/// Where a reader is: behind this revision, at this place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) revision: u64,
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// The bases of all segments, oldest first.
pub(crate) fn segments(layout: &Layout) -> Result<Vec<u64>> {
    let folder = layout.history();
    let entries = std::fs::read_dir(&folder).map_err(|error| failed("read", &folder, &error))?;
    let mut bases = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed("read", &folder, &error))?;
        bases.extend(entry.file_name().to_str().and_then(segment_base));
    }
    bases.sort_unstable();
    Ok(bases)
}

/// Frames of one segment from an offset up to an end.
pub(crate) struct Reader {
    from: BufReader<File>,
    left: u64,
}

impl Reader {
    /// `end` is where the last whole frame ends, where that is known.
    pub(crate) fn open(path: &Path, offset: u64, end: Option<u64>) -> Result<Self> {
        let mut file = File::open(path).map_err(|error| failed("open", path, &error))?;
        file.seek(SeekFrom::Start(offset)).map_err(|error| failed("read", path, &error))?;
        let left = end.map_or(u64::MAX, |end| end.saturating_sub(offset));
        Ok(Self { from: BufReader::with_capacity(64 * 1024, file), left })
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self, path: &Path) -> Result<Option<Frame>> {
        if self.left == 0 {
            return Ok(None);
        }
        let frame = frame::read(&mut self.from).map_err(|error| failed("read", path, &error))?;
        if let Some(frame) = &frame {
            self.left = self.left.saturating_sub(frame.len);
        }
        Ok(frame)
    }
}

/// Frames behind a position, about `limit` of them, and where to go on. The caller holds the store
/// lock, so that nothing is appended or forgotten meanwhile.
pub(crate) fn read_after(
    layout: &Layout,
    head: &Head,
    from: Position,
    limit: usize,
    max_bytes: u64,
) -> Result<(Vec<Frame>, Position)> {
    let (mut at, mut frames, mut bytes) = (from, Vec::new(), 0);
    let bases = segments(layout)?;
    while at.revision < head.revision && frames.len() < limit && bytes < max_bytes {
        // The newest segment that starts at or before what the reader has seen.
        let Some(base) = bases.iter().copied().rev().find(|base| *base <= at.revision) else {
            let oldest = bases.first().copied().unwrap_or(head.revision);
            return Err(Error::Compacted { requested: from.revision, oldest });
        };
        let offset = if base == at.segment { at.offset } else { 0 };
        at = Position { segment: base, offset, ..at };
        let path = layout.segment(base);
        let end = if base == head.segment { Some(head.length) } else { None };
        let mut reader = Reader::open(&path, offset, end)?;
        let before = at.revision;
        while frames.len() < limit && bytes < max_bytes {
            let Some(frame) = reader.next(&path)? else { break };
            at.offset += frame.len;
            if frame.revision > at.revision {
                at.revision = frame.revision;
                bytes += frame.len;
                frames.push(frame);
            }
        }
        if at.revision == before && at.revision < head.revision {
            return Err(Error::corrupt(
                crate::BACKEND,
                format!(
                    "{} is damaged behind byte {}; objects are not affected, but a watch cannot go \
                     on across it: list again and watch from there",
                    path.display(),
                    at.offset
                ),
            ));
        }
    }
    Ok((frames, at))
}

/// Appends frames behind the head and flushes them, together with temp files that wait for it. On
/// failure nothing of them remains, or the outcome is unknown.
pub(crate) fn append(
    layout: &Layout,
    disk: &Disk,
    head: &Head,
    bytes: &[u8],
    temps: &[Temp],
) -> Result<()> {
    let path = layout.segment(head.segment);
    let file = OpenOptions::new().write(true).open(&path);
    let file = file.map_err(|error| failed("open", &path, &error))?;
    let mut files: Vec<_> = temps.iter().map(|temp| (temp.path.as_path(), &temp.file)).collect();
    files.push((&path, &file));
    let appended = disk.write_at(&path, &file, bytes, head.length);
    let Err(error) = appended.and_then(|()| disk.flush(&files)) else { return Ok(()) };
    // Nothing has been put in place yet and nobody else is here: it can be taken back.
    match disk.truncate(&path, &file, head.length) {
        Ok(()) => Err(error),
        Err(second) => Err(Error::unknown(
            crate::BACKEND,
            format!("{error}; and taking it back failed as well: {second}"),
        )),
    }
}

/// Begins the first or a next segment, behind the revision of the head given.
pub(crate) fn begin(layout: &Layout, disk: &Disk, head: &mut Head, at_ms: i64) -> Result<()> {
    let mut frames = Frames::new(at_ms);
    frames.mark(head.revision)?;
    disk.replace(&layout.segment(head.revision), &frames.bytes)?;
    head.segment = head.revision;
    head.length = frames.bytes.len() as u64;
    head.segment_at_ms = at_ms;
    Ok(())
}

/// Whether it is time for a new segment. One without a change in it is never left.
pub(crate) fn is_due(head: &Head, limits: HistoryLimits, now_ms: i64) -> bool {
    let age = now_ms.saturating_sub(head.segment_at_ms);
    let old = age > i64::try_from(limits.keep.as_millis() / 4).unwrap_or(i64::MAX);
    head.revision > head.segment && (old || head.length >= limits.segment_bytes)
}

/// Forgets segments that are too old or too many. The newest stays.
pub(crate) fn compact(
    layout: &Layout,
    disk: &Disk,
    limits: HistoryLimits,
    now_ms: i64,
) -> Result<()> {
    let bases = segments(layout)?;
    let keep_from =
        now_ms.saturating_sub(i64::try_from(limits.keep.as_millis()).unwrap_or(i64::MAX));
    let size = |base: u64| std::fs::metadata(layout.segment(base)).map_or(0, |meta| meta.len());
    let mut total: u64 = bases.iter().map(|base| size(*base)).sum();
    let mut removed = false;
    for pair in bases.windows(2) {
        // Everything in a segment is older than the beginning of the next.
        let next = layout.segment(pair[1]);
        let begun = Reader::open(&next, 0, None)?.next(&next)?.map_or(i64::MAX, |mark| mark.at_ms);
        if begun >= keep_from && total <= limits.bytes {
            break;
        }
        total = total.saturating_sub(size(pair[0]));
        removed |= disk.remove(&layout.segment(pair[0]))?;
    }
    if removed {
        disk.sync_folders(&[&layout.history()])?;
    }
    Ok(())
}
