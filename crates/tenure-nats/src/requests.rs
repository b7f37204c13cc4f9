//! Requests on one line, handed over together.
//!
//! A client that writes every request to the socket as it comes pays a call of the kernel for each,
//! here and at the server. So whoever has a request while others are under way lets everybody else
//! who is ready come first, and then hands over what all of them have left, in one go. A request that
//! is alone goes at once, and so do a few together: the server is to begin while the next come.
//!
//! Whoever hands over does so on its own runtime. So this is for a line that serves one runtime: there,
//! nobody waits for another runtime that may be blocked. Nor does anybody depend on the one whose turn
//! it is: it may be left unpolled or have its answer before it is done. What has lain here from one look
//! to the next is handed over by the look.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Request, StatusCode, Subscriber};
use bytes::Bytes;
use futures::future::{BoxFuture, Fuse, FusedFuture as _};
use futures::{FutureExt as _, StreamExt as _};
use tenure::clock::SharedClock;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::connection::{Link, Trouble};
use crate::desk::{Answer, Content, Desk, Part, Waiting};

/// How often it is looked who has waited too long. One look at all costs less than a timer for each.
const LOOK: Duration = Duration::from_millis(100);
/// How long what one has left behind may wait for the client; its askers are told after that.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// The requests of one line.
pub(crate) struct Requests {
    desk: Arc<Desk>,
    clock: SharedClock,
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
        let (desk, clock) = (Arc::new(Desk::new(client.clone(), inbox)), Arc::clone(clock));
        let sorting = sort(answers, link, Arc::clone(&desk), ended);
        let looking = look(Arc::clone(&desk), Arc::clone(&clock));
        // Sorting ends with us; nobody has to look any more then.
        let both = async move {
            tokio::select! {
                biased;
                () = sorting => {}
                () = looking => {}
            }
        };
        Ok((Self { desk, clock, _end: end }, both))
    }

    /// One request and its answer.
    pub(crate) async fn ask(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        patience: Duration,
    ) -> Answer {
        let (sender, mut answer) = oneshot::channel();
        let until = self.clock.uptime().saturating_add(patience);
        let waiting = Waiting { answer: sender, until, patience };
        let (_noted, part) = self.desk.note(waiting, (subject, headers, payload))?;
        match part {
            Part::Alone(content) => return self.ask_alone(content, answer).await,
            Part::Left => {}
            Part::Now | Part::Later => {
                let mut turn = Turn::of(&self.desk);
                if matches!(part, Part::Later) {
                    tokio::task::yield_now().await;
                }
                // A client that takes no more holds nobody up for longer than an answer may take.
                tokio::select! {
                    biased;
                    () = turn.over() => {}
                    told = &mut answer => return told.map_err(broke)?,
                }
            }
        }
        answer.await.map_err(broke)?
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
            reply = self.desk.client().send_request(subject, request) => reply.map_err(Trouble::from),
            why = given_up => why.map_err(broke)?,
        }
    }

    /// Resolves when nobody waits for an answer any more, or after this long.
    pub(crate) async fn settled(&self, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(5);
        for _ in 0..patience.as_millis() / LOOK.as_millis() {
            if self.desk.is_quiet() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The duty to hand over what is ready, also for those who came later. It outlives the one who has it.
struct Turn {
    handing: Option<BoxFuture<'static, ()>>,
}

impl Turn {
    fn of(desk: &Arc<Desk>) -> Self {
        Self { handing: Some(Box::pin(Arc::clone(desk).hand_over())) }
    }

    async fn over(&mut self) {
        if let Some(handing) = &mut self.handing {
            handing.await;
        }
        self.handing = None;
    }
}

impl Drop for Turn {
    /// Whoever had the turn went away before it was over. Others must not wait for that.
    fn drop(&mut self) {
        // Without a runtime, the next look finds what is left.
        if let (Some(handing), Ok(here)) = (self.handing.take(), Handle::try_current()) {
            here.spawn(async move { tokio::time::timeout(LEFT_BEHIND, handing).await });
        }
    }
}

fn broke(_: oneshot::error::RecvError) -> Trouble {
    Trouble::Unanswered("the connection broke before the answer".into())
}

/// Sorts answers until nobody asks any more.
async fn sort(
    mut answers: Subscriber,
    mut link: watch::Receiver<Link>,
    desk: Arc<Desk>,
    mut ended: oneshot::Receiver<()>,
) {
    let mut losses = link.borrow_and_update().losses;
    loop {
        tokio::select! {
            biased;
            message = answers.next() => match message {
                Some(message) => give(&desk, message),
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
                    desk.lose_all();
                }
            }
        }
    }
    desk.lose_all();
}

fn give(desk: &Desk, message: Message) {
    let Some(number) = desk.number(&message.subject) else { return };
    let answer = match message.status {
        Some(StatusCode::NO_RESPONDERS) => Err(Trouble::nobody()),
        _ => Ok(message),
    };
    desk.answer(number, answer);
}

/// Tells those who have waited too long, and hands over what has lain there since the look before: the
/// one whose turn it was is not polled, or waits for the client itself.
async fn look(desk: Arc<Desk>, clock: SharedClock) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let handing = Fuse::terminated();
    tokio::pin!(handing);
    let mut seen = 0;
    loop {
        // If the client takes no more, there are still those to be told who wait for it.
        tokio::select! {
            biased;
            _ = looks.tick() => {}
            () = &mut handing => continue,
        }
        desk.give_up(clock.uptime());
        let (is_left, drawn) = desk.is_left(seen);
        if is_left && handing.is_terminated() {
            handing.set(Arc::clone(&desk).hand_over().fuse());
        }
        seen = drawn;
    }
}
