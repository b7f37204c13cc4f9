//! Feeds watches with what the bucket republishes.
//!
//! From the first watch on, the bucket republishes every message as it stores it, so a watch also sees
//! values that are replaced at once. A republished message is sent once and may be missed, so the
//! [`Reader`] counts: sequences are drawn without holes, and what it did not receive it reads from the
//! bucket. A message that is no longer there was replaced meanwhile, and the watches end with
//! `Compacted`. Every so often the reader also asks for the last sequence, because silence does not prove
//! that nothing happened, and messages do not prove that they come from the same bucket.
//!
//! Sequences can go back: a server that lost power may have lost what it had not flushed, and a bucket
//! may be deleted and made anew. A sequence that is drawn a second time has a later time than the reader
//! knows. Then, too, the watches end with `Compacted`, and the next watch starts another reader.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt as _;
use futures::stream::{self, TryStreamExt as _};
use tenure::backend::{Feed, FeedLimits};
use tenure::store::{Batch, Cause, Event, Watch, WatchRequest};
use tenure::{Error, Result};
use tokio::sync::watch;

use crate::BACKEND;
use crate::bucket;
use crate::connection::Link;
use crate::recent_deletes::RecentDeletes;
use crate::shared::Shared;
use crate::stored::Stored;

/// Sequences that are read back one by one, at most; a longer absence ends the watches.
const CATCH_UP: u64 = 4_096;
/// Reads on their way at once.
const AT_ONCE: usize = 64;
/// A message that was just stored may still be on its way to us.
const GRACE: Duration = Duration::from_millis(150);
/// How often we wait for it once more, if it cannot be read back and nothing says that it was lost. A busy
/// server republishes late, and a watch that ends has to list everything again.
const GRACES: u32 = 12;

/// All watches of a store. The first one starts a reader, and so does the first one after that ended.
#[derive(Default)]
pub(crate) struct Watches {
    running: Mutex<Option<Arc<Running>>>,
    /// One starts at a time.
    starting: tokio::sync::Mutex<()>,
}

/// A reader, seen from the watches.
struct Running {
    feed: Arc<Feed>,
    /// The position of the reader. The channel is closed when the reader ends.
    position: watch::Receiver<u64>,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> Option<Arc<Running>> {
        self.lock().clone().filter(|running| running.position.has_changed().is_ok())
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        if let Some(running) = self.lock().as_ref() {
            running.feed.close(Error::unavailable(BACKEND, "the store was closed"));
        }
    }
}

impl Shared {
    pub(crate) async fn watch(self: &Arc<Self>, request: &WatchRequest) -> Result<Watch> {
        let running = self.reader().await?;
        // What was acknowledged before this call is before the watch, so the reader must be past it.
        let last = self.last_sequence().await?;
        let mut position = running.position.clone();
        let caught_up = position.wait_for(|position| *position >= last);
        let timeout = self.options.reply_timeout + self.options.poll_interval * 2;
        match tokio::time::timeout(timeout, caught_up).await {
            Ok(Ok(_)) => running.feed.watch(request, None),
            _ => Err(Error::unavailable(BACKEND, "what the bucket republishes does not arrive")),
        }
    }

    /// The reader that runs, or a new one.
    async fn reader(self: &Arc<Self>) -> Result<Arc<Running>> {
        if let Some(running) = self.watches.running() {
            return Ok(running);
        }
        let _turn = self.watches.starting.lock().await;
        if let Some(running) = self.watches.running() {
            return Ok(running);
        }
        let running = Arc::new(self.start_reader().await?);
        *self.watches.lock() = Some(Arc::clone(&running));
        Ok(running)
    }

    async fn start_reader(self: &Arc<Self>) -> Result<Running> {
        if self.is_closed() {
            return Err(Error::unavailable(BACKEND, "the store was closed"));
        }
        bucket::republish(self).await?;
        let lost = |error: &dyn std::fmt::Display| {
            Error::unavailable(BACKEND, format!("cannot listen to the bucket: {error}"))
        };
        let losses = self.link.borrow().losses;
        let messages =
            self.client.subscribe(self.subjects.republished()).await.map_err(|e| lost(&e))?;
        // The server has the subscription before it is asked for the last sequence.
        self.client.flush().await.map_err(|e| lost(&e))?;
        let info = self.info().await?.ok_or_else(|| self.gone())?;
        let head = info.last_sequence;
        let feed = Arc::new(Feed::new(head, FeedLimits::default()));
        let (sender, position) = watch::channel(head);
        let reader = Reader {
            shared: Arc::downgrade(self),
            feed: Arc::clone(&feed),
            position: sender,
            created: info.created,
            newest_ns: info.last_ns,
            deleted: RecentDeletes::default(),
            behind: None,
            was_cut: false,
            losses,
        };
        self.home.spawn(reader.run(messages, self.link.clone(), self.options.poll_interval));
        Ok(Running { feed, position })
    }
}

/// Reads what is republished, in order, and publishes it in the feed.
struct Reader {
    shared: Weak<Shared>,
    feed: Arc<Feed>,
    /// Every message up to this one is in the feed, or means nothing to watches.
    position: watch::Sender<u64>,
    /// When the bucket was made, which tells it from another one of the same name.
    created: String,
    /// When the message at the position was stored at the latest, by the server's clock.
    newest_ns: Option<i128>,
    deleted: RecentDeletes,
    behind: Option<Behind>,
    /// The connection was lost, and with it what was republished meanwhile.
    was_cut: bool,
    /// The losses of the connection after which the message at the position was found to be the same.
    losses: u64,
}

/// A last sequence that the server named and that was not received yet.
struct Behind {
    last: u64,
    /// The position of the reader then.
    position: u64,
    graces: u32,
}

impl Reader {
    async fn run(mut self, messages: Subscriber, link: watch::Receiver<Link>, poll: Duration) {
        let end = self.read(messages, link, poll).await;
        let Self { shared, feed, position, .. } = self;
        // First, so that a caller who sees the end and watches again starts another reader.
        drop(position);
        let end = end.unwrap_or_else(|| Error::unavailable(BACKEND, "the store was closed"));
        if let Some(shared) = shared.upgrade().filter(|shared| !shared.is_closed()) {
            tracing::warn!(%end, "the watches of the bucket end here");
            // What is cached was said of messages that are gone.
            shared.cache.clear();
        }
        feed.close(end);
    }

    /// Reads until the watches have to end, and says why; `None` at the end of the store.
    async fn read(
        &mut self,
        mut messages: Subscriber,
        mut link: watch::Receiver<Link>,
        poll: Duration,
    ) -> Option<Error> {
        let look = tokio::time::sleep(poll);
        tokio::pin!(look);
        loop {
            let message = tokio::select! {
                biased;
                // Before the messages, which may come without a pause.
                () = &mut look => None,
                message = messages.next() => Some(message?),
                changed = link.changed() => {
                    changed.ok()?;
                    self.was_cut = true;
                    None
                }
            };
            let shared = self.shared.upgrade().filter(|shared| !shared.is_closed())?;
            let again = match message {
                Some(message) => {
                    let headers = message.headers.unwrap_or_default();
                    if let Some(stored) = Stored::republished(&headers, message.payload)
                        && let Err(end) = self.receive(&shared, stored).await
                    {
                        return Some(end);
                    }
                    continue;
                }
                None if link.borrow().up => self.look(&shared, poll).await,
                None => Ok(poll),
            };
            match again {
                Ok(again) => look.set(tokio::time::sleep(again)),
                Err(end) => return Some(end),
            }
        }
    }

    fn position(&self) -> u64 {
        *self.position.borrow()
    }

    /// The error for sequences that went back to this one.
    fn went_back(&self, last: u64) -> Error {
        Error::Compacted { requested: self.position(), oldest: last }
    }

    /// One republished message. An error is the reason to end: the sequences have gone back.
    async fn receive(&mut self, shared: &Shared, stored: Stored) -> Result<()> {
        // What cannot be taken now is read back later.
        if !self.goes_on(shared).await? {
            return Ok(());
        }
        let sequence = stored.sequence;
        // A message that was read back may still come. One that is new has a later time.
        let is_newer = self.newest_ns.is_some_and(|newest| stored.time_ns > newest);
        if sequence <= self.position() && is_newer {
            return Err(self.went_back(sequence));
        }
        if sequence > self.position() + 1 {
            // They come in order, so what was skipped will not come.
            self.catch_up(shared, sequence - 1, true).await?;
        }
        if sequence == self.position() + 1 {
            self.publish(shared, &stored);
        }
        Ok(())
    }

    /// Compares with the server; says when to look again, or why to end.
    async fn look(&mut self, shared: &Shared, poll: Duration) -> Result<Duration> {
        let info = match shared.info().await {
            Ok(Some(info)) => info,
            Ok(None) => return Err(shared.gone()),
            Err(_) => return Ok(poll),
        };
        let (last, position) = (info.last_sequence, self.position());
        if last < position || info.created != self.created {
            return Err(self.went_back(last));
        }
        if !self.goes_on(shared).await? {
            return Ok(poll);
        }
        Ok(match self.behind.take() {
            // They come in order: what came says that the rest is still to come.
            Some(behind) if behind.last > position && behind.position < position => {
                self.behind = Some(Behind { position, graces: GRACES, ..behind });
                GRACE
            }
            Some(behind) if behind.last > position => {
                let is_lost = behind.graces == 0 || self.was_cut;
                if !self.catch_up(shared, behind.last, is_lost).await? {
                    let graces = behind.graces.saturating_sub(1);
                    self.behind = Some(Behind { graces, ..behind });
                    return Ok(GRACE);
                }
                self.newest_ns = self.newest_ns.or(info.last_ns);
                self.was_cut = false;
                poll
            }
            _ if last > position => {
                self.behind = Some(Behind { last, position, graces: GRACES });
                GRACE
            }
            _ => {
                self.was_cut = false;
                poll
            }
        })
    }

    /// Whether what the server has now goes on from the position; `false` if that cannot be found out just
    /// now. It is asked once after each loss of the connection, before anything that came since is
    /// published. It does not go on if the message at the position is another one than was received:
    /// meanwhile more sequences were drawn than had been lost. If that message was replaced, there is
    /// nothing to compare.
    async fn goes_on(&mut self, shared: &Shared) -> Result<bool> {
        let Link { up, losses } = *shared.link.borrow();
        // What is still to come of the connection that was lost goes on by itself.
        if losses == self.losses || !up {
            return Ok(true);
        }
        self.was_cut = true;
        if let Some(newest) = self.newest_ns.filter(|_| self.position() > 0) {
            match shared.at(self.position()).await {
                Ok(Some(stored)) if stored.time_ns > newest => {
                    return Err(self.went_back(self.position()));
                }
                Ok(_) => {}
                Err(_) => return Ok(false),
            }
        }
        self.losses = losses;
        Ok(true)
    }

    /// Reads what was not received, up to this sequence. `false` if it cannot be read and may still be on
    /// its way. An error is the reason to end.
    async fn catch_up(&mut self, shared: &Shared, until: u64, is_lost: bool) -> Result<bool> {
        let position = self.position();
        let found = match until - position {
            0..=CATCH_UP => read_back(shared, position + 1, until).await,
            _ => Ok(None),
        };
        // The connection may have been lost on the way.
        if !self.goes_on(shared).await? {
            return Ok(true);
        }
        match found {
            Ok(Some(all)) => all.iter().for_each(|stored| self.publish(shared, stored)),
            Ok(None) if !is_lost => return Ok(false),
            Ok(None) => {
                tracing::info!(
                    after = position,
                    until,
                    "watches missed changes and have to list again"
                );
                self.feed.reset(until);
                self.position.send_replace(until);
                self.newest_ns = None;
            }
            // Not now; the next message or look tries again.
            Err(error) => tracing::debug!(%error, "cannot read what was missed"),
        }
        Ok(true)
    }

    fn publish(&mut self, shared: &Shared, stored: &Stored) {
        if let Some(event) = self.event(shared, stored) {
            let batch = Batch { revision: stored.sequence, events: vec![event] };
            self.feed.publish([Arc::new(batch)]);
        }
        self.newest_ns = Some(stored.time_ns);
        self.position.send_replace(stored.sequence);
    }

    /// What a message means to watches; `None` if it only prolongs a life, or is not ours.
    fn event(&mut self, shared: &Shared, stored: &Stored) -> Option<Event> {
        let key = shared.subjects.key(&stored.subject)?;
        let known = match stored.known(key.clone(), &shared.time) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "a message was passed over");
                return None;
            }
        };
        shared.cache.update_from_watch(&stored.subject, known.clone());
        match (known.object, stored.gone) {
            (Some(object), _) => {
                self.deleted.remove(&stored.subject);
                (object.revision == stored.sequence).then_some(Event::Put(object))
            }
            (None, cause) => {
                // The server may mark the end of something that was deleted at that very instant.
                let is_new = self.deleted.insert(&stored.subject);
                let cause = cause.unwrap_or(Cause::Unspecified);
                is_new.then_some(Event::Delete { key, cause, last: None })
            }
        }
    }
}

/// All messages of this range; `None` if one of them is gone.
async fn read_back(shared: &Shared, from: u64, until: u64) -> Result<Option<Vec<Stored>>> {
    let reads = (from..=until).map(|sequence| shared.at(sequence));
    let found: Vec<Option<Stored>> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().collect())
}
