//! The lowest writer level that a store accepts, kept under a key of its own.
//!
//! Every transaction compares that key's revision, so that a program too old for the store writes nothing
//! from the moment on that the level is raised.

use std::sync::atomic::Ordering;

use tenure::backend::{WRITER_LEVEL, check_writer};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::endpoints::Deadline;
use crate::inner::Inner;
use crate::messages::{KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse, path};
use crate::txn::{put, unchanged};

/// How often raising the writer level may find that somebody else has changed it.
const RAISES: u32 = 10;

impl Inner {
    /// Refuses to go on if the store demands a newer program, and raises its level to that of this one.
    pub(crate) async fn check_level(&self) -> Result<()> {
        let deadline = self.endpoints.deadline();
        for _ in 0..RAISES {
            let key = self.keys.writer();
            let question = RangeRequest { key, range_end: vec![], limit: 1, count_only: false };
            let answer: RangeResponse =
                self.endpoints.read(path::RANGE, question, deadline).await?;
            let found = answer.kvs.first();
            let level = found.map_or(Ok(0), read_level)?;
            let modified = found.map_or(0, |found| found.mod_revision);
            self.writer.store(modified, Ordering::Release);
            if level >= WRITER_LEVEL || self.raise_level(modified, deadline).await? {
                return Ok(());
            }
        }
        Err(Error::unavailable(BACKEND, "others change the writer level all the time"))
    }

    /// Whether the level was raised, or need not be; not if it has changed meanwhile.
    async fn raise_level(&self, modified: i64, deadline: Deadline) -> Result<bool> {
        let raise = TxnRequest {
            compare: vec![unchanged(self.keys.writer(), modified)],
            success: vec![put(self.keys.writer(), WRITER_LEVEL.to_string().into_bytes(), 0)],
            ..TxnRequest::default()
        };
        // To ask for it twice does no harm, so it may be asked for like a read.
        match self.endpoints.read::<_, TxnResponse>(path::TXN, raise, deadline).await {
            Ok(answer) if answer.succeeded => {
                let revision = answer.header.map_or(0, |header| header.revision);
                self.writer.store(revision, Ordering::Release);
                Ok(true)
            }
            Ok(_) => Ok(false),
            // A program that may not write harms nobody, and neither does a store that is full.
            Err(error @ (Error::Refused { .. } | Error::Full { .. })) => {
                tracing::debug!(%error, "the writer level stays as it is");
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// The writer level that the store demands. Refuses to go on if that takes a newer program.
pub(crate) fn read_level(level: &KeyValue) -> Result<u32> {
    let text = std::str::from_utf8(&level.value).ok();
    let level = text.and_then(|text| text.trim().parse().ok()).unwrap_or(u32::MAX);
    check_writer(BACKEND, level).map(|()| level)
}
