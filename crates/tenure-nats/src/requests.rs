//! Requests on one line, handed over together.
//!
//! A client that writes every request to the socket as it comes pays a call of the kernel for each,
//! here and at the server. So whoever has a request while others are under way lets everybody else
//! who is ready come first, and then hands over what all of them have left, in one go. A request that
//! is alone goes at once, and so do a few together: the server is to begin while the next come.
//!
//! Whoever hands over does so on its own runtime. So this is for a line that serves one runtime: there,
//! nobody waits for another runtime that may be blocked.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Request, StatusCode, Subscriber};
use bytes::Bytes;
use foldhash::fast::RandomState;
use futures::{FutureExt as _, StreamExt as _};
use tenure::clock::SharedClock;
use tokio::sync::{oneshot, watch};

use crate::connection::{Link, Trouble};

/// Requests under way at once; whoever has more than that to ask is told so.
const AT_ONCE: usize = 65_536;
/// Requests that wait for no more company.
const ENOUGH: usize = 8;
/// How often it is looked who has waited too long. One look at all costs less than a timer for each.
const LOOK: Duration = Duration::from_millis(100);

type Answer = Result<Message, Trouble>;

/// Where a request goes, its headers and its payload.
type Content = (String, HeaderMap, Bytes);

/// A request that is ready to go.
struct Ready {
    number: u64,
    content: Content,
}

/// Somebody who waits for an answer.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    /// By our steady clock.
    until: Duration,
    patience: Duration,
}

impl Waiting {
    fn give_up(self) {
        let why = format!("no answer within {:?}", self.patience);
        let _ = self.answer.send(Err(Trouble::Unanswered(why)));
    }
}

#[derive(Default)]
struct State {
    drawn: u64,
    waiting: HashMap<u64, Waiting, RandomState>,
    /// Noted, not handed over. The one who found this empty does it for all, unless it has become
    /// enough before.
    ready: VecDeque<Ready>,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The requests of one line.
pub(crate) struct Requests {
    client: Client,
    clock: SharedClock,
    /// Answers come to subjects that start with this.
    inbox: String,
    state: Shared,
    /// Dropped with us: then nobody sorts answers any more.
    _end: oneshot::Sender<()>,
}

impl Requests {
    /// Begins to listen for answers. What comes with them has to run where the line lives.
    pub(crate) async fn open(
        client: &Client,
        link: watch::Receiver<Link>,
        clock: &SharedClock,
    ) -> Result<(Self, impl Future<Output = ()> + Send + 'static), async_nats::SubscribeError> {
        let inbox = format!("{}.", client.new_inbox());
        let answers = client.subscribe(format!("{inbox}*")).await?;
        let (end, ended) = oneshot::channel();
        let state = Shared::default();
        let sorting = sort(answers, link, Arc::clone(&state), inbox.len(), ended);
        let looking = look(Arc::downgrade(&state), Arc::clone(clock));
        let (client, clock) = (client.clone(), Arc::clone(clock));
        // Sorting ends with us; nobody has to look any more then.
        let both = async move {
            tokio::select! {
                biased;
                () = sorting => {}
                () = looking => {}
            }
        };
        Ok((Self { client, clock, inbox, state, _end: end }, both))
    }

    /// One request and its answer.
    pub(crate) async fn ask(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        patience: Duration,
    ) -> Answer {
        let (sender, answer) = oneshot::channel();
        let until = self.clock.uptime().saturating_add(patience);
        let waiting = Waiting { answer: sender, until, patience };
        let (_noted, part) = self.note(waiting, (subject, headers, payload))?;
        match part {
            Part::Alone(content) => return self.ask_alone(content, answer).await,
            Part::Left => {}
            Part::Now | Part::Later => {
                let mut turn = Turn { requests: self, is_over: false };
                if matches!(part, Part::Later) {
                    tokio::task::yield_now().await;
                }
                Box::pin(turn.hand_over()).await;
            }
        }
        answer.await.map_err(broke)?
    }

    /// Notes who waits, and what is to be sent unless it is alone.
    fn note(&self, waiting: Waiting, content: Content) -> Result<(Noted<'_>, Part), Trouble> {
        let mut state = lock(&self.state);
        if state.waiting.len() >= AT_ONCE {
            return Err(Trouble::Unsent(format!("{AT_ONCE} requests are under way")));
        }
        state.drawn += 1;
        let number = state.drawn;
        let is_alone = state.waiting.is_empty();
        state.waiting.insert(number, waiting);
        let noted = Noted { state: &self.state, number };
        if is_alone {
            return Ok((noted, Part::Alone(content)));
        }
        state.ready.push_back(Ready { number, content });
        Ok((noted, Part::of(state.ready.len())))
    }

    /// A request with no other under way: whoever reads the connection hands its answer straight on.
    async fn ask_alone(
        &self,
        (subject, headers, payload): Content,
        given_up: oneshot::Receiver<Answer>,
    ) -> Answer {
        let request = Request::new().headers(headers).payload(payload).timeout(None);
        tokio::select! {
            biased;
            reply = self.client.send_request(subject, request) => reply.map_err(Trouble::from),
            why = given_up => why.map_err(broke)?,
        }
    }

    /// Resolves when nobody waits for an answer any more, or after this long.
    pub(crate) async fn settled(&self, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(5);
        for _ in 0..patience.as_millis() / LOOK.as_millis() {
            if lock(&self.state).waiting.is_empty() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn publish(&self, ready: Ready) {
        let Ready { number, content: (subject, headers, payload) } = ready;
        let mut unsent = Unsent { requests: self, number: Some(number) };
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

    fn answer(&self, number: u64, answer: Answer) {
        if let Some(waiting) = lock(&self.state).waiting.remove(&number) {
            // Whoever has given up does not listen any more.
            let _ = waiting.answer.send(answer);
        }
    }
}

/// What falls to somebody with a request, as to handing over.
enum Part {
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
    fn of(ready: usize) -> Self {
        match ready {
            0 | 1 => Self::Later,
            _ if ready >= ENOUGH => Self::Now,
            _ => Self::Left,
        }
    }
}

/// The duty to hand over what is ready, also for those who came later.
struct Turn<'a> {
    requests: &'a Requests,
    is_over: bool,
}

impl Turn<'_> {
    fn next(&mut self) -> Option<Ready> {
        let next = lock(&self.requests.state).ready.pop_front();
        // From here on whoever comes finds nobody before it, and sees to it itself.
        self.is_over = next.is_none();
        next
    }

    async fn hand_over(&mut self) {
        while let Some(ready) = self.next() {
            self.requests.publish(ready).await;
        }
    }
}

impl Drop for Turn<'_> {
    /// Whoever had the turn went away before it was over. Others must not wait for that.
    fn drop(&mut self) {
        while !self.is_over {
            let Some(ready) = self.next() else { return };
            // If the client takes no more at this moment, its asker is told so.
            let _ = tokio::task::unconstrained(self.requests.publish(ready)).now_or_never();
        }
    }
}

/// A request on its way to the client: if that is broken off, it was not sent.
struct Unsent<'a> {
    requests: &'a Requests,
    number: Option<u64>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let why = "whoever was to send it went away, and the client took no more";
            self.requests.answer(number, Err(Trouble::Unsent(why.into())));
        }
    }
}

/// A request that somebody waits for.
struct Noted<'a> {
    state: &'a Mutex<State>,
    number: u64,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        lock(self.state).waiting.remove(&self.number);
    }
}

fn broke(_: oneshot::error::RecvError) -> Trouble {
    Trouble::Unanswered("the connection broke before the answer".into())
}

/// Sorts answers until nobody asks any more.
async fn sort(
    mut answers: Subscriber,
    mut link: watch::Receiver<Link>,
    state: Shared,
    prefix: usize,
    mut ended: oneshot::Receiver<()>,
) {
    let mut losses = link.borrow_and_update().losses;
    loop {
        tokio::select! {
            biased;
            message = answers.next() => match message {
                Some(message) => give(&state, message, prefix),
                None => break,
            },
            _ = &mut ended => break,
            changed = link.changed() => {
                let now = link.borrow_and_update().losses;
                if changed.is_err() {
                    break;
                }
                if now != losses {
                    losses = now;
                    // Whoever waits learns it by the loss of its channel.
                    lock(&state).waiting.clear();
                }
            }
        }
    }
    lock(&state).waiting.clear();
}

fn give(state: &Mutex<State>, message: Message, prefix: usize) {
    let number = message.subject.get(prefix..).and_then(|number| number.parse().ok());
    let Some(number): Option<u64> = number else { return };
    let Some(waiting) = lock(state).waiting.remove(&number) else { return };
    let answer = match message.status {
        Some(StatusCode::NO_RESPONDERS) => Err(Trouble::nobody()),
        _ => Ok(message),
    };
    let _ = waiting.answer.send(answer);
}

/// Tells those who have waited too long, for as long as anybody asks.
async fn look(state: Weak<Mutex<State>>, clock: SharedClock) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(state) = state.upgrade() else { return };
        let now = clock.uptime();
        let mut state = lock(&state);
        let late: Vec<Waiting> =
            state.waiting.extract_if(|_, waiting| waiting.until <= now).map(|(_, w)| w).collect();
        drop(state);
        late.into_iter().for_each(Waiting::give_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_of_enough_hand_over() {
        assert!(matches!(Part::of(1), Part::Later));
        assert!(matches!(Part::of(2), Part::Left));
        assert!(matches!(Part::of(ENOUGH), Part::Now));
        // Whoever was to do it may not be there yet, so nobody relies on that.
        assert!(matches!(Part::of(ENOUGH + 1), Part::Now));
    }
}
