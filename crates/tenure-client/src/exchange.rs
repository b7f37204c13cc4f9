//! Small calls of all callers, on one stream.
//!
//! Callers put their calls into a queue. One task sends all queued calls in one message and hands out the
//! answers as they come. If the stream breaks, the outcome of calls that were sent is unknown; calls that
//! were not sent go to the next server.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure::backend::home::Home;
use tenure_proto::v1;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::error::Fault;
use crate::pending::{Pending, pending};
use crate::servers::{Servers, pause};
use crate::stream::{End, run};

/// Calls that may queue up; callers beyond that wait, within their time.
const QUEUE: usize = 4_096;

/// The queue.
#[derive(Clone)]
pub(crate) struct Exchange {
    queue: mpsc::Sender<Pending>,
    servers: Arc<Servers>,
}

impl Exchange {
    pub(crate) fn start(servers: &Arc<Servers>, runtime: &Arc<Home>) -> Self {
        let (queue, calls) = mpsc::channel(QUEUE);
        runtime.spawn(run_stream(Arc::clone(servers), calls));
        Self { queue, servers: Arc::clone(servers) }
    }

    /// One call, and its answer.
    pub(crate) async fn call(&self, call: v1::call::Call) -> Result<v1::answer::Answer, Fault> {
        let (pending, mut caller) = pending(call);
        if self.servers.is_closed() {
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
            // The outcome of a call that was sent and dropped without an answer is unknown.
            let dropped = |_| match caller.give_up() {
                true => Err(closed()),
                false => Err(Fault::Unknown("it ended".into())),
            };
            answer.unwrap_or_else(dropped)
        };
        match tokio::time::timeout(self.servers.options.timeout, answer).await {
            Ok(answer) => answer,
            Err(_) if caller.give_up() => Err(Fault::NotSent(self.servers.why_none())),
            Err(_) => Err(Fault::Unknown("no answer in time".into())),
        }
    }
}

/// Keeps a stream open, to one server or the next, until the store is closed.
async fn run_stream(servers: Arc<Servers>, mut calls: mpsc::Receiver<Pending>) {
    let (mut failures, mut backlog) = (0, VecDeque::new());
    while !servers.is_closed() {
        // No stream before there is something to say.
        if backlog.is_empty() {
            tokio::select! {
                biased;
                () = servers.closed() => break,
                first = calls.recv() => match first {
                    Some(first) => backlog.push_back(first),
                    None => return,
                },
            }
        }
        let (server, client) = servers.current();
        match run(&servers, (server, client), &mut backlog, &mut calls).await {
            End::Left => {
                failures = 0;
                servers.fail_over(server, Fault::Declined("it is shutting down".into()));
            }
            End::Outdated => failures = 0,
            End::Broken { answered, fault } => {
                failures = if answered { 0 } else { failures + 1 };
                servers.fail_over(server, fault);
                tokio::select! {
                    () = tokio::time::sleep(pause(failures)) => {}
                    () = servers.closed() => {}
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
    Fault::NotSent("the store is closed".into())
}
