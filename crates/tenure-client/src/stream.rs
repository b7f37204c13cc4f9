//! One stream to one server.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_proto::v1;
use tenure_proto::v1::store_client::StoreClient;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::error::Fault;
use crate::link::Links;
use crate::pending::{Pending, Reply};

/// Calls in one message at most.
const TOGETHER: usize = 512;
/// Messages on their way before the server takes them.
const UNSENT: usize = 4;

/// How a stream ended.
pub(crate) enum End {
    /// The server is leaving; what was sent is still being answered.
    Left,
    /// It broke, or was never made.
    Broken {
        /// Whether it was of any use.
        answered: bool,
        /// What went wrong.
        why: String,
    },
    /// The store is closed.
    Closed,
}

type Waiting = HashMap<u64, oneshot::Sender<Reply>>;

/// Sends calls and hands out answers until the stream ends. What is in `backlog` goes first, and stays
/// there if no stream can be had.
pub(crate) async fn run(
    links: &Arc<Links>,
    mut client: StoreClient<Channel>,
    backlog: &mut Vec<Pending>,
    calls: &mut mpsc::Receiver<Pending>,
) -> End {
    let (outgoing, messages) = mpsc::channel::<v1::ExchangeRequest>(UNSENT);
    let mut stream = Stream { waiting: HashMap::new(), next: 0, outgoing };
    let request = links.request(ReceiverStream::new(messages));
    let mut incoming = match open(links, client.exchange(request)).await {
        Ok(incoming) => incoming,
        Err(Fault::Elsewhere(why) | Fault::Unclear(why)) => {
            return End::Broken { answered: false, why };
        }
        Err(Fault::No(error)) => {
            let why = error.to_string();
            for pending in backlog.drain(..) {
                let _ = pending.reply.send(Err(Fault::No(error.clone())));
            }
            return End::Broken { answered: false, why };
        }
    };
    if stream.send(std::mem::take(backlog)).await.is_err() {
        return stream.broken(false, "the stream is gone".into());
    }
    let (mut ready, mut answered) = (Vec::new(), false);
    loop {
        tokio::select! {
            biased;
            () = links.closed() => {
                drain(stream, incoming);
                return End::Closed;
            }
            message = incoming.message() => match message {
                Ok(Some(message)) => {
                    answered = true;
                    let leaving = message.leaving;
                    stream.hand_out(message);
                    if leaving {
                        drain(stream, incoming);
                        return End::Left;
                    }
                }
                Ok(None) => return stream.broken(answered, "the server ended the stream".into()),
                Err(status) => return stream.broken(answered, crate::error::describe(&status)),
            },
            count = calls.recv_many(&mut ready, TOGETHER) => {
                if count == 0 {
                    return End::Closed;
                }
                if stream.send(std::mem::take(&mut ready)).await.is_err() {
                    return stream.broken(answered, "the stream is gone".into());
                }
            }
        }
    }
}

/// Opens the stream, unless that takes too long.
async fn open(
    links: &Links,
    opening: impl Future<
        Output = Result<tonic::Response<Streaming<v1::ExchangeResponse>>, tonic::Status>,
    >,
) -> Result<Streaming<v1::ExchangeResponse>, Fault> {
    match tokio::time::timeout(links.options.timeout, opening).await {
        Ok(opened) => Ok(opened?.into_inner()),
        Err(_) => Err(Fault::Unclear("it did not open in time".into())),
    }
}

/// Nothing more is sent; what was sent is still answered.
fn drain(stream: Stream, mut incoming: Streaming<v1::ExchangeResponse>) {
    let Stream { mut waiting, outgoing, .. } = stream;
    drop(outgoing);
    tokio::spawn(async move {
        while !waiting.is_empty() {
            match incoming.message().await {
                Ok(Some(message)) => hand_out(&mut waiting, message),
                Ok(None) | Err(_) => break,
            }
        }
        fail(&mut waiting, &Fault::Unclear("the server left before it answered".into()));
    });
}

/// What has been sent and not been answered.
struct Stream {
    waiting: Waiting,
    next: u64,
    outgoing: mpsc::Sender<v1::ExchangeRequest>,
}

impl Stream {
    /// Sends calls in one message, less those that were given up.
    async fn send(&mut self, ready: Vec<Pending>) -> Result<(), ()> {
        let mut calls = Vec::with_capacity(ready.len());
        for pending in ready {
            if !pending.leaves() {
                continue;
            }
            self.next += 1;
            calls.push(v1::Call { id: self.next, call: Some(pending.call) });
            self.waiting.insert(self.next, pending.reply);
        }
        if calls.is_empty() {
            return Ok(());
        }
        self.outgoing.send(v1::ExchangeRequest { calls }).await.map_err(|_| ())
    }

    fn hand_out(&mut self, message: v1::ExchangeResponse) {
        hand_out(&mut self.waiting, message);
    }

    fn fail(&mut self, fault: &Fault) {
        fail(&mut self.waiting, fault);
    }

    fn broken(mut self, answered: bool, why: String) -> End {
        self.fail(&Fault::Unclear(why.clone()));
        End::Broken { answered, why }
    }
}

fn hand_out(waiting: &mut Waiting, message: v1::ExchangeResponse) {
    for answer in message.answers {
        let Some(reply) = waiting.remove(&answer.id) else { continue };
        let answer = match answer.answer {
            Some(v1::answer::Answer::Error(error)) => {
                Err(Fault::from(tenure_proto::status::status(error)))
            }
            Some(answer) => Ok(answer),
            None => Err(Fault::Unclear("the server's answer is empty".into())),
        };
        let _ = reply.send(answer);
    }
}

fn fail(waiting: &mut Waiting, fault: &Fault) {
    for (_, reply) in waiting.drain() {
        let _ = reply.send(Err(fault.clone()));
    }
}
