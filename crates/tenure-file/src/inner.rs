//! What all operations share: the files, the clock and the hints for the sweep. Everything here
//! blocks, so it runs on threads made for that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::expiries::Expiries;
use crate::files::Files;
use crate::head::{read_anchor, write_anchor};
use crate::history::HistoryLimits;
use tenure::Result;
use tenure::backend::decide::Now;
use tenure::backend::hosttime::{Anchor, HostTime};

/// A touch writes the time down when the last note of it is older than this. After a reboot a life
/// may be longer by so much, never shorter.
const CLOCK_NOTE_MS: i64 = 1000;

pub(crate) struct Inner {
    pub(crate) files: Files,
    pub(crate) time: HostTime,
    pub(crate) history: HistoryLimits,
    expiries: Mutex<Expiries>,
    /// The latest instant this process knows to be on disk.
    noted_ms: Mutex<i64>,
    /// The ids of the kind listed last, for its next page.
    listed: Mutex<Option<Listed>>,
}

struct Listed {
    kind: String,
    revision: u64,
    ids: Arc<Vec<String>>,
}

impl Inner {
    pub(crate) fn new(files: Files, time: HostTime, history: HistoryLimits) -> Self {
        let noted_ms = Mutex::new(i64::MIN);
        Self {
            files,
            time,
            history,
            expiries: Mutex::default(),
            noted_ms,
            listed: Mutex::default(),
        }
    }

    pub(crate) fn expiries(&self) -> MutexGuard<'_, Expiries> {
        self.expiries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn instant(&self, store_ms: i64) -> Now {
        Now { store_ms, wall_ms: self.time.clock().wall_ms() }
    }

    /// The ids of a kind in order, at the revision of a session that is open. Ids come and go only
    /// with a revision, so the pages of a list read the folder once.
    pub(crate) fn ids(&self, kind: &str, revision: u64) -> Result<Arc<Vec<String>>> {
        let listed = || self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*listed()
            && known.kind == kind
            && known.revision == revision
        {
            return Ok(Arc::clone(&known.ids));
        }
        let ids = Arc::new(self.files.ids(kind)?);
        *listed() = Some(Listed { kind: kind.to_owned(), revision, ids: Arc::clone(&ids) });
        Ok(ids)
    }

    /// Writes the time down for the next boot, unless that was done a moment ago. Commits need not:
    /// history says when they were.
    pub(crate) fn note_time(&self, now_ms: i64) -> Result<()> {
        {
            let mut noted = self.noted_ms.lock().unwrap_or_else(PoisonError::into_inner);
            if now_ms.saturating_sub(*noted) < CLOCK_NOTE_MS {
                return Ok(());
            }
            *noted = now_ms;
        }
        let _alone = self.files.locks.clock()?;
        let last_ms = read_anchor(&self.files.layout)?.map_or(now_ms, |a| a.last_ms.max(now_ms));
        let anchor = Anchor { last_ms, ..self.time.anchor(now_ms) };
        write_anchor(&self.files.layout, &self.files.disk, anchor)
    }
}
