//! What the handles, the workers and the background tasks of one store share.

use std::sync::Arc;

use tenure::backend::group_queue::GroupQueue;
use tenure::store::Committed;
use tenure::{Error, Result};
use tokio::sync::watch;

use crate::BACKEND;
use crate::commit::committer::Work;
use crate::commit::user_sql::UserSessions;
use crate::connect::session::Connector;
use crate::read::Readers;
use crate::time::Timekeeper;
use crate::touch::TouchQueue;
use crate::watch::listen::Names;
use crate::watch::pump::Pump;

pub(crate) struct Shared {
    pub(crate) connector: Arc<Connector>,
    /// What listening sessions of this schema are called, and what they listen to.
    pub(crate) names: Names,
    pub(crate) time: Timekeeper,
    pub(crate) commits: GroupQueue<Work, Result<Committed>>,
    pub(crate) touches: TouchQueue,
    pub(crate) user_sessions: UserSessions,
    pub(crate) readers: Readers,
    pub(crate) pump: Pump,
    /// True once background work should end.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Shared {
    /// Resolves when background work should end.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this struct, so this ends only by the value.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if *self.stopping.borrow() {
            return Err(closed());
        }
        Ok(())
    }
}

pub(crate) fn closed() -> Error {
    Error::unavailable(BACKEND, "the store is closed")
}
