//! The servers of a store: which one is used, and the move to the next one when it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::Result;
use tenure::backend::home::Home;
use tenure_proto::v1::store_client::StoreClient;
use tokio::sync::Semaphore;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::connect::{Task, channel};
use crate::error::Fault;
use crate::token::Token;
use crate::{BACKEND, Options, diagnose};

/// A page of the largest objects.
const MAX_ANSWER: usize = 1 << 30;
/// Bytes of calls that go together in one message, unless one call alone is more.
const BATCH_BYTES: usize = 256 * 1024;
/// Between attempts to find a server that answers, longer each time.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSES: u32 = 6;

/// The servers, and a connection to each.
pub(crate) struct Servers {
    pub(crate) options: Options,
    token: Option<Token>,
    channels: Vec<Channel>,
    /// The one in use.
    at: AtomicUsize,
    /// How many bytes of calls go into one message.
    batch_bytes: AtomicUsize,
    /// Why each of them failed last.
    failures: RwLock<Vec<Option<Failure>>>,
    /// Closed with the store.
    open: Semaphore,
}

/// Why a server failed.
#[derive(Clone)]
struct Failure {
    why: String,
    /// The server itself said that it does not do it.
    declined: bool,
}

impl Servers {
    pub(crate) fn new(options: Options, runtime: &Arc<Home>) -> Result<Arc<Self>> {
        let token = options.token.as_ref().map(Token::new).transpose()?;
        let tls = options.tls()?;
        let open = |server: &String| {
            channel(&options, server, tls.clone(), OnRuntime(Arc::downgrade(runtime)))
        };
        let channels = options.servers.iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Self {
            options,
            token,
            failures: RwLock::new(vec![None; channels.len()]),
            channels,
            at: AtomicUsize::new(0),
            batch_bytes: AtomicUsize::new(BATCH_BYTES),
            open: Semaphore::new(0),
        }))
    }

    /// Servers take commits of so many bytes, so no more than that goes batch_bytes.
    pub(crate) fn limit_batches(&self, commit_bytes: usize) {
        self.batch_bytes.store(commit_bytes.min(BATCH_BYTES), Ordering::Relaxed);
    }

    /// How many bytes of calls go together in one message.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batch_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.open.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.is_closed()
    }

    /// Resolves when the store is closed.
    pub(crate) async fn closed(&self) {
        // There are no permits to be had, so this ends only with the closing.
        let _ = self.open.acquire().await;
    }

    /// The server in use, and a client for it.
    pub(crate) fn current(&self) -> (usize, StoreClient<Channel>) {
        let at = self.at.load(Ordering::Relaxed) % self.channels.len();
        let client = StoreClient::new(self.channels[at].clone());
        (at, client.max_decoding_message_size(MAX_ANSWER).max_encoding_message_size(MAX_ANSWER))
    }

    /// Notes why this server failed and moves to the next one, unless another call has moved already.
    pub(crate) fn fail_over(&self, server: usize, fault: Fault) {
        let next = (server + 1) % self.channels.len();
        let _ = self.at.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
        let declined = matches!(fault, Fault::Declined(_));
        self.record(server, Some(Failure { why: fault.why(), declined }));
    }

    /// This server answers, so why it failed before explains nothing any more.
    pub(crate) fn answers(&self, server: usize) {
        self.record(server, None);
    }

    fn record(&self, server: usize, told: Option<Failure>) {
        let mut all = self.failures.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(server) {
            *known = told;
        }
    }

    fn all_failures(&self) -> Vec<(&str, Option<Failure>)> {
        let all = self.failures.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.options.servers.iter().map(String::as_str).zip(all).collect()
    }

    /// Finds out what listens where no server of ours answers.
    pub(crate) async fn diagnose(&self) {
        for (at, (server, told)) in self.all_failures().into_iter().enumerate() {
            let Some(told) = told.filter(|told| !told.declined) else { continue };
            if let Some(seen) = diagnose::probe(server, &told.why).await {
                self.record(at, Some(Failure { why: seen.into(), declined: false }));
            }
        }
    }

    /// What is shown to a server now. A stream is judged by what was shown when it began.
    pub(crate) fn shown(&self) -> Option<MetadataValue<Ascii>> {
        self.token.as_ref().map(Token::current)
    }

    /// With our token.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.shown() {
            request.metadata_mut().insert("authorization", token);
        }
        request
    }

    /// Calls one server after the other until one answers or time is up, and returns which one did. For
    /// calls that change nothing.
    pub(crate) async fn call<T, F>(
        &self,
        call: impl Fn(StoreClient<Channel>) -> F,
    ) -> std::result::Result<(usize, T), Fault>
    where
        F: Future<Output = std::result::Result<Response<T>, Status>>,
    {
        self.call_for(u32::MAX, call).await
    }

    /// The same, but for so many rounds through all servers only.
    pub(crate) async fn call_for<T, F>(
        &self,
        rounds: u32,
        call: impl Fn(StoreClient<Channel>) -> F,
    ) -> std::result::Result<(usize, T), Fault>
    where
        F: Future<Output = std::result::Result<Response<T>, Status>>,
    {
        let asking = async {
            let attempts = self.channels.len().saturating_mul(rounds as usize);
            for attempt in 0..u32::try_from(attempts).unwrap_or(u32::MAX) {
                let (server, client) = self.current();
                match call(client).await.map_err(Fault::from) {
                    Ok(response) => {
                        self.answers(server);
                        return Ok((server, response.into_inner()));
                    }
                    Err(Fault::No(error)) => return Err(Fault::No(error)),
                    Err(fault) => self.fail_over(server, fault),
                }
                tokio::time::sleep(pause(attempt)).await;
            }
            Err(Fault::NotSent(self.why_none()))
        };
        let late = || Err(Fault::NotSent(self.why_none()));
        tokio::select! {
            biased;
            answer = tokio::time::timeout(self.options.timeout, asking) => answer.unwrap_or_else(|_| late()),
            () = self.closed() => Err(Fault::NotSent("the store is closed".into())),
        }
    }

    /// Why no server does it: there is none, those that are there have said no, or they do not speak as
    /// servers do.
    pub(crate) fn why_none(&self) -> String {
        let all = self.all_failures();
        let declined = all.iter().find_map(|(server, told)| {
            told.as_ref().filter(|told| told.declined).map(|told| format!("{server}: {}", told.why))
        });
        if let Some(why) = declined {
            return format!("no server takes it at present; try again later ({why})");
        }
        let troubles = all.iter().map(|(server, told)| {
            let why = told.as_ref().map_or("", |told| &told.why);
            diagnose::explain(server, why)
        });
        let troubles: Vec<_> = troubles.collect();
        let place =
            |server: &str| server.rsplit_once('/').map_or(server, |(_, host)| host).to_owned();
        if troubles.iter().all(Option::is_none) {
            let places: Vec<_> = all.iter().map(|(server, _)| place(server)).collect();
            return format!("no server on {}; start one with `tenure serve`", places.join(", "));
        }
        let each = troubles.into_iter().zip(&all).map(|(trouble, (server, _))| {
            trouble.unwrap_or_else(|| format!("nobody listens on {}", place(server)))
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

/// A while between attempts, longer each time.
pub(crate) fn pause(attempt: u32) -> Duration {
    PAUSE * 2u32.pow(attempt.min(PAUSES))
}

/// Runs the tasks of a connection on the runtime of its transport.
#[derive(Clone)]
struct OnRuntime(std::sync::Weak<Home>);

impl hyper::rt::Executor<Task> for OnRuntime {
    fn execute(&self, task: Task) {
        if let Some(runtime) = self.0.upgrade() {
            runtime.spawn(task);
        }
    }
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(BACKEND).field("options", &self.options).finish_non_exhaustive()
    }
}
