//! Small calls of all callers, on one stream.
//!
//! Callers queue up; whoever tends the stream sends all that have queued in one message and hands out
//! the answers as they come. If the stream breaks, what was sent is unclear and what was not goes to the
//! next server.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure::backend::home::Home;
use tenure_proto::v1;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::error::Fault;
use crate::link::{Links, pause};
use crate::pending::{Pending, pending};
use crate::stream::{End, run};

/// Calls that may queue up; callers beyond that wait, within their time.
const QUEUE: usize = 4_096;

/// The queue.
#[derive(Clone)]
pub(crate) struct Exchange {
    queue: mpsc::Sender<Pending>,
    links: Arc<Links>,
}

impl Exchange {
    pub(crate) fn start(links: &Arc<Links>, home: &Arc<Home>) -> Self {
        let (queue, calls) = mpsc::channel(QUEUE);
        home.spawn(tend(Arc::clone(links), calls));
        Self { queue, links: Arc::clone(links) }
    }

    /// One call, and its answer.
    pub(crate) async fn call(&self, call: v1::call::Call) -> Result<v1::answer::Answer, Fault> {
        let (pending, mut caller) = pending(call);
        if self.links.is_closed() {
            return Err(closed());
        }
        let answer = async {
            match self.queue.try_send(pending) {
                Ok(()) => {}
                Err(TrySendError::Full(pending)) => {
                    self.queue.send(pending).await.map_err(|_| closed())?;
                }
                Err(TrySendError::Closed(_)) => return Err(closed()),
            }
            let answer = (&mut caller.reply).await;
            // Whoever drops a sent call without an answer cannot tell what became of it.
            let dropped = |_| match caller.give_up() {
                true => Err(closed()),
                false => Err(Fault::Unclear("it ended".into())),
            };
            answer.unwrap_or_else(dropped)
        };
        match tokio::time::timeout(self.links.options.timeout, answer).await {
            Ok(answer) => answer,
            Err(_) if caller.give_up() => Err(Fault::Elsewhere(self.links.nobody())),
            Err(_) => Err(Fault::Unclear("no answer in time".into())),
        }
    }
}

/// Keeps a stream open, to one server or the next, until the store is closed.
async fn tend(links: Arc<Links>, mut calls: mpsc::Receiver<Pending>) {
    let (mut failures, mut backlog) = (0, VecDeque::new());
    while !links.is_closed() {
        // No stream before there is something to say.
        if backlog.is_empty() {
            tokio::select! {
                biased;
                () = links.closed() => break,
                first = calls.recv() => match first {
                    Some(first) => backlog.push_back(first),
                    None => return,
                },
            }
        }
        let (server, client) = links.current();
        match run(&links, (server, client), &mut backlog, &mut calls).await {
            End::Left => {
                failures = 0;
                links.leave(server, Fault::Declined("it is shutting down".into()));
            }
            End::Outdated => failures = 0,
            End::Broken { answered, fault } => {
                failures = if answered { 0 } else { failures + 1 };
                links.leave(server, fault);
                tokio::select! {
                    () = tokio::time::sleep(pause(failures)) => {}
                    () = links.closed() => {}
                }
            }
            End::Closed => break,
        }
        backlog.retain(|pending: &Pending| !pending.is_given_up());
    }
    calls.close();
    for call in backlog {
        let _ = call.reply.send(Err(closed()));
    }
    while let Some(call) = calls.recv().await {
        let _ = call.reply.send(Err(closed()));
    }
}

fn closed() -> Fault {
    Fault::Elsewhere("the store is closed".into())
}
