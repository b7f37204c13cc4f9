//! One stream of keep-alives, for any number of etcd leases.
//!
//! The server answers in the order it is asked, so requests are sent without waiting for answers and
//! matched by their place. Each caller keeps its own deadline; a stream that hangs delays nobody
//! beyond it. A stream that breaks fails the calls that wait for it, and the next call opens another.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, PoisonError, Weak};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tenure::backend::home::Home;
use tokio::sync::{mpsc, oneshot};

use crate::connection::Client;
use crate::error::CallError;
use crate::messages::{LeaseLife, LeaseRequest, path};

/// Calls that wait to be sent, and those sent that wait for their answer; more wait with their callers.
const QUEUE: usize = 1024;
const UNANSWERED: usize = 4096;

/// An etcd lease that was kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    /// The server's term when it answered.
    pub(crate) term: u64,
}

/// A lease, and who waits for its keep-alive.
type Call = (i64, oneshot::Sender<Result<Renewed, CallError>>);

pub(crate) struct KeepAlives {
    client: Client,
    home: Weak<Home>,
    stream: Mutex<Option<mpsc::Sender<Call>>>,
}

impl KeepAlives {
    pub(crate) fn new(client: Client, home: Weak<Home>) -> Self {
        Self { client, home, stream: Mutex::new(None) }
    }

    /// Keeps an etcd lease alive; [`CallError::LeaseNotFound`] if it is gone.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<Renewed, CallError> {
        let broke = || CallError::TryElsewhere("the stream of keep-alives broke".into());
        let (reply, answer) = oneshot::channel();
        self.stream()?.send((lease, reply)).await.map_err(|_| broke())?;
        answer.await.map_err(|_| broke())?
    }

    /// The stream that is open, or a new one.
    fn stream(&self) -> Result<mpsc::Sender<Call>, CallError> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = stream.as_ref().filter(|stream| !stream.is_closed()) {
            return Ok(open.clone());
        }
        let home = self.home.upgrade();
        let home = home.ok_or_else(|| CallError::TryElsewhere("the store is closed".into()))?;
        let (sender, calls) = mpsc::channel(QUEUE);
        home.spawn(serve(self.client.clone(), calls));
        *stream = Some(sender.clone());
        Ok(sender)
    }
}

/// Serves one stream until it ends.
async fn serve(client: Client, mut calls: mpsc::Receiver<Call>) {
    let mut unanswered = VecDeque::new();
    let ended = exchange(&client, &mut calls, &mut unanswered).await;
    for (_, reply) in unanswered {
        // A caller that has given up does not listen any more.
        let _ = reply.send(Err(ended.clone()));
    }
}

/// Sends requests and receives answers until the stream breaks or the connection is given up.
async fn exchange(
    client: &Client,
    calls: &mut mpsc::Receiver<Call>,
    unanswered: &mut VecDeque<Call>,
) -> CallError {
    let broke = |why: &str| CallError::TryElsewhere(why.into());
    // Never full: a request that waits here is unanswered.
    let (requests, sent) = mpsc::channel(UNANSWERED);
    let sent = stream::unfold(sent, |mut sent| async { sent.recv().await.map(|id| (id, sent)) });
    // The server opens its side with the first answer only.
    let opening = stream::once(client.stream::<LeaseRequest, LeaseLife>(path::KEEP_ALIVE, sent));
    let mut answers = pin!(opening.try_flatten());
    loop {
        tokio::select! {
            answer = answers.next() => match answer {
                Some(Ok(life)) => match unanswered.pop_front() {
                    Some((id, reply)) if id == life.id => {
                        let _ = reply.send(renewed(&life));
                    }
                    _ => return broke("an answer to a keep-alive that was not asked for"),
                },
                Some(Err(error)) => return error,
                None => return broke("the server ended the keep-alives"),
            },
            call = calls.recv(), if unanswered.len() < UNANSWERED => {
                let Some(call) = call else {
                    return broke("the connection was given up");
                };
                let id = call.0;
                unanswered.push_back(call);
                if requests.try_send(LeaseRequest { id }).is_err() {
                    return broke("the stream of keep-alives broke");
                }
            }
        }
    }
}

fn renewed(life: &LeaseLife) -> Result<Renewed, CallError> {
    match life.ttl {
        ..=0 => Err(CallError::LeaseNotFound),
        1.. => Ok(Renewed { term: life.header.as_ref().map_or(0, |header| header.raft_term) }),
    }
}
