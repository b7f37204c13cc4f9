//! Where requests wait to be sent, and askers for their answers.

use std::collections::{HashMap, VecDeque};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use foldhash::fast::RandomState;
use futures::task::AtomicWaker;
use tokio::sync::{Notify, oneshot};

use crate::connection::Trouble;
use crate::head::Head;

/// Requests under way at once; whoever has more than that to ask is told so.
const AT_ONCE: usize = 65_536;
/// Requests that wait for no more company.
const ENOUGH: usize = 8;
/// What is taken to be sent at once, unless a single request is larger.
const TOGETHER: usize = 64 * 1024;
/// The line before a message, besides its subjects.
const LINE: usize = 64;

pub(crate) type Answer = Result<Bytes, Trouble>;

/// A message to be sent.
pub(crate) struct Content<'a> {
    pub(crate) subject: &'a str,
    pub(crate) head: Option<&'a Head>,
    pub(crate) payload: &'a [u8],
}

/// Somebody who waits for an answer.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    /// By our steady clock.
    until: Duration,
    patience: Duration,
}

/// The desk of one connection after the other.
pub(crate) struct Desk {
    /// Answers come to subjects that start with this.
    pub(crate) inbox: String,
    state: Mutex<State>,
    /// Whoever sends.
    sender: AtomicWaker,
    closing: Notify,
}

#[derive(Default)]
struct State {
    /// What a request may hold on the connection that is up; `None` if none is.
    up: Option<usize>,
    closed: bool,
    drawn: u64,
    waiting: HashMap<u64, Waiting, RandomState>,
    /// Not sent yet, in the order of their numbers.
    ready: VecDeque<(u64, BytesMut)>,
}

/// What there is to send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Nothing,
    /// Others are under way, and may have more to add in a moment.
    Soon,
    Now,
}

impl Desk {
    pub(crate) fn new(inbox: String) -> Self {
        Self { inbox, state: Mutex::default(), sender: AtomicWaker::new(), closing: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request would leave at once.
    pub(crate) fn is_up(&self) -> bool {
        self.lock().up.is_some()
    }

    /// Leaves a request to be sent; `None` if there is no connection.
    pub(crate) fn leave(
        &self,
        content: &Content<'_>,
        until: Duration,
        patience: Duration,
    ) -> Option<Result<Noted<'_>, Trouble>> {
        let (answer, told) = oneshot::channel();
        let mut state = self.lock();
        let most = state.up?;
        let size = content.size();
        if size > most {
            let why = format!("it has {size} bytes, and the server takes {most} at most");
            return Some(Err(Trouble::Unsent(why)));
        }
        if state.waiting.len() >= AT_ONCE {
            return Some(Err(Trouble::Unsent(format!("{AT_ONCE} requests are under way"))));
        }
        state.drawn += 1;
        let number = state.drawn;
        state.waiting.insert(number, Waiting { answer, until, patience });
        state.ready.push_back((number, content.encode(&self.inbox, number)));
        drop(state);
        self.sender.wake();
        Some(Ok(Noted { desk: self, number, told }))
    }

    /// Who is to be woken when there is something to send.
    pub(crate) fn listen(&self, sender: &Waker) {
        self.sender.register(sender);
    }

    /// Whether there is something to send. What is alone is sent at once, and so are a few together: the
    /// server is to begin while the next come.
    pub(crate) fn ready(&self) -> Ready {
        let state = self.lock();
        match state.ready.len() {
            0 => Ready::Nothing,
            ready if ready >= ENOUGH || ready == state.waiting.len() => Ready::Now,
            _ => Ready::Soon,
        }
    }

    /// Takes as much as is sent at once. It counts as sent from now on.
    pub(crate) fn take(&self, into: &mut BytesMut) {
        let mut state = self.lock();
        while let Some((_, next)) = state.ready.front() {
            if !into.is_empty() && into.len() + next.len() > TOGETHER {
                return;
            }
            let Some((_, next)) = state.ready.pop_front() else { return };
            // What is alone is not copied.
            into.unsplit(next);
        }
    }

    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        let waiting = self.lock().waiting.remove(&number);
        if let Some(waiting) = waiting {
            // Whoever has given up does not listen any more.
            let _ = waiting.answer.send(answer);
        }
    }

    /// Whether nobody waits for an answer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// There is a connection, which takes so much at once.
    pub(crate) fn open(&self, max_payload: usize) {
        let mut state = self.lock();
        state.up = (!state.closed).then_some(max_payload);
    }

    /// Nothing more is taken for this connection.
    pub(crate) fn leave_off(&self) {
        self.lock().up = None;
    }

    /// The connection is lost. Whoever waits learns it by the loss of its channel; what was not sent, is
    /// not going to be.
    pub(crate) fn lose_all(&self) {
        let mut state = self.lock();
        state.up = None;
        let ready = std::mem::take(&mut state.ready);
        let mut waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in ready.iter().filter_map(|(number, _)| waiting.remove(number)) {
            let why = "the connection was lost before it could be sent".to_owned();
            let _ = waiting.answer.send(Err(Trouble::Unsent(why)));
        }
    }

    /// Tells those who have waited too long. What nobody has sent by then is not going to be.
    pub(crate) fn give_up(&self, now: Duration) {
        let mut state = self.lock();
        let late = state.waiting.extract_if(|_, waiting| waiting.until <= now);
        let mut late: HashMap<u64, Waiting, RandomState> = late.collect();
        if late.is_empty() {
            return;
        }
        let mut unsent = Vec::new();
        state.ready.retain(|(number, _)| match late.remove(number) {
            Some(waiting) => {
                unsent.push(waiting);
                false
            }
            None => true,
        });
        drop(state);
        unsent.into_iter().for_each(|waiting| waiting.give_up(false));
        late.into_values().for_each(|waiting| waiting.give_up(true));
    }

    /// Nobody asks any more. What is under way is still answered.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        (state.closed, state.up) = (true, None);
        drop(state);
        self.sender.wake();
        self.closing.notify_waiters();
    }

    /// Resolves when nobody asks any more.
    pub(crate) async fn closed(&self) {
        let told = self.closing.notified();
        if !self.is_closed() {
            told.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

/// Whether a request was still to be sent. Now it is not.
fn take_back(ready: &mut VecDeque<(u64, BytesMut)>, number: u64) -> bool {
    let place = ready.binary_search_by_key(&number, |(number, _)| *number);
    place.ok().and_then(|place| ready.remove(place)).is_some()
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

impl Content<'_> {
    fn size(&self) -> usize {
        let head = self.head.map_or(0, |head| head.parts().iter().map(|part| part.len()).sum());
        head + self.payload.len()
    }

    /// As it goes over the connection.
    fn encode(&self, inbox: &str, number: u64) -> BytesMut {
        let (size, subject) = (self.size(), self.subject);
        let room = LINE + subject.len() + inbox.len() + size;
        let mut to = BytesMut::with_capacity(room).writer();
        // Writing to memory cannot fail.
        let _ = match self.head {
            None => write!(to, "PUB {subject} {inbox}{number} {size}\r\n"),
            Some(_) => {
                let head = size - self.payload.len();
                write!(to, "HPUB {subject} {inbox}{number} {head} {size}\r\n")
            }
        };
        let mut bytes = to.into_inner();
        for part in self.head.iter().flat_map(|head| head.parts()) {
            bytes.put_slice(part);
        }
        bytes.put_slice(self.payload);
        bytes.put_slice(b"\r\n");
        bytes
    }
}

/// A request that somebody waits for.
pub(crate) struct Noted<'a> {
    desk: &'a Desk,
    number: u64,
    told: oneshot::Receiver<Answer>,
}

impl Noted<'_> {
    pub(crate) async fn answered(mut self) -> Answer {
        (&mut self.told).await.unwrap_or_else(|_| {
            Err(Trouble::Unanswered("the connection broke before the answer".into()))
        })
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        // What was told has been seen off already.
        if !self.told.is_terminated() {
            let mut state = self.desk.lock();
            state.waiting.remove(&self.number);
            // Nobody wants to know what would become of it, so it need not be sent.
            take_back(&mut state.ready, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(5);

    fn content(payload: &[u8]) -> Content<'_> {
        Content { subject: "to.somebody", head: None, payload }
    }

    fn leave<'a>(desk: &'a Desk, payload: &[u8]) -> Noted<'a> {
        desk.leave(&content(payload), LATER, LATER).unwrap().unwrap()
    }

    fn open() -> Desk {
        let desk = Desk::new("in.".into());
        assert!(desk.leave(&content(b"x"), LATER, LATER).is_none(), "there is no connection");
        desk.open(1000);
        desk
    }

    fn sent(desk: &Desk) -> String {
        let mut bytes = BytesMut::new();
        desk.take(&mut bytes);
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn requests_leave_as_they_came_and_answers_find_their_askers() {
        let desk = open();
        let (one, two) = (leave(&desk, b"1"), leave(&desk, b""));
        assert_eq!(sent(&desk), "PUB to.somebody in.1 1\r\n1\r\nPUB to.somebody in.2 0\r\n\r\n");
        assert_eq!(sent(&desk), "");
        desk.answer(2, Ok("b".into()));
        desk.answer(1, Ok("a".into()));
        assert_eq!(one.answered().await.unwrap(), "a");
        assert_eq!(two.answered().await.unwrap(), "b");
        assert!(desk.is_quiet());
        let mut head = Head::new();
        head.add("a", 1);
        let with_head = Content { head: Some(&head), ..content(b"p") };
        let _asked = desk.leave(&with_head, LATER, LATER).unwrap().unwrap();
        let expected = "HPUB to.somebody in.3 18 19\r\nNATS/1.0\r\na: 1\r\n\r\np\r\n";
        assert_eq!(sent(&desk), expected);
    }

    #[test]
    fn what_is_alone_goes_at_once_and_so_do_a_few_together() {
        let desk = open();
        assert_eq!(desk.ready(), Ready::Nothing);
        let mut asked = vec![leave(&desk, b"x")];
        assert_eq!(desk.ready(), Ready::Now);
        sent(&desk);
        asked.push(leave(&desk, b"x"));
        assert_eq!(desk.ready(), Ready::Soon);
        asked.extend((1..ENOUGH).map(|_| leave(&desk, b"x")));
        assert_eq!(desk.ready(), Ready::Now);
        drop(asked);
        assert_eq!((desk.ready(), desk.is_quiet()), (Ready::Nothing, true));
    }

    #[tokio::test]
    async fn it_is_known_what_was_not_sent() {
        let desk = open();
        let (gone, waits) = (leave(&desk, b"1"), leave(&desk, b"2"));
        let mut bytes = BytesMut::from(&vec![0; TOGETHER][..]);
        desk.take(&mut bytes);
        assert_eq!(bytes.len(), TOGETHER, "there was no room");
        drop(gone);
        assert!(sent(&desk).starts_with("PUB to.somebody in.2"), "whoever leaves is not sent for");
        let unsent = leave(&desk, b"3");
        desk.give_up(LATER);
        assert!(matches!(waits.answered().await, Err(Trouble::Unanswered(_))));
        assert!(matches!(unsent.answered().await, Err(Trouble::Unsent(_))));
        assert_eq!(sent(&desk), "");
        let was_sent = leave(&desk, b"4");
        sent(&desk);
        let unsent = leave(&desk, b"5");
        desk.lose_all();
        assert!(matches!(was_sent.answered().await, Err(Trouble::Unanswered(_))));
        assert!(matches!(unsent.answered().await, Err(Trouble::Unsent(_))));
        assert!(!desk.is_up() && sent(&desk).is_empty());
    }

    #[test]
    fn what_the_server_would_not_take_is_not_sent() {
        let desk = open();
        assert!(desk.leave(&content(&[0; 1000]), LATER, LATER).unwrap().is_ok());
        let refused = desk.leave(&content(&[0; 1001]), LATER, LATER).unwrap();
        assert!(matches!(refused, Err(Trouble::Unsent(why)) if why.contains("1001")));
    }
}
