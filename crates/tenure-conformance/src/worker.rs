//! The worker process: opens the same store as the suite and does what it is told, so that races and
//! crashes happen between real processes.
//!
//! One JSON request a line on standard input, one JSON reply a line on standard output. `spam` is the
//! exception, and `both`: they answer with one line for every acknowledged commit until the process is
//! killed; and `hold` tells all it does. A worker ends when its input ends, so it never outlives the suite.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::clock::{Clock, SystemClock};
use tenure::store::{Commit, CreateOutcome, Expect, Put, Store};
use tenure::{Error, Key};

use crate::SharedTable;
use crate::crash::both::Both;
use crate::crash::script::Spam;
use crate::disguise::disguise;
use crate::holders::holder::Hold;

/// What a worker is asked to do, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Not before this instant of the host's uptime: the barrier at which all workers start.
    #[serde(default)]
    pub at_ms: u64,
    pub request: Request,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Says that the store is open.
    Ready,
    Get {
        kind: String,
        id: String,
    },
    Put {
        kind: String,
        id: String,
        value: String,
    },
    Create {
        kind: String,
        id: String,
        value: String,
    },
    Delete {
        kind: String,
        id: String,
    },
    /// Adds one to a number so many times, by compare-and-set.
    Increment {
        kind: String,
        id: String,
        times: u64,
    },
    Spam(Spam),
    Both(Both),
    Hold(Hold),
}

/// What a worker answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reply {
    /// Whether this worker was the one that did it.
    pub won: bool,
    /// How often it did it.
    pub count: u64,
    /// What it read.
    pub value: Option<String>,
    /// The revision it read or wrote.
    pub revision: u64,
    /// What went wrong.
    pub error: Option<String>,
}

/// Serves requests on standard input until it ends.
///
/// # Errors
/// Only those of standard output: whoever asked is gone.
pub async fn serve(store: Store) -> io::Result<()> {
    serve_with(store, None).await
}

pub(crate) async fn serve_with(store: Store, table: Option<SharedTable>) -> io::Result<()> {
    let store = disguise(store);
    let mut lines = input_lines();
    while let Some(line) = lines.recv().await {
        let reply = match serde_json::from_str::<Ask>(&line) {
            Ok(Ask { request: Request::Spam(spam), .. }) => return spam.run(&store, say).await,
            Ok(Ask { request: Request::Both(both), .. }) => match &table {
                Some(table) => return both.run(&store, table, say).await,
                None => return say("this worker has no table of the user's"),
            },
            Ok(Ask { request: Request::Hold(hold), .. }) => {
                return hold.run(&store, &mut lines, say).await;
            }
            Ok(ask) => {
                wait_until(ask.at_ms).await;
                answer(&store, ask.request).await.unwrap_or_else(|error| Reply {
                    error: Some(error.to_string()),
                    ..Reply::default()
                })
            }
            Err(error) => Reply { error: Some(error.to_string()), ..Reply::default() },
        };
        say(&serde_json::to_string(&reply)?)?;
    }
    store.close().await;
    Ok(())
}

/// Lines from a thread of their own: a read that never returns must not hold up the runtime's end.
fn input_lines() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// One line, in one write: a pipe takes that whole or not at all, whenever the process is killed.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}

async fn wait_until(at_ms: u64) {
    let at = Duration::from_millis(at_ms);
    loop {
        let left = at.saturating_sub(SystemClock.uptime());
        match left {
            Duration::ZERO => return,
            // The last stretch is spun away, so that all workers start within microseconds.
            left if left < Duration::from_millis(3) => std::hint::spin_loop(),
            left => tokio::time::sleep(left - Duration::from_millis(2)).await,
        }
    }
}

async fn answer(store: &Store, request: Request) -> tenure::Result<Reply> {
    let mut reply = Reply::default();
    match request {
        Request::Ready | Request::Spam(_) | Request::Both(_) | Request::Hold(_) => {
            reply.won = true;
        }
        Request::Get { kind, id } => {
            if let Some(object) = store.get(&Key::new(kind, id)).await? {
                reply.value = Some(String::from_utf8_lossy(&object.payload).into_owned());
                reply.revision = object.revision;
            }
        }
        Request::Put { kind, id, value } => {
            let done = store.commit(Put::new(Key::new(kind, id), value)).await?;
            reply.revision = done.revision.unwrap_or_default();
        }
        Request::Create { kind, id, value } => {
            match store.create_if_absent(&Key::new(kind, id), value, None).await? {
                CreateOutcome::Created(result) => {
                    (reply.won, reply.revision) = (true, result.revision);
                }
                CreateOutcome::Exists(current) => reply.revision = current.revision,
            }
        }
        Request::Delete { kind, id } => {
            let delete = Commit::new().delete(Key::new(kind, id), Expect::Exists);
            reply.won = match store.commit(delete).await {
                Ok(_) => true,
                Err(Error::NotFound { .. }) => false,
                Err(error) => return Err(error),
            };
        }
        Request::Increment { kind, id, times } => {
            let key = Key::new(kind, id);
            while reply.count < times {
                crate::helpers::increment(store, &key).await?;
                reply.count += 1;
            }
        }
    }
    Ok(reply)
}
