//! Tells watchers what happens.
//!
//! From the first watch on the bucket republishes every message as it stores it, so even values that
//! are replaced at once are heard of. That is told once and to whoever listens, so the pump counts: the
//! sequences of a bucket have no holes when they are drawn, and whatever it did not hear it reads from
//! the bucket. What is no longer there then was replaced meanwhile, and watchers are told that they
//! missed something. Behind it all, a slow look at the last sequence: silence proves nothing, and news
//! without a pause are no proof either that they are of the same bucket.
//!
//! Sequences can go back: a server that lost power may have lost what it had not flushed, and a bucket
//! may be deleted and made anew. What is drawn a second time is stored later than what was known, and
//! that gives it away. Whoever watches is told that history is gone then, and the next watch begins
//! with another pump.

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
use crate::ended::Ended;
use crate::shared::Shared;
use crate::stored::Stored;

/// Sequences that are read back one by one, at most; a longer absence ends the watches.
const CATCH_UP: u64 = 4_096;
/// Reads on their way at once.
const AT_ONCE: usize = 64;
/// What was just stored may still be on its way to us.
const GRACE: Duration = Duration::from_millis(150);
/// So often it is waited for once more, if it cannot be read back and nothing says that it was lost: a
/// busy server tells late, and whoever watches would list everything again.
const GRACES: u32 = 12;

/// The pump, which starts with the first watch, and anew after it has ended.
#[derive(Default)]
pub(crate) struct Pump {
    tap: Mutex<Option<Arc<Tap>>>,
    /// One starts at a time.
    starting: tokio::sync::Mutex<()>,
}

struct Tap {
    feed: Arc<Feed>,
    /// How far it has heard; nobody sends any more once it has ended.
    heard: watch::Receiver<u64>,
}

impl Pump {
    fn tap(&self) -> MutexGuard<'_, Option<Arc<Tap>>> {
        self.tap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> Option<Arc<Tap>> {
        self.tap().clone().filter(|tap| tap.heard.has_changed().is_ok())
    }

    /// No more news, and everybody who waits for some is told.
    pub(crate) fn close(&self) {
        if let Some(tap) = self.tap().as_ref() {
            tap.feed.close(Error::unavailable(BACKEND, "the store was closed"));
        }
    }
}

impl Shared {
    pub(crate) async fn watch(self: &Arc<Self>, request: &WatchRequest) -> Result<Watch> {
        let tap = self.tap().await?;
        // What was acknowledged before this call is before the watch, so it must be behind us.
        let last = self.last_sequence().await?;
        let mut heard = tap.heard.clone();
        let caught_up = heard.wait_for(|heard| *heard >= last);
        let patience = self.options.reply_timeout + self.options.poll_interval * 2;
        match tokio::time::timeout(patience, caught_up).await {
            Ok(Ok(_)) => tap.feed.watch(request, None),
            _ => Err(Error::unavailable(BACKEND, "the news of the bucket do not arrive")),
        }
    }

    /// The pump that runs, or a new one.
    async fn tap(self: &Arc<Self>) -> Result<Arc<Tap>> {
        if let Some(tap) = self.pump.running() {
            return Ok(tap);
        }
        let _turn = self.pump.starting.lock().await;
        if let Some(tap) = self.pump.running() {
            return Ok(tap);
        }
        let tap = Arc::new(self.start_pump().await?);
        *self.pump.tap() = Some(Arc::clone(&tap));
        Ok(tap)
    }

    async fn start_pump(self: &Arc<Self>) -> Result<Tap> {
        if self.is_closed() {
            return Err(Error::unavailable(BACKEND, "the store was closed"));
        }
        bucket::tell_news(self).await?;
        let lost = |error: &dyn std::fmt::Display| {
            Error::unavailable(BACKEND, format!("cannot listen to the bucket: {error}"))
        };
        let losses = self.line.link.borrow().losses;
        let told = self.line.client.subscribe(self.subjects.told()).await.map_err(|e| lost(&e))?;
        // Subscribed for certain before this is asked, so everything after it is told to us.
        self.line.client.flush().await.map_err(|e| lost(&e))?;
        let info = self.info().await?.ok_or_else(|| self.gone())?;
        let head = info.last_sequence;
        let feed = Arc::new(Feed::new(head, FeedLimits::default()));
        let (position, heard) = watch::channel(head);
        let worker = Worker {
            shared: Arc::downgrade(self),
            feed: Arc::clone(&feed),
            position,
            created: info.created,
            newest_ns: info.last_ns,
            ended: Ended::default(),
            behind: None,
            was_cut: false,
            losses,
        };
        self.home.spawn(worker.run(told, self.line.link.clone(), self.options.poll_interval));
        Ok(Tap { feed, heard })
    }
}

struct Worker {
    shared: Weak<Shared>,
    feed: Arc<Feed>,
    /// Every message up to this one was told or needs no telling.
    position: watch::Sender<u64>,
    /// When the bucket was made: another one of the same name is another one.
    created: String,
    /// When the message at the position was stored at the latest, by the server's clock.
    newest_ns: Option<i128>,
    ended: Ended,
    behind: Option<Behind>,
    /// The connection was away, and what was told meanwhile was told to nobody.
    was_cut: bool,
    /// The losses of the connection after which the message at the position was found to be the same.
    losses: u64,
}

/// A last sequence that the server named and that was not heard of yet.
struct Behind {
    last: u64,
    /// How far it was heard then.
    position: u64,
    graces: u32,
}

impl Worker {
    async fn run(mut self, told: Subscriber, link: watch::Receiver<Link>, poll: Duration) {
        let end = self.pump(told, link, poll).await;
        let Self { shared, feed, position, .. } = self;
        // First, so that whoever hears of the end and watches again begins another pump.
        drop(position);
        let end = end.unwrap_or_else(|| Error::unavailable(BACKEND, "the store was closed"));
        if let Some(shared) = shared.upgrade().filter(|shared| !shared.is_closed()) {
            tracing::warn!(%end, "the news of the bucket end here");
            // Whatever is remembered was said of messages that are gone.
            shared.memory.forget_all();
        }
        feed.close(end);
    }

    /// Why the news end, if it is not for the end of the store.
    async fn pump(
        &mut self,
        mut told: Subscriber,
        mut link: watch::Receiver<Link>,
        poll: Duration,
    ) -> Option<Error> {
        let look = tokio::time::sleep(poll);
        tokio::pin!(look);
        loop {
            let news = tokio::select! {
                biased;
                // Before the news, which may come without a pause.
                () = &mut look => None,
                message = told.next() => Some(message?),
                changed = link.changed() => {
                    changed.ok()?;
                    self.was_cut = true;
                    None
                }
            };
            let shared = self.shared.upgrade().filter(|shared| !shared.is_closed())?;
            let again = match news {
                Some(message) => {
                    let headers = message.headers.unwrap_or_default();
                    if let Some(stored) = Stored::told(&headers, message.payload)
                        && let Err(end) = self.hear(&shared, stored).await
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

    /// The sequences went back to this one: whoever watches has to list again.
    fn went_back(&self, last: u64) -> Error {
        Error::Compacted { requested: self.position(), oldest: last }
    }

    /// One message that was told. An error is the reason to end: the sequences have gone back.
    async fn hear(&mut self, shared: &Shared, stored: Stored) -> Result<()> {
        // What cannot be taken now is read back later.
        if !self.goes_on(shared).await? {
            return Ok(());
        }
        let sequence = stored.sequence;
        // What was read back may be told once more, later. What is new is stored later.
        let is_newer = self.newest_ns.is_some_and(|newest| stored.time_ns > newest);
        if sequence <= self.position() && is_newer {
            return Err(self.went_back(sequence));
        }
        if sequence > self.position() + 1 {
            // They are told in order, so what was skipped will not come.
            self.catch_up(shared, sequence - 1, true).await?;
        }
        if sequence == self.position() + 1 {
            self.tell(shared, &stored);
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
            // They are told in order: what comes says that the rest is still to come.
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

    /// Whether what the server has now goes on from the position, asked once after each loss of the
    /// connection, before anything that came since is told; `false` if it cannot be said just now. It does
    /// not if the message at the position is another one than was heard: while nobody listened, more
    /// sequences were drawn than had been lost. If that one was replaced, there is nothing to compare.
    async fn goes_on(&mut self, shared: &Shared) -> Result<bool> {
        let Link { up, losses } = *shared.line.link.borrow();
        // What is still to be heard of the connection that was lost goes on by itself.
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

    /// Reads what was not heard, up to this sequence. `false` if it cannot be read and may still be on
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
            Ok(Some(all)) => all.iter().for_each(|stored| self.tell(shared, stored)),
            Ok(None) if !is_lost => return Ok(false),
            Ok(None) => {
                tracing::info!(after = position, until, "watchers missed changes and list again");
                self.feed.reset(until);
                self.position.send_replace(until);
                self.newest_ns = None;
            }
            // Not now; the next message or look tries again.
            Err(error) => tracing::debug!(%error, "cannot read what was missed"),
        }
        Ok(true)
    }

    fn tell(&mut self, shared: &Shared, stored: &Stored) {
        if let Some(event) = self.event(shared, stored) {
            let batch = Batch { revision: stored.sequence, events: vec![event] };
            self.feed.publish([Arc::new(batch)]);
        }
        self.newest_ns = Some(stored.time_ns);
        self.position.send_replace(stored.sequence);
    }

    /// What a message means to watchers; `None` if it only prolongs a life, or is not ours.
    fn event(&mut self, shared: &Shared, stored: &Stored) -> Option<Event> {
        let key = shared.subjects.key(&stored.subject)?;
        let known = match stored.known(key.clone(), &shared.time) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "a message was passed over");
                return None;
            }
        };
        shared.memory.hear(&stored.subject, known.clone());
        match (known.object, stored.gone) {
            (Some(object), _) => {
                self.ended.remove(&stored.subject);
                (object.revision == stored.sequence).then_some(Event::Put(object))
            }
            (None, cause) => {
                // The server may mark the end of something that was deleted at that very instant.
                let is_new = self.ended.insert(&stored.subject);
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
