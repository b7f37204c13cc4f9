//! One stream to one server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashMapExt as _};
use tenure_proto::v1;
use tenure_proto::v1::store_client::StoreClient;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::error::Fault;
use crate::pending::{Pending, Reply};
use crate::servers::Servers;

/// Calls in one message at most.
const TOGETHER: usize = 512;
/// How long a stream that is gone gets to say why.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Messages on their way before the server takes them.
const UNSENT: usize = 4;

/// How a stream ended.
pub(crate) enum End {
    /// The server is leaving; what was sent is still being answered.
    Left,
    /// There is another token to show; what was sent is still being answered.
    Outdated,
    /// It broke, or was never made.
    Broken {
        /// Whether it was of any use.
        answered: bool,
        /// What went wrong.
        fault: Fault,
    },
    /// The store is closed.
    Closed,
}

type Waiting = HashMap<u64, oneshot::Sender<Reply>>;

/// Sends calls and hands out answers until the stream ends. What is in `backlog` goes first; what could
/// not be sent is there in the end. Answers are taken while a message waits to leave: a server that is
/// held up by its answers takes no calls.
pub(crate) async fn run(
    servers: &Arc<Servers>,
    (server, mut client): (usize, StoreClient<Channel>),
    backlog: &mut VecDeque<Pending>,
    calls: &mut mpsc::Receiver<Pending>,
) -> End {
    let (outgoing, messages) = mpsc::channel::<v1::ExchangeRequest>(UNSENT);
    let shown = servers.shown();
    let request = servers.request(ReceiverStream::new(messages));
    let opened = tokio::select! {
        biased;
        () = servers.closed() => return End::Closed,
        opened = open(servers, client.exchange(request)) => opened,
    };
    let mut incoming = match opened {
        Ok(incoming) => {
            servers.answers(server);
            incoming
        }
        Err(fault) => {
            if matches!(fault, Fault::No(_)) {
                for pending in backlog.drain(..) {
                    let _ = pending.reply.send(Err(fault.clone()));
                }
            }
            return End::Broken { answered: false, fault };
        }
    };
    let mut stream = Stream { waiting: HashMap::new(), next: 0 };
    let (mut ready, mut answered) = (Vec::new(), false);
    loop {
        tokio::select! {
            biased;
            () = servers.closed() => {
                drain(servers, stream, incoming);
                return End::Closed;
            }
            message = incoming.message() => match message {
                Ok(Some(message)) => {
                    answered = true;
                    let leaving = message.leaving;
                    hand_out(&mut stream.waiting, message);
                    if leaving {
                        drain(servers, stream, incoming);
                        return End::Left;
                    }
                }
                Ok(None) => return stream.broken(answered, "the server ended the stream".into()),
                Err(status) => return stream.broken(answered, crate::error::describe(&status)),
            },
            place = outgoing.reserve(), if !backlog.is_empty() => match place {
                Ok(_) if servers.shown() != shown => {
                    drain(servers, stream, incoming);
                    return End::Outdated;
                }
                Ok(place) => {
                    if let Some(message) = stream.message(backlog, servers.batch_bytes()) {
                        place.send(message);
                    }
                }
                // Why, the answers will tell.
                Err(_) => return stream.gone(answered, incoming).await,
            },
            count = calls.recv_many(&mut ready, TOGETHER), if backlog.len() < TOGETHER => {
                if count == 0 {
                    return End::Closed;
                }
                backlog.extend(ready.drain(..));
                gather(backlog, calls).await;
            }
        }
    }
}

/// Lets those who are about to call come along: callers that were answered together come back together,
/// and one message costs much the same as another. One turn of the runtime, and no more: while some of
/// them are on their way, the server has work.
async fn gather(backlog: &mut VecDeque<Pending>, calls: &mut mpsc::Receiver<Pending>) {
    tokio::task::yield_now().await;
    while backlog.len() < TOGETHER
        && let Ok(another) = calls.try_recv()
    {
        backlog.push_back(another);
    }
}

/// Opens the stream, unless that takes too long.
async fn open(
    servers: &Servers,
    opening: impl Future<
        Output = Result<tonic::Response<Streaming<v1::ExchangeResponse>>, tonic::Status>,
    >,
) -> Result<Streaming<v1::ExchangeResponse>, Fault> {
    match tokio::time::timeout(servers.options.timeout, opening).await {
        Ok(opened) => Ok(opened?.into_inner()),
        Err(_) => Err(Fault::Unknown("it did not open in time".into())),
    }
}

/// Nothing more is sent; what was sent is still answered, for as long as anybody waits for it.
fn drain(servers: &Servers, stream: Stream, mut incoming: Streaming<v1::ExchangeResponse>) {
    let (mut waiting, patience) = (stream.waiting, servers.options.timeout);
    tokio::spawn(async move {
        let answers = async {
            while !waiting.is_empty() {
                match incoming.message().await {
                    Ok(Some(message)) => hand_out(&mut waiting, message),
                    Ok(None) | Err(_) => break,
                }
            }
        };
        let _ = tokio::time::timeout(patience, answers).await;
        fail(&mut waiting, &Fault::Unknown("the server left before it answered".into()));
    });
}

/// What has been sent and not been answered.
struct Stream {
    waiting: Waiting,
    next: u64,
}

impl Stream {
    /// The next message: as many calls as go together, in number and in bytes, less those that were given
    /// up.
    fn message(
        &mut self,
        backlog: &mut VecDeque<Pending>,
        most: usize,
    ) -> Option<v1::ExchangeRequest> {
        let (mut calls, mut bytes) = (Vec::new(), 0);
        while calls.len() < TOGETHER
            && let Some(pending) = backlog.front()
        {
            bytes += pending.call.encoded_len();
            if bytes > most && !calls.is_empty() {
                break;
            }
            let Some(pending) = backlog.pop_front() else { break };
            if !pending.leaves() {
                continue;
            }
            self.next += 1;
            calls.push(v1::Call { id: self.next, call: Some(pending.call) });
            self.waiting.insert(self.next, pending.reply);
        }
        (!calls.is_empty()).then_some(v1::ExchangeRequest { calls })
    }

    /// The server takes no more messages. What it says last may be answers, and why.
    async fn gone(mut self, answered: bool, mut incoming: Streaming<v1::ExchangeResponse>) -> End {
        let last_words = async {
            loop {
                match incoming.message().await {
                    Ok(Some(message)) => hand_out(&mut self.waiting, message),
                    Ok(None) => break "the server ended the stream".into(),
                    Err(status) => break crate::error::describe(&status),
                }
            }
        };
        let why = tokio::time::timeout(LAST_WORDS, last_words).await;
        self.broken(answered, why.unwrap_or_else(|_| "the stream is gone".into()))
    }

    fn broken(mut self, answered: bool, why: String) -> End {
        let fault = Fault::Unknown(why);
        fail(&mut self.waiting, &fault);
        End::Broken { answered, fault }
    }
}

fn hand_out(waiting: &mut Waiting, message: v1::ExchangeResponse) {
    for answer in message.answers {
        let Some(reply) = waiting.remove(&answer.id) else { continue };
        let answer = match answer.answer {
            Some(v1::answer::Answer::Error(error)) => {
                Err(Fault::from(tenure_proto::status::status(*error)))
            }
            Some(answer) => Ok(answer),
            None => Err(Fault::Unknown("the server's answer is empty".into())),
        };
        let _ = reply.send(answer);
    }
}

fn fail(waiting: &mut Waiting, fault: &Fault) {
    for (_, reply) in waiting.drain() {
        let _ = reply.send(Err(fault.clone()));
    }
}
