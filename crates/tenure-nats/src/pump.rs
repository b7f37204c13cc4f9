//! Tells watchers what happens.
//!
//! From the first watch on the bucket republishes every message as it stores it, so even values that are replaced at once
//! are heard of. That is told once and to whoever listens, so the pump counts: the sequences of a
//! bucket have no holes when they are drawn, and whatever it did not hear it reads from the bucket.
//! What is no longer there then was replaced meanwhile, and watchers are told that they missed
//! something. Behind it all, a slow look at the last sequence: silence proves nothing.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt as _;
use futures::stream::{self, TryStreamExt as _};
use tenure::store::{Batch, Cause, Event, Feed, FeedLimits, Watch, WatchRequest};
use tenure::{Error, Result};
use tokio::sync::{OnceCell, watch};

use crate::BACKEND;
use crate::bucket;
use crate::connection::Link;
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
/// Subjects whose end was told last.
const ENDED: usize = 4_096;

/// The pump, which starts with the first watch.
#[derive(Default)]
pub(crate) struct Pump {
    tap: OnceCell<Tap>,
}

struct Tap {
    feed: Arc<Feed>,
    heard: watch::Receiver<u64>,
}

impl Pump {
    /// No more news, and everybody who waits for some is told.
    pub(crate) fn close(&self) {
        if let Some(tap) = self.tap.get() {
            tap.feed.close(Error::unavailable(BACKEND, "the store was closed"));
        }
    }
}

impl Shared {
    pub(crate) async fn watch(self: &Arc<Self>, request: &WatchRequest) -> Result<Watch> {
        let tap = self.pump.tap.get_or_try_init(|| self.start_pump()).await?;
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

    async fn start_pump(self: &Arc<Self>) -> Result<Tap> {
        if self.is_closed() {
            return Err(Error::unavailable(BACKEND, "the store was closed"));
        }
        bucket::tell_news(self).await?;
        let lost = |error: &dyn std::fmt::Display| {
            Error::unavailable(BACKEND, format!("cannot listen to the bucket: {error}"))
        };
        let told = self.line.client.subscribe(self.subjects.told()).await.map_err(|e| lost(&e))?;
        // Subscribed for certain before this is asked, so everything after it is told to us.
        self.line.client.flush().await.map_err(|e| lost(&e))?;
        let head = self.last_sequence().await?;
        let feed = Arc::new(Feed::new(head, FeedLimits::default()));
        let (position, heard) = watch::channel(head);
        let worker = Worker {
            shared: Arc::downgrade(self),
            feed: Arc::clone(&feed),
            position,
            ended: Ended::default(),
            behind: None,
            was_cut: false,
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
    ended: Ended,
    behind: Option<Behind>,
    /// The connection was away, and what was told meanwhile was told to nobody.
    was_cut: bool,
}

/// A last sequence that the server named and that was not heard of yet.
struct Behind {
    last: u64,
    graces: u32,
}

impl Worker {
    async fn run(mut self, mut told: Subscriber, mut link: watch::Receiver<Link>, poll: Duration) {
        let mut look_in = poll;
        loop {
            let news = tokio::select! {
                biased;
                message = told.next() => match message {
                    Some(message) => Some(message),
                    None => break,
                },
                changed = link.changed() => match changed {
                    Ok(()) => { (look_in, self.was_cut) = (GRACE, true); None }
                    Err(_) => break,
                },
                () = tokio::time::sleep(look_in) => None,
            };
            let Some(shared) = self.shared.upgrade() else { return };
            if shared.is_closed() {
                break;
            }
            match news {
                Some(message) => {
                    let headers = message.headers.unwrap_or_default();
                    if let Some(stored) = Stored::told(&headers, message.payload) {
                        self.hear(&shared, stored).await;
                    }
                }
                None if link.borrow().up => look_in = self.look(&shared, poll).await,
                None => look_in = poll,
            }
        }
        self.feed.close(Error::unavailable(BACKEND, "the store was closed"));
    }

    fn position(&self) -> u64 {
        *self.position.borrow()
    }

    /// One message that was told.
    async fn hear(&mut self, shared: &Shared, stored: Stored) {
        let sequence = stored.sequence;
        if sequence > self.position() + 1 {
            // They are told in order, so what was skipped will not come.
            self.catch_up(shared, sequence - 1, true).await;
        }
        if sequence == self.position() + 1 {
            self.tell(shared, &stored);
        }
    }

    /// Compares with the server; says when to look again.
    async fn look(&mut self, shared: &Shared, poll: Duration) -> Duration {
        let Ok(last) = shared.last_sequence().await else { return poll };
        let position = self.position();
        match self.behind.take() {
            Some(behind) if behind.last > position => {
                let is_lost = behind.graces == 0 || self.was_cut;
                if !self.catch_up(shared, behind.last, is_lost).await {
                    let graces = behind.graces.saturating_sub(1);
                    self.behind = Some(Behind { graces, ..behind });
                    return GRACE;
                }
                self.was_cut = false;
                poll
            }
            _ if last > position => {
                self.behind = Some(Behind { last, graces: GRACES });
                GRACE
            }
            _ => {
                self.was_cut = false;
                poll
            }
        }
    }

    /// Reads what was not heard, up to this sequence. `false` if it cannot be read and may still be on
    /// its way.
    async fn catch_up(&mut self, shared: &Shared, until: u64, is_lost: bool) -> bool {
        let position = self.position();
        let found = match until - position {
            0..=CATCH_UP => read_back(shared, position + 1, until).await,
            _ => Ok(None),
        };
        match found {
            Ok(Some(all)) => all.iter().for_each(|stored| self.tell(shared, stored)),
            Ok(None) if !is_lost => return false,
            Ok(None) => {
                tracing::info!(after = position, until, "watchers missed changes and list again");
                self.feed.reset(until);
                self.position.send_replace(until);
            }
            // Not now; the next message or look tries again.
            Err(error) => tracing::debug!(%error, "cannot read what was missed"),
        }
        true
    }

    fn tell(&mut self, shared: &Shared, stored: &Stored) {
        if let Some(event) = self.event(shared, stored) {
            let batch = Batch { revision: stored.sequence, events: vec![event] };
            self.feed.publish([Arc::new(batch)]);
        }
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

/// The subjects whose end was told last, in bounded memory.
#[derive(Default)]
struct Ended {
    subjects: HashSet<String>,
    order: VecDeque<String>,
}

impl Ended {
    /// Whether it had not ended before.
    fn insert(&mut self, subject: &str) -> bool {
        if !self.subjects.insert(subject.to_owned()) {
            return false;
        }
        self.order.push_back(subject.to_owned());
        while self.order.len() > ENDED {
            let Some(oldest) = self.order.pop_front() else { break };
            self.subjects.remove(&oldest);
        }
        true
    }

    fn remove(&mut self, subject: &str) {
        self.subjects.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_new_once_until_the_object_is_back() {
        let mut ended = Ended::default();
        assert!(ended.insert("a") && !ended.insert("a"));
        ended.remove("a");
        assert!(ended.insert("a"));
        for n in 0..ENDED * 3 {
            assert!(ended.insert(&format!("s{n}")));
        }
        assert!(ended.subjects.len() <= ENDED && ended.order.len() <= ENDED);
    }
}
