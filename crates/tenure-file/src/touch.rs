//! Prolonging lives: the canonical file is replaced by one with a later end, nothing else happens.
//!
//! No revision is drawn, so the store lock is only shared: renewals run beside readers and beside
//! each other, and the key locks keep two renewals of one object apart.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::disk::Temp;
use crate::inner::Inner;
use crate::record::{Stored, encode};
use tenure::backend::decide::decide_touch;
use tenure::store::{Touch, Touched};
use tenure::{Error, Result};

/// Objects per hold of the locks, so that a commit need not wait for thousands.
const AT_ONCE: usize = 64;

impl Inner {
    pub(crate) fn touch(&self, touches: &[Touch]) -> Result<Vec<Result<Touched>>> {
        let mut results = Vec::with_capacity(touches.len());
        for some in touches.chunks(AT_ONCE) {
            match self.touch_some(some) {
                Ok(done) => results.extend(done),
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => results.extend(some.iter().map(|_| Err(error.clone()))),
            }
        }
        Ok(results)
    }

    fn touch_some(&self, touches: &[Touch]) -> Result<Vec<Result<Touched>>> {
        let _no_commit = self.files.shared_to_write()?;
        let _alone = self.files.locks.keys(touches.iter().map(|touch| &touch.key))?;
        let now_ms = self.time.now_ms();
        let drafts: Vec<_> = touches.iter().map(|touch| self.draft(touch, now_ms)).collect();
        let temps = drafts.iter().flatten().map(|d| (d.temp.path.as_path(), &d.temp.file));
        let flushed = self.files.disk.flush(&temps.collect::<Vec<_>>());
        let mut folders = BTreeSet::new();
        let results = drafts.iter().map(|draft| {
            let draft = draft.as_ref().map_err(Error::clone)?;
            self.place(draft, flushed.clone())?;
            folders.extend(draft.path.parent());
            Ok(draft.touched)
        });
        let mut results: Vec<Result<Touched>> = results.collect();
        let synced = self.files.disk.sync_folders(&folders.into_iter().collect::<Vec<_>>());
        if let Err(error) = synced {
            let unsure =
                Error::unknown(crate::BACKEND, format!("touched, but not durably: {error}"));
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(unsure.clone());
            }
        }
        self.note_touches(touches, &drafts, &results, now_ms);
        Ok(results)
    }

    /// Decides a touch and writes what the file shall be.
    fn draft(&self, touch: &Touch, now_ms: i64) -> Result<Draft> {
        let stored = self.files.read_object(&touch.key)?;
        let row = stored.as_ref().map(|stored| &stored.row);
        let (expires_at_ms, touched) = decide_touch(touch, row, self.instant(now_ms))?;
        let Some(mut stored) = stored else {
            return Err(Error::NotFound { key: touch.key.clone() });
        };
        stored.row.expires_at_ms = Some(expires_at_ms);
        let bytes = encode(&Stored { written_at_ms: now_ms, ..stored })?;
        let path = self.files.layout.object(&touch.key);
        let temp = self.files.disk.write_temp(path.parent().unwrap_or(&path), &bytes)?;
        Ok(Draft { touched, expires_at_ms, temp, path })
    }

    fn place(&self, draft: &Draft, flushed: Result<()>) -> Result<()> {
        let disk = &self.files.disk;
        flushed
            .and_then(|()| disk.rename(&draft.temp.path, &draft.path))
            .inspect_err(|_| disk.discard(&draft.temp.path))
    }

    fn note_touches(
        &self,
        touches: &[Touch],
        drafts: &[Result<Draft>],
        results: &[Result<Touched>],
        now_ms: i64,
    ) {
        let mut expiries = self.expiries();
        let mut any = false;
        for ((touch, draft), result) in touches.iter().zip(drafts).zip(results) {
            if let (Ok(draft), Ok(_)) = (draft, result) {
                expiries.set(&touch.key, Some(draft.expires_at_ms));
                any = true;
            }
        }
        drop(expiries);
        if any && let Err(error) = self.note_time(now_ms) {
            tracing::warn!(%error, "the time was not noted: after a reboot lives may be longer");
        }
    }
}

/// A touch that is decided and written, but not in place.
struct Draft {
    touched: Touched,
    expires_at_ms: i64,
    temp: Temp,
    path: PathBuf,
}
