//! What history says: one frame for each revision, with everything needed to do it again.
//!
//! A frame is a line of JSON (revision, instant, what happened to each object) followed by the
//! objects themselves, each exactly as in its canonical file. One checksum covers all of it, so a
//! frame that was torn by a crash is no frame.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::record::{self, FORMAT, Sealed, Stored};
use tenure::backend::decide::{Change, LastWords, Row, Step};
use tenure::store::{Batch, Cause, Event};
use tenure::{Object, Result};

/// A frame's line is far shorter; anything longer is not one.
const LINE_BYTES: u64 = 4 * 1024 * 1024;

/// What happened to one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    Put,
    Deleted,
    Expired,
    /// Only its life was prolonged; watchers are not told.
    Touched,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    op: Op,
    /// The payload was left out: a commit that deletes many large objects does not write them all once
    /// more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    bare: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    tenure: u32,
    revision: u64,
    at_ms: i64,
    entries: Vec<Entry>,
    body_bytes: usize,
}

/// One frame, read.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The revision its changes share; the one before if it has none that count.
    pub(crate) revision: u64,
    /// The store's instant at which it was written.
    pub(crate) at_ms: i64,
    pub(crate) changes: Vec<(Op, Stored)>,
    bare: Vec<bool>,
    /// Bytes it occupies.
    pub(crate) len: u64,
}

impl Frame {
    /// What watchers are told; `None` if there is nothing to tell.
    pub(crate) fn batch(&self) -> Option<Arc<Batch>> {
        let mut events = Vec::with_capacity(self.changes.len());
        for ((op, stored), bare) in self.changes.iter().zip(&self.bare) {
            let object = &stored.row.object;
            let delete = |cause| Event::Delete {
                key: object.key.clone(),
                cause,
                last: (!bare).then(|| Arc::clone(object)),
            };
            match op {
                Op::Put => events.push(Event::Put(Arc::clone(object))),
                Op::Deleted => events.push(delete(Cause::Deleted)),
                Op::Expired => events.push(delete(Cause::Expired)),
                Op::Touched => {}
            }
        }
        (!events.is_empty()).then(|| Arc::new(Batch { revision: self.revision, events }))
    }
}

/// Writes frames one after another into one buffer.
pub(crate) struct Frames {
    pub(crate) bytes: Vec<u8>,
    at_ms: i64,
}

impl Frames {
    pub(crate) fn new(at_ms: i64) -> Self {
        Self { bytes: Vec::new(), at_ms }
    }

    /// A frame without changes, to begin a segment with.
    pub(crate) fn mark(&mut self, revision: u64) -> Result<()> {
        self.push(revision, Vec::new(), &[])
    }

    /// A step, and with it the lives prolonged by the same commit.
    pub(crate) fn step(&mut self, step: &Step, prolonged: &[Row]) -> Result<()> {
        let (mut entries, mut body) = (Vec::new(), Vec::new());
        let mut last_words = LastWords::default();
        for change in &step.changes {
            match change {
                Change::Put { row, .. } => {
                    entries.push(Entry { op: Op::Put, bare: false });
                    self.object(&mut body, row)?;
                }
                Change::Remove { row, cause } => {
                    let bare = !last_words.fits(&row.object);
                    let op = if *cause == Cause::Expired { Op::Expired } else { Op::Deleted };
                    entries.push(Entry { op, bare });
                    self.object(&mut body, &if bare { without_payload(row) } else { row.clone() })?;
                }
            }
        }
        self.touched(&mut entries, &mut body, prolonged)?;
        self.push(step.revision, entries, &body)
    }

    /// Lives prolonged by a commit that changed nothing else: under the revision that was there.
    pub(crate) fn prolonged(&mut self, revision: u64, rows: &[Row]) -> Result<()> {
        let (mut entries, mut body) = (Vec::new(), Vec::new());
        self.touched(&mut entries, &mut body, rows)?;
        self.push(revision, entries, &body)
    }

    fn touched(&self, entries: &mut Vec<Entry>, body: &mut Vec<u8>, rows: &[Row]) -> Result<()> {
        for row in rows {
            entries.push(Entry { op: Op::Touched, bare: false });
            self.object(body, row)?;
        }
        Ok(())
    }

    fn object(&self, body: &mut Vec<u8>, row: &Row) -> Result<()> {
        let stored = Stored { row: row.clone(), written_at_ms: self.at_ms };
        body.extend_from_slice(&record::encode(&stored)?);
        Ok(())
    }

    fn push(&mut self, revision: u64, entries: Vec<Entry>, body: &[u8]) -> Result<()> {
        let header =
            Header { tenure: FORMAT, revision, at_ms: self.at_ms, entries, body_bytes: body.len() };
        self.bytes.extend_from_slice(&record::seal(&header, body)?);
        self.bytes.extend_from_slice(body);
        self.bytes.push(b'\n');
        Ok(())
    }
}

fn without_payload(row: &Row) -> Row {
    let object = Object { payload: Bytes::new(), ..Object::clone(&row.object) };
    Row { object: Arc::new(object), expires_at_ms: row.expires_at_ms }
}

/// Reads the next frame; `None` at the end and where no whole frame follows.
pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Frame>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Ok(None);
    }
    let Some(sealed) = Sealed::<Header>::parse(&line) else { return Ok(None) };
    let body_bytes = sealed.header.body_bytes;
    // Read as far as there is something, so that a garbled length does not reserve memory.
    let mut body = Vec::new();
    from.take(body_bytes as u64 + 1).read_to_end(&mut body)?;
    if body.len() != body_bytes + 1 || body.pop() != Some(b'\n') {
        return Ok(None);
    }
    let Some(header) = sealed.open(&body) else { return Ok(None) };
    let mut rest = Bytes::from(body);
    let mut changes = Vec::with_capacity(header.entries.len());
    for entry in &header.entries {
        let Some((stored, behind)) = record::decode(&rest) else { return Ok(None) };
        changes.push((entry.op, stored));
        rest = behind;
    }
    Ok(Some(Frame {
        revision: header.revision,
        at_ms: header.at_ms,
        changes,
        bare: header.entries.iter().map(|entry| entry.bare).collect(),
        len: (line.len() + body_bytes + 2) as u64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::Key;

    fn row(id: &str, payload: usize) -> Row {
        let object = Object {
            key: Key::new("k", id),
            name: None,
            labels: tenure::Labels::new(),
            payload: vec![b'x'; payload].into(),
            version: 1,
            revision: 5,
            created_revision: 5,
            token: 5,
            created_at_ms: 1,
            updated_at_ms: 1,
            ttl: None,
            expires_in: None,
        };
        Row { object: Arc::new(object), expires_at_ms: Some(9) }
    }

    fn remove(id: &str, payload: usize) -> Change {
        Change::Remove { row: row(id, payload), cause: Cause::Expired }
    }

    #[test]
    fn frames_read_back_and_a_torn_one_is_none() {
        let put = Change::Put { row: row("a", 3), before: None };
        let step = Step { revision: 5, changes: vec![put, remove("b", 4)] };
        let mut frames = Frames::new(77);
        frames.mark(4).unwrap();
        frames.step(&step, &[row("c", 0)]).unwrap();
        let whole = frames.bytes;
        let mut from = whole.as_slice();
        let mark = read(&mut from).unwrap().unwrap();
        assert!(mark.revision == 4 && mark.batch().is_none());
        let frame = read(&mut from).unwrap().unwrap();
        assert_eq!(frame.batch().unwrap(), step.batch());
        assert_eq!((frame.at_ms, frame.changes.len(), frame.changes[2].0), (77, 3, Op::Touched));
        assert_eq!(mark.len + frame.len, whole.len() as u64);
        assert!(read(&mut from).unwrap().is_none());
        for cut in 0..usize::try_from(frame.len).unwrap() {
            let start = usize::try_from(mark.len).unwrap();
            assert!(read(&mut &whole[start..start + cut]).unwrap().is_none(), "{cut}");
        }
    }

    #[test]
    fn many_large_removals_do_not_make_a_giant_frame() {
        let changes = (0..8).map(|n| remove(&n.to_string(), 1024 * 1024)).collect();
        let mut frames = Frames::new(0);
        frames.step(&Step { revision: 1, changes }, &[]).unwrap();
        assert!(frames.bytes.len() < 5 * 1024 * 1024);
        let batch = read(&mut frames.bytes.as_slice()).unwrap().unwrap().batch().unwrap();
        let told = batch.events.iter().filter(|e| matches!(e, Event::Delete { last: Some(_), .. }));
        assert_eq!((batch.events.len(), told.count()), (8, 4));
    }
}
