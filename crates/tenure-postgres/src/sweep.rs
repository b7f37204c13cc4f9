//! Tidying up: expired objects become deletes that watchers hear of, and old history goes.
//!
//! `tenure_meta.next_expiry_ms` is a lower bound of every expiry, which everyone who writes an object keeps. So
//! this task reads one row a second. Only when something is due, one process claims the sweep and looks
//! through the objects with a time to live. Several processes at it are harmless.

use std::sync::Arc;
use std::time::Duration;

use tenure::random::{SystemRandom, below};
use tenure::{Error, Key, Result};
use tokio_postgres::types::ToSql;

use crate::commit::committer::Work;
use crate::connect::session::{Role, Session};
use crate::error::Failure;
use crate::read::Meta;
use crate::row::signed;
use crate::shared::Shared;

/// Removed in one step.
const AT_ONCE: usize = 500;
/// Payloads of one step: watchers get them all at once.
const AT_ONCE_BYTES: i64 = 4 * 1024 * 1024;
/// If the process that claimed a sweep dies over it, another one takes it up after this.
const CLAIM_MS: i64 = 5_000;
/// Groups of commits whose events are removed in one statement.
const COMPACT_AT_ONCE: i64 = 2_000;
/// Looks at old history happen on every so manieth turn.
const COMPACT_EVERY: u64 = 5;

pub(crate) struct Sweeper {
    shared: Arc<Shared>,
    session: Option<Session>,
    turn: u64,
}

impl Sweeper {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, session: None, turn: 0 }
    }

    /// Works until the store is closed.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let pause = match self.tidy().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::debug!(%error, "the sweep waits for the server");
                    self.session = None;
                    shared.connector.options.sweep_interval
                }
            };
            tokio::select! {
                () = shared.time.sleep(pause) => {}
                () = shared.stopped() => return,
            }
        }
    }

    /// Does what is due and says when to come back.
    async fn tidy(&mut self) -> Result<Duration> {
        let interval = self.shared.connector.options.sweep_interval;
        let meta = self.shared.put_clock_right().await?;
        self.turn += 1;
        if self.turn % COMPACT_EVERY == 1 {
            self.compact(meta).await?;
        }
        let left = meta.next_expiry_ms.saturating_sub(meta.reading.store_ms);
        if left <= 0 {
            self.sweep(meta).await?;
            return Ok(Duration::ZERO);
        }
        // Spread, so that processes started together do not stay in step; but an expiry known in
        // advance is met.
        let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        let spread = Duration::from_micros(micros - micros / 5 + below(&SystemRandom, micros / 5));
        Ok(spread.min(Duration::from_millis(u64::try_from(left).unwrap_or(0) + 1)))
    }

    async fn sweep(&mut self, meta: Meta) -> Result<()> {
        let store_ms = meta.reading.store_ms;
        // Set forth before looking: what commits from here on lowers it again, to an even number.
        let claim = "update tenure_meta set next_expiry_ms = $1 where next_expiry_ms = $2";
        let claimed_ms = store_ms.saturating_add(CLAIM_MS) | 1;
        if self.execute(claim, &[&claimed_ms, &meta.next_expiry_ms]).await? == 0 {
            // Somebody else was faster; look again shortly.
            self.shared.time.sleep(Duration::from_millis(50)).await;
            return Ok(());
        }
        let soonest = "select object_type, id, expires_at_ms, octet_length(payload)::bigint \
                       from objects where ttl_ms is not null order by expires_at_ms limit $1";
        let limit = AT_ONCE as i64 + 1;
        let (_, rows) = self.shared.read(soonest, &[&limit]).await?;
        let (mut keys, mut bytes, mut next_expiry_ms) = (Vec::new(), 0, i64::MAX);
        for row in rows {
            let expires_at_ms: i64 = row.get(2);
            let due = expires_at_ms <= store_ms;
            if !due || keys.len() == AT_ONCE || (bytes > AT_ONCE_BYTES && !keys.is_empty()) {
                // The first that stays says when to come back.
                next_expiry_ms = expires_at_ms;
                break;
            }
            bytes += row.get::<_, i64>(3);
            keys.push(Key::new(row.get::<_, &str>(0), row.get::<_, &str>(1)));
        }
        self.shared.commits.ask(Work::Sweep { keys, claimed_ms, next_expiry_ms }, 0).await??;
        Ok(())
    }

    async fn compact(&mut self, meta: Meta) -> Result<()> {
        let options = &self.shared.connector.options;
        let age = i64::try_from(options.history.as_millis()).unwrap_or(i64::MAX);
        let older_than = meta.reading.store_ms.saturating_sub(age);
        let below = signed(meta.revision.saturating_sub(options.history_revisions));
        loop {
            let oldest = "select max(last_revision), count(*) from ( \
                            select last_revision, at_ms from tenure_events \
                            order by last_revision limit $1) t \
                          where at_ms < $2 or last_revision <= $3";
            let (_, rows) =
                self.shared.read(oldest, &[&COMPACT_AT_ONCE, &older_than, &below]).await?;
            let Some(row) = rows.first() else { return Ok(()) };
            let Some(revision) = row.get::<_, Option<i64>>(0) else { return Ok(()) };
            // Readers are told first, so that none takes a hole for the beginning.
            let tell =
                "update tenure_meta set compacted_revision = $1 where compacted_revision < $1";
            self.execute(tell, &[&revision]).await?;
            self.execute("delete from tenure_events where last_revision <= $1", &[&revision])
                .await?;
            if row.get::<_, i64>(1) < COMPACT_AT_ONCE {
                return Ok(());
            }
        }
    }

    async fn execute(&mut self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64> {
        let patience = self.shared.connector.options.reply_timeout;
        let session = match self.session.take() {
            Some(session) if !session.client.is_closed() => session,
            _ => self.shared.connector.open(Role::Chores).await?,
        };
        let done = tokio::time::timeout(patience, session.client.execute(sql, parameters)).await;
        let changed = done
            .map_err(|_| Failure::timeout("a chore", patience))
            .and_then(|done| done.map_err(Failure::from))
            .map_err(|failure| -> Error { failure.error })?;
        self.session = Some(session);
        Ok(changed)
    }
}
