//! One group of commits, from decision to disk.
//!
//! Under the exclusive lock: decide each commit on what the ones before it left; write all temp files;
//! append the frames to history; flush both — *that* is the moment all of it has happened; put the
//! files in place and flush their folders; note it in the head. A crash before that
//! moment leaves the old values and some temp files. After one behind it, the next process finishes the
//! group.

use std::sync::Arc;

use crate::apply::stage;
use crate::frame::Frames;
use crate::head::Head;
use crate::history::{self, Position};
use crate::inner::Inner;
use crate::overlay::Overlay;
use crate::writer::GROUP_BYTES;
use tenure::backend::decide::{Row, View, decide, decide_sweep};
use tenure::store::{Batch, Commit, Committed};
use tenure::{Error, Result};

/// What a group did.
pub(crate) struct Group {
    /// One answer for each commit that it took in, from the first on.
    pub(crate) answers: Vec<Result<Committed>>,
    /// What there is to tell.
    pub(crate) news: Option<News>,
    /// Expired objects found on the way.
    pub(crate) swept: usize,
}

impl Group {
    fn failed(commits: usize, error: &Error) -> Self {
        Self { answers: vec![Err(error.clone()); commits], news: None, swept: 0 }
    }
}

/// What watchers are told of a group.
pub(crate) struct News {
    /// The revision before it.
    pub(crate) after: u64,
    pub(crate) batches: Vec<Arc<Batch>>,
    /// The end of history behind it.
    pub(crate) end: Position,
}

/// A group while it is being decided.
struct Draft<'a> {
    overlay: Overlay<'a>,
    frames: Frames,
    batches: Vec<Arc<Batch>>,
    revision: u64,
}

impl Inner {
    /// Commits as many of these as go together, at least one, each with its own outcome, and removes some
    /// of what expired.
    pub(crate) fn commit_group(&self, commits: &[Commit], sweep: usize) -> Group {
        let session = match self.files.exclusive() {
            Ok(session) => session,
            Err(error) => return Group::failed(commits.len(), &error),
        };
        let mut head = session.head.clone();
        match self.try_group(&mut head, commits, sweep) {
            Ok(group) => group,
            // Nothing was applied. One that is too large for the disk shall not fail the others, and
            // what was decided on the strength of the others has to be decided again.
            Err(error) if commits.len() > 1 && !error.is_unknown() => {
                self.one_by_one(&mut head, commits)
            }
            Err(error) => Group::failed(commits.len(), &error),
        }
    }

    fn one_by_one(&self, head: &mut Head, commits: &[Commit]) -> Group {
        let mut all = Group::failed(0, &Error::unavailable(crate::BACKEND, ""));
        let mut unsure = false;
        for commit in commits {
            let result = match unsure {
                false => self.try_group(head, std::slice::from_ref(commit), 0),
                true => Err(Error::unavailable(
                    crate::BACKEND,
                    "not attempted: the outcome of a commit before it is unknown",
                )),
            };
            match result {
                Ok(group) => {
                    all.answers.extend(group.answers);
                    all.news = match (all.news.take(), group.news) {
                        (Some(mut first), Some(second)) => {
                            first.batches.extend(second.batches);
                            Some(News { end: second.end, ..first })
                        }
                        (first, second) => first.or(second),
                    };
                }
                Err(error) => {
                    unsure |= error.is_unknown();
                    all.answers.push(Err(error));
                }
            }
        }
        all
    }

    /// The head given is that of the store, which is locked; it moves on.
    fn try_group(&self, head: &mut Head, commits: &[Commit], sweep: usize) -> Result<Group> {
        // Read under the lock: an instant taken earlier could lie before a commit that came first.
        let at_ms = self.time.now_ms().max(head.at_ms);
        self.rotate(head, at_ms)?;
        let mut draft = Draft {
            overlay: Overlay::new(&self.files),
            frames: Frames::new(at_ms),
            batches: Vec::new(),
            revision: head.revision,
        };
        let mut answers = Vec::with_capacity(commits.len());
        for commit in commits {
            answers.push(draft.decide(self, commit, at_ms)?);
            // A delete is a small request, whatever it is that goes.
            if draft.frames.bytes.len() >= GROUP_BYTES {
                break;
            }
        }
        let swept = draft.sweep(self, at_ms, sweep)?;
        if draft.frames.bytes.is_empty() {
            return Ok(Group { answers, news: None, swept });
        }
        let after = head.revision;
        self.write(head, &draft, at_ms)?;
        self.note_expiries(&draft.overlay);
        let end = Position { revision: head.revision, segment: head.segment, offset: head.length };
        let news = News { after, batches: draft.batches, end };
        Ok(Group { answers, news: Some(news), swept })
    }

    fn write(&self, head: &mut Head, draft: &Draft<'_>, at_ms: i64) -> Result<()> {
        let (layout, disk) = (&self.files.layout, &self.files.disk);
        let mut staged = stage(&self.files, &draft.overlay, false)?;
        let frames = &draft.frames.bytes;
        if let Err(error) = history::append(layout, disk, head, frames, &staged.unflushed) {
            staged.discard();
            return Err(error);
        }
        staged.unflushed.clear();
        // From here on it has happened, whatever goes wrong.
        let finish = || {
            staged.publish()?;
            head.revision = draft.revision;
            head.length += draft.frames.bytes.len() as u64;
            head.at_ms = at_ms;
            self.files.write_head(head)
        };
        finish().map_err(|error| {
            Error::unknown(
                crate::BACKEND,
                format!("committed to history, but not yet put in place: {error}"),
            )
        })
    }

    /// Begins a new segment of history when it is time, and forgets old ones.
    fn rotate(&self, head: &mut Head, at_ms: i64) -> Result<()> {
        if !history::is_due(head, self.history, at_ms) {
            return Ok(());
        }
        let (layout, disk) = (&self.files.layout, &self.files.disk);
        // Until it is done the head belongs to no boot: the next process after a crash or a failure
        // looks at the segments, and no frame ends up in the old one though a new one exists.
        self.files.write_head(&Head { boot_id: String::new(), ..head.clone() })?;
        history::begin(layout, disk, head, at_ms)?;
        self.files.write_head(head)?;
        if let Err(error) = history::compact(layout, disk, self.history, at_ms) {
            tracing::warn!(%error, "history was not shortened");
        }
        Ok(())
    }

    fn note_expiries(&self, overlay: &Overlay<'_>) {
        let mut expiries = self.expiries();
        for (key, slot) in overlay.rows.iter().filter(|(_, slot)| slot.changed) {
            expiries.set(key, slot.after.as_ref().and_then(|row| row.expires_at_ms));
        }
    }
}

impl Draft<'_> {
    /// The inner error is this commit's alone, a file that it needs and that cannot be read
    /// included; the outer one concerns the group.
    fn decide(&mut self, inner: &Inner, commit: &Commit, at_ms: i64) -> Result<Result<Committed>> {
        let now = inner.instant(at_ms);
        let decision = match decide(&mut self.overlay, commit, now, self.revision) {
            Ok(decision) => decision,
            Err(error) => return Ok(Err(error)),
        };
        let mut prolonged: Vec<Row> = Vec::new();
        for (key, expires_at_ms) in &decision.refreshed {
            prolonged.extend(self.overlay.prolong(key, *expires_at_ms, at_ms)?);
        }
        let last = decision.steps.len().checked_sub(1);
        for (n, step) in decision.steps.iter().enumerate() {
            self.overlay.apply(step, at_ms)?;
            self.frames.step(step, if Some(n) == last { &prolonged } else { &[] })?;
            self.batches.push(step.batch());
            self.revision = step.revision;
        }
        if last.is_none() && !prolonged.is_empty() {
            self.frames.prolonged(self.revision, &prolonged)?;
        }
        Ok(Ok(decision.committed))
    }

    /// Removes objects that expired, under a revision of their own. How many were looked at.
    fn sweep(&mut self, inner: &Inner, at_ms: i64, limit: usize) -> Result<usize> {
        let due = inner.expiries().due(at_ms, limit);
        let mut rows = Vec::new();
        for key in &due {
            match self.overlay.row(key) {
                Ok(row) => {
                    // Somebody else may have prolonged or removed it: the hint follows.
                    inner.expiries().set(key, row.as_ref().and_then(|row| row.expires_at_ms));
                    rows.extend(row);
                }
                Err(error) => {
                    tracing::warn!(%key, %error, "an expired object cannot be removed");
                    inner.expiries().set(key, None);
                }
            }
        }
        if let Some(step) = decide_sweep(rows, inner.instant(at_ms), self.revision) {
            self.overlay.apply(&step, at_ms)?;
            self.frames.step(&step, &[])?;
            self.batches.push(step.batch());
            self.revision = step.revision;
        }
        Ok(due.len())
    }
}
