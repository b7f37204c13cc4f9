//! Where requests wait to be handed over to the client, and askers for their answers; see `requests`.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message};
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::oneshot;

use crate::connection::Trouble;

/// Requests under way at once; whoever has more than that to ask is told so.
const AT_ONCE: usize = 65_536;
/// Requests that wait for no more company.
const ENOUGH: usize = 8;

pub(crate) type Answer = Result<Message, Trouble>;

/// Where a request goes, its headers and its payload.
pub(crate) type Content = (String, HeaderMap, Bytes);

/// A request that is ready to go.
struct Ready {
    number: u64,
    content: Content,
}

/// Somebody who waits for an answer.
pub(crate) struct Waiting {
    pub(crate) answer: oneshot::Sender<Answer>,
    /// By our steady clock.
    pub(crate) until: Duration,
    pub(crate) patience: Duration,
}

impl Waiting {
    fn give_up(self, was_sent: bool) {
        let trouble = match was_sent {
            true => Trouble::Unanswered(format!("no answer within {:?}", self.patience)),
            false => Trouble::Unsent(format!("it could not be sent within {:?}", self.patience)),
        };
        let _ = self.answer.send(Err(trouble));
    }
}

#[derive(Default)]
struct State {
    drawn: u64,
    waiting: HashMap<u64, Waiting, RandomState>,
    /// Noted, not handed over, in the order of their numbers. The one who found this empty does it for
    /// all, unless it has become enough before.
    ready: VecDeque<Ready>,
    /// How many are handing over at this moment. Whoever comes then leaves it to them: if the client
    /// takes no more, one request waits for it and all others can still be told that they were not sent.
    handing: usize,
}

impl State {
    /// Whether a request was still to be handed over. Now it is not.
    fn take_back(&mut self, number: u64) -> bool {
        take_back(&mut self.ready, number)
    }
}

fn take_back(ready: &mut VecDeque<Ready>, number: u64) -> bool {
    let place = ready.binary_search_by_key(&number, |ready| ready.number);
    place.ok().and_then(|place| ready.remove(place)).is_some()
}

/// The desk of one line.
pub(crate) struct Desk {
    client: Client,
    /// Answers come to subjects that start with this.
    inbox: String,
    state: Mutex<State>,
}

impl Desk {
    pub(crate) fn new(client: Client, inbox: String) -> Self {
        Self { client, inbox, state: Mutex::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes who waits, and what is to be sent unless it is alone.
    pub(crate) fn note(
        &self,
        waiting: Waiting,
        content: Content,
    ) -> Result<(Noted<'_>, Part), Trouble> {
        let mut state = self.lock();
        if state.waiting.len() >= AT_ONCE {
            return Err(Trouble::Unsent(format!("{AT_ONCE} requests are under way")));
        }
        state.drawn += 1;
        let number = state.drawn;
        let is_alone = state.waiting.is_empty();
        state.waiting.insert(number, waiting);
        let noted = Noted { desk: self, number };
        if is_alone {
            return Ok((noted, Part::Alone(content)));
        }
        state.ready.push_back(Ready { number, content });
        Ok((noted, Part::of(state.ready.len(), state.handing > 0)))
    }

    /// Hands over all that is ready, also what becomes so meanwhile.
    pub(crate) async fn hand_over(self: Arc<Self>) {
        let mut handing = Handing::begin(&self);
        while let Some(ready) = handing.next() {
            self.publish(ready).await;
        }
    }

    async fn publish(&self, ready: Ready) {
        let Ready { number, content: (subject, headers, payload) } = ready;
        let mut unsent = Unsent { desk: self, number: Some(number) };
        let mut reply = String::with_capacity(self.inbox.len() + 20);
        reply.push_str(&self.inbox);
        // Writing to a string cannot fail.
        let _ = write!(reply, "{number}");
        let sent = self.client.publish_with_reply_and_headers(subject, reply, headers, payload);
        let sent = sent.await;
        unsent.number = None;
        if let Err(error) = sent {
            let why = format!("the request was refused by the client: {error}");
            self.answer(number, Err(Trouble::Unsent(why)));
        }
    }

    /// The number of the request that an answer came to this subject for.
    pub(crate) fn number(&self, subject: &str) -> Option<u64> {
        subject.get(self.inbox.len()..)?.parse().ok()
    }

    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        if let Some(waiting) = self.lock().waiting.remove(&number) {
            // Whoever has given up does not listen any more.
            let _ = waiting.answer.send(answer);
        }
    }

    /// Whether nobody waits for an answer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// The connection is lost. Whoever waits learns it by the loss of its channel.
    pub(crate) fn lose_all(&self) {
        let mut state = self.lock();
        let State { waiting, ready, .. } = &mut *state;
        let unsent: Vec<_> =
            ready.drain(..).filter_map(|ready| waiting.remove(&ready.number)).collect();
        waiting.clear();
        drop(state);
        for waiting in unsent {
            let why = "the connection was lost before it could be sent".to_owned();
            let _ = waiting.answer.send(Err(Trouble::Unsent(why)));
        }
    }

    /// Tells those who have waited too long. What nobody has handed over by then was not sent, and is
    /// not going to be.
    pub(crate) fn give_up(&self, now: Duration) {
        let mut state = self.lock();
        let State { waiting, ready, .. } = &mut *state;
        let late = waiting.extract_if(|_, waiting| waiting.until <= now);
        let late: Vec<(Waiting, bool)> =
            late.map(|(number, waiting)| (waiting, !take_back(ready, number))).collect();
        drop(state);
        late.into_iter().for_each(|(waiting, was_sent)| waiting.give_up(was_sent));
    }

    /// Whether something has lain here since the number was drawn that is named, and the last number
    /// by now.
    pub(crate) fn is_left(&self, since: u64) -> (bool, u64) {
        let state = self.lock();
        (state.ready.front().is_some_and(|ready| ready.number <= since), state.drawn)
    }
}

/// What falls to somebody with a request, as to handing over.
pub(crate) enum Part {
    /// No other is under way, and this is still to be sent.
    Alone(Content),
    /// All that is ready, at once.
    Now,
    /// All that is ready once everybody else had a chance to add to it.
    Later,
    /// Nothing: somebody else does it.
    Left,
}

impl Part {
    /// With so many ready, the own request included.
    fn of(ready: usize, is_handing: bool) -> Self {
        match ready {
            _ if is_handing => Self::Left,
            0 | 1 => Self::Later,
            _ if ready >= ENOUGH => Self::Now,
            _ => Self::Left,
        }
    }
}

/// Somebody who is handing over.
struct Handing<'a> {
    desk: &'a Desk,
    is_over: bool,
}

impl<'a> Handing<'a> {
    fn begin(desk: &'a Desk) -> Self {
        desk.lock().handing += 1;
        Self { desk, is_over: false }
    }

    /// The next request. With the last one it is over, and whoever comes from then on finds nobody
    /// before it and sees to it itself.
    fn next(&mut self) -> Option<Ready> {
        let mut state = self.desk.lock();
        let next = state.ready.pop_front();
        if next.is_none() {
            state.handing -= 1;
            self.is_over = true;
        }
        next
    }
}

impl Drop for Handing<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.desk.lock().handing -= 1;
        }
    }
}

/// A request on its way to the client: if that is broken off, it was not sent.
struct Unsent<'a> {
    desk: &'a Desk,
    number: Option<u64>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let why = "whoever was to send it went away, and the client took no more";
            self.desk.answer(number, Err(Trouble::Unsent(why.into())));
        }
    }
}

/// A request that somebody waits for.
pub(crate) struct Noted<'a> {
    desk: &'a Desk,
    number: u64,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.waiting.remove(&self.number);
        // Nobody wants to know what would become of it, so it need not be sent.
        state.take_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_of_enough_hand_over() {
        assert!(matches!(Part::of(1, false), Part::Later));
        assert!(matches!(Part::of(2, false), Part::Left));
        assert!(matches!(Part::of(ENOUGH, false), Part::Now));
        // Whoever was to do it may not be there yet, so nobody relies on that.
        assert!(matches!(Part::of(ENOUGH + 1, false), Part::Now));
        // Whoever is at it sees to all.
        assert!(matches!(Part::of(1, true), Part::Left));
        assert!(matches!(Part::of(ENOUGH, true), Part::Left));
    }
}
