//! One stream of keep-alives, for any number of etcd leases.
//!
//! The server answers in the order it is asked, so questions are sent without waiting for answers
//! and matched by their place. Whoever asks keeps its own deadline: a stream that hangs makes nobody
//! wait longer than it wants to. A stream that breaks fails what waits for it, and the next question
//! opens another.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::stream;
use tokio::sync::{mpsc, oneshot};

use crate::error::Fault;
use crate::grpc::Wire;
use crate::wire::{LeaseLife, LeaseRequest, path};
use tenure::backend::home::Home;

/// Questions that wait to be sent; more wait with whoever asks.
const QUEUE: usize = 1024;

/// An etcd lease that was kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    /// The server's term when it answered.
    pub(crate) term: u64,
}

type Reply = oneshot::Sender<Result<Renewed, Fault>>;
type Ask = (i64, Reply);
type Waiting = Arc<Mutex<VecDeque<Ask>>>;

pub(crate) struct Keeper {
    wire: Wire,
    home: Weak<Home>,
    asks: Mutex<Option<mpsc::Sender<Ask>>>,
}

impl Keeper {
    pub(crate) fn new(wire: Wire, home: Weak<Home>) -> Self {
        Self { wire, home, asks: Mutex::new(None) }
    }

    /// Keeps an etcd lease alive; [`Fault::NoLease`] if it is gone.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<Renewed, Fault> {
        let broke = || Fault::Elsewhere("the stream of keep-alives broke".into());
        let (reply, answer) = oneshot::channel();
        self.asks()?.send((lease, reply)).await.map_err(|_| broke())?;
        answer.await.map_err(|_| broke())?
    }

    fn asks(&self) -> Result<mpsc::Sender<Ask>, Fault> {
        let mut asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = asks.as_ref().filter(|asks| !asks.is_closed()) {
            return Ok(open.clone());
        }
        let home = self.home.upgrade();
        let home = home.ok_or_else(|| Fault::Elsewhere("the store is closed".into()))?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        home.spawn(serve(self.wire.clone(), receiver));
        *asks = Some(sender.clone());
        Ok(sender)
    }
}

/// Serves one stream until it ends.
async fn serve(wire: Wire, mut asks: mpsc::Receiver<Ask>) {
    let waiting = Waiting::default();
    let noted = Arc::clone(&waiting);
    // Sent as fast as the connection takes them; whoever is sent is noted first.
    let questions = stream::poll_fn(move |cx| {
        asks.poll_recv(cx).map(|ask| {
            ask.map(|ask| {
                let id = ask.0;
                noted.lock().unwrap_or_else(PoisonError::into_inner).push_back(ask);
                LeaseRequest { id }
            })
        })
    });
    let ended = answer(&wire, questions, &waiting).await;
    let left = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
    for (_, reply) in left {
        // Whoever has given up does not listen any more.
        let _ = reply.send(Err(ended.clone()));
    }
}

async fn answer(
    wire: &Wire,
    questions: impl futures::Stream<Item = LeaseRequest> + Send + 'static,
    waiting: &Waiting,
) -> Fault {
    let mut answers = match wire.stream::<_, LeaseLife>(path::KEEP_ALIVE, questions).await {
        Ok(answers) => answers,
        Err(fault) => return fault,
    };
    loop {
        let life = match answers.message().await {
            Ok(Some(life)) => life,
            Ok(None) => return Fault::Elsewhere("the server ended the keep-alives".into()),
            Err(fault) => return fault,
        };
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some((id, reply)) = next.filter(|(id, _)| *id == life.id) else {
            return Fault::Elsewhere("the server answered a keep-alive that nobody asked".into());
        };
        let term = life.header.map_or(0, |header| header.raft_term);
        tracing::trace!(lease = id, ttl = life.ttl, "kept alive");
        let _ = reply.send(match life.ttl {
            ..=0 => Err(Fault::NoLease),
            1.. => Ok(Renewed { term }),
        });
    }
}
