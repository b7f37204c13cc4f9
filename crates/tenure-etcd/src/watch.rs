//! Watches: one stream from the server for each, opened again wherever it broke off.
//!
//! etcd tells every change of a range in order from any revision it still keeps, so a watch needs
//! nothing but the last revision it has told. Changes of one transaction arrive under one revision
//! and are told as one batch. A watch that nobody reads costs no memory beyond its stream's window:
//! the server holds back, and reads on from its history later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tenure::backend::Progress;
use tenure::store::{Batch, Cause, Event, Watch, WatchRequest};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::connection::Answers;
use crate::connection::Connection;
use crate::error::CallError;
use crate::inner::Inner;
use crate::keys::end_of;
use crate::messages::{self, DELETE, WatchCreateRequest, WatchResponse, path};
use crate::stored::{Stored, number};

/// Between attempts to open a stream again.
const PAUSE: Duration = Duration::from_millis(100);

/// Denials in a row that are taken for an expired login.
const DENIALS: u32 = 2;

/// Opens a watch.
pub(crate) async fn watch(inner: &Arc<Inner>, request: &WatchRequest) -> Result<Watch> {
    let head = inner.head().await?;
    let start = request.after.unwrap_or(head);
    if start > head {
        return Err(Error::invalid(
            format!("watch after revision {start}"),
            format!("the store is at revision {head}; it may have been restored from a backup"),
        ));
    }
    let progress = Progress::new(start);
    let cursor = Cursor {
        inner: Arc::clone(inner),
        request: request.clone(),
        after: start,
        progress: progress.clone(),
        open: None,
        parts: Vec::new(),
        ready: VecDeque::new(),
        denied: 0,
        ended: false,
    };
    let stream = stream::unfold(cursor, |mut cursor| async move {
        if cursor.ended {
            return None;
        }
        let item = cursor.next().await;
        cursor.ended = item.is_err();
        Some((item, cursor))
    });
    Ok(Watch::with_progress(start, progress, stream.boxed()))
}

struct Cursor {
    inner: Arc<Inner>,
    request: WatchRequest,
    /// Everything up to here has been told, or is ready to be.
    after: u64,
    progress: Progress,
    open: Option<(Arc<Connection>, Answers<WatchResponse>)>,
    /// What has arrived of a change that comes in parts.
    parts: Vec<messages::Event>,
    ready: VecDeque<Arc<Batch>>,
    /// How often in a row the server would not let us watch.
    denied: u32,
    ended: bool,
}

impl Cursor {
    async fn next(&mut self) -> Result<Arc<Batch>> {
        let endpoints = Arc::clone(&self.inner.watch_endpoints);
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            self.progress.reach(self.after);
            let step = self.step();
            tokio::select! {
                biased;
                () = endpoints.closed() => {
                    return Err(Error::unavailable(BACKEND, "the store was closed"));
                }
                stepped = step => stepped?,
            }
        }
    }

    /// Opens the stream, or takes one message from it.
    async fn step(&mut self) -> Result<()> {
        let Some((_, stream)) = &mut self.open else { return self.reopen().await };
        match stream.next().await {
            Some(Ok(message)) => self.receive(message).await,
            None => self.retry_later("the server ended it").await,
            Some(Err(error)) => self.retry_later(&error.into_read_error().to_string()).await,
        }
    }

    /// A watch outlives an outage: it waits until a server is there again.
    async fn reopen(&mut self) -> Result<()> {
        let endpoints = &self.inner.watch_endpoints;
        let connection = match endpoints.connection(endpoints.deadline()).await {
            Ok(connection) => connection,
            Err(Error::Unavailable { reason, .. }) => return self.retry_later(&reason).await,
            Err(error) => return Err(error),
        };
        let kind = self.request.kind.as_deref();
        let key =
            self.inner.keys.start(kind, if kind.is_some() { &self.request.prefix } else { "" });
        let create = WatchCreateRequest {
            range_end: end_of(&key),
            key,
            start_revision: i64::try_from(self.after + 1).unwrap_or(i64::MAX),
            // So that a watch of something quiet does not fall behind what is kept.
            progress_notify: true,
            prev_kv: true,
            fragment: true,
        };
        // The request stays open for as long as the answers are wanted.
        let asked = stream::iter([messages::WatchRequest { create: Some(create) }]);
        let questions = asked.chain(stream::pending());
        let opening = connection.stream(path::WATCH, questions);
        let attempt = endpoints.options.attempt;
        match tokio::time::timeout(attempt, opening).await {
            Ok(Ok(stream)) => self.open = Some((connection, stream)),
            Ok(Err(CallError::Final(error))) => return Err(error),
            _ => {
                endpoints.fail(&connection);
                return self.retry_later("it could not be opened").await;
            }
        }
        Ok(())
    }

    async fn retry_later(&mut self, why: &str) -> Result<()> {
        tracing::debug!(after = self.after, why, "watch broke off; opening it again");
        if let Some((connection, _)) = self.open.take() {
            self.inner.watch_endpoints.fail(&connection);
        }
        self.parts.clear();
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    async fn receive(&mut self, message: WatchResponse) -> Result<()> {
        if message.canceled {
            return self.canceled(&message).await;
        }
        self.denied = 0;
        let quiet = message.events.is_empty();
        self.parts.extend(message.events);
        if message.fragment {
            return Ok(());
        }
        self.make_batches()?;
        if quiet && !message.created {
            // Nothing of ours happened up to here.
            let head = number(message.header.map_or(0, |header| header.revision));
            self.after = self.after.max(head);
        }
        Ok(())
    }

    async fn canceled(&mut self, message: &WatchResponse) -> Result<()> {
        if message.compact_revision > 0 {
            // A watch may start at the revision of the compaction itself.
            let oldest = number(message.compact_revision).saturating_sub(1);
            return Err(Error::Compacted { requested: self.after, oldest });
        }
        let reason = &message.cancel_reason;
        if reason.contains("permission denied") {
            self.denied += 1;
        }
        // A login that has expired is denied in the same words, and a new connection logs in anew.
        if self.denied > DENIALS {
            return Err(Error::Refused { backend: BACKEND, reason: reason.clone() });
        }
        self.retry_later(reason).await
    }

    /// Makes batches of what has arrived, one for each revision.
    fn make_batches(&mut self) -> Result<()> {
        let mut events: Vec<(u64, Event)> = Vec::new();
        for event in std::mem::take(&mut self.parts) {
            let Some(kv) = &event.kv else { continue };
            let revision = number(kv.mod_revision);
            // Told before a stream broke off.
            if revision <= self.after {
                continue;
            }
            events.extend(self.event(&event)?.map(|event| (revision, event)));
        }
        for (revision, event) in events {
            match self.ready.back_mut().filter(|batch| batch.revision == revision) {
                Some(batch) => Arc::make_mut(batch).events.push(event),
                None => self.ready.push_back(Arc::new(Batch { revision, events: vec![event] })),
            }
            self.after = revision;
        }
        Ok(())
    }

    fn event(&self, event: &messages::Event) -> Result<Option<Event>> {
        let Some(kv) = &event.kv else { return Ok(None) };
        let Some(key) = self.inner.keys.parse(&kv.key) else { return Ok(None) };
        if !self.request.wants(&key) {
            return Ok(None);
        }
        if event.kind != DELETE {
            let stored = Stored::read(key, kv)?;
            return Ok((!stored.is_touch()).then_some(Event::Put(stored.object)));
        }
        let last = event.prev_kv.as_ref().and_then(|kv| Stored::read(key.clone(), kv).ok());
        // etcd does not say why a key with a lease went; one without can only have been deleted.
        let cause = match last.as_ref().map(|last| last.lease) {
            Some(0) => Cause::Deleted,
            _ => Cause::Unspecified,
        };
        Ok(Some(Event::Delete { key, cause, last: last.map(|stored| stored.object) }))
    }
}
