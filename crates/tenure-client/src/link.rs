//! Which server is used, and the move to another one when it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::backend::home::Home;
use tenure::{Error, Result};
use tenure_proto::v1::store_client::StoreClient;
use tokio::sync::Semaphore;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::error::Fault;
use crate::token::Token;
use crate::{BACKEND, Options, trouble};

/// Whether the server is still there is asked this often, and an answer expected this soon: one that is
/// frozen or cut off is left within the sum, so that leases of some seconds outlive it.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// What one watch may leave unread before the server holds back.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// So large that watches nobody reads do not hold up the others on their connection.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// A page of the largest objects.
const MAX_ANSWER: usize = 1 << 30;
/// Bytes of calls that go together in one message, unless one call alone is more.
const TOGETHER: usize = 256 * 1024;
/// Between attempts to find a server that answers, longer each time.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSES: u32 = 6;

/// The connections of one way.
pub(crate) struct Links {
    pub(crate) options: Options,
    token: Option<Token>,
    channels: Vec<Channel>,
    /// The one in use.
    at: AtomicUsize,
    /// How many bytes of calls go together.
    together: AtomicUsize,
    /// What each of them had to say when it failed.
    told: RwLock<Vec<Option<Told>>>,
    /// Closed with the store.
    open: Semaphore,
}

/// What a server that failed had to say.
#[derive(Clone)]
struct Told {
    why: String,
    /// It was there to say it.
    declined: bool,
}

impl Links {
    pub(crate) fn new(options: Options, home: &Arc<Home>) -> Result<Arc<Self>> {
        let token = options.token.as_ref().map(Token::new).transpose()?;
        let channels = options
            .servers
            .iter()
            .map(|server| channel(&options, server, home))
            .collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Self {
            options,
            token,
            told: RwLock::new(vec![None; channels.len()]),
            channels,
            at: AtomicUsize::new(0),
            together: AtomicUsize::new(TOGETHER),
            open: Semaphore::new(0),
        }))
    }

    /// Servers take commits of so many bytes, so no more than that goes together.
    pub(crate) fn take_at_most(&self, commit_bytes: usize) {
        self.together.store(commit_bytes.min(TOGETHER), Ordering::Relaxed);
    }

    /// How many bytes of calls go together in one message.
    pub(crate) fn together(&self) -> usize {
        self.together.load(Ordering::Relaxed)
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

    /// This server did not do: the next one is used, unless somebody has moved on already.
    pub(crate) fn leave(&self, server: usize, fault: Fault) {
        let next = (server + 1) % self.channels.len();
        let _ = self.at.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
        let declined = matches!(fault, Fault::Declined(_));
        self.note(server, Some(Told { why: fault.why(), declined }));
    }

    /// This server answers: what was wrong with it before is no explanation any more.
    pub(crate) fn well(&self, server: usize) {
        self.note(server, None);
    }

    fn note(&self, server: usize, told: Option<Told>) {
        let mut all = self.told.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(server) {
            *known = told;
        }
    }

    fn all_told(&self) -> Vec<(&str, Option<Told>)> {
        let all = self.told.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.options.servers.iter().map(String::as_str).zip(all).collect()
    }

    /// Finds out what it is that listens where no server of ours answers.
    pub(crate) async fn look_closer(&self) {
        for (at, (server, told)) in self.all_told().into_iter().enumerate() {
            let Some(told) = told.filter(|told| !told.declined) else { continue };
            if let Some(seen) = trouble::look_closer(server, &told.why).await {
                self.note(at, Some(Told { why: seen.into(), declined: false }));
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

    /// Asks one server after the other until one answers, or time is up, and tells which one did. For
    /// calls that change nothing.
    pub(crate) async fn ask<T, F>(
        &self,
        call: impl Fn(StoreClient<Channel>) -> F,
    ) -> std::result::Result<(usize, T), Fault>
    where
        F: Future<Output = std::result::Result<Response<T>, Status>>,
    {
        self.ask_often(u32::MAX, call).await
    }

    /// The same, but for so many rounds through all servers only.
    pub(crate) async fn ask_often<T, F>(
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
                        self.well(server);
                        return Ok((server, response.into_inner()));
                    }
                    Err(Fault::No(error)) => return Err(Fault::No(error)),
                    Err(fault) => self.leave(server, fault),
                }
                tokio::time::sleep(pause(attempt)).await;
            }
            Err(Fault::Elsewhere(self.nobody()))
        };
        let late = || Err(Fault::Elsewhere(self.nobody()));
        tokio::select! {
            biased;
            answer = tokio::time::timeout(self.options.timeout, asking) => answer.unwrap_or_else(|_| late()),
            () = self.closed() => Err(Fault::Elsewhere("the store is closed".into())),
        }
    }

    /// What to say if no server does it: none is there at all, those that are have said no, or they cannot
    /// be spoken to.
    pub(crate) fn nobody(&self) -> String {
        let all = self.all_told();
        let declined = all.iter().find_map(|(server, told)| {
            told.as_ref().filter(|told| told.declined).map(|told| format!("{server}: {}", told.why))
        });
        if let Some(why) = declined {
            return format!("no server takes it at present; try again later ({why})");
        }
        let troubles = all.iter().map(|(server, told)| {
            let why = told.as_ref().map_or("", |told| &told.why);
            trouble::explain(server, why)
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

/// A connection that is made when it is first used, and made again when it breaks. Its work runs
/// where its way is tended.
fn channel(options: &Options, server: &str, home: &Arc<Home>) -> Result<Channel> {
    let wrong = |error: tonic::transport::Error| {
        Error::invalid(format!("server {server:?}"), format!("{error}"))
    };
    let mut endpoint = Endpoint::from_shared(server.to_owned())
        .map_err(wrong)?
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .executor(OnHome(Arc::downgrade(home)));
    if let Some(tls) = options.tls() {
        endpoint = endpoint.tls_config(tls).map_err(wrong)?;
    }
    Ok(endpoint.connect_lazy())
}

/// Runs what a connection needs where its way is tended.
#[derive(Clone)]
struct OnHome(std::sync::Weak<Home>);

impl<F> hyper::rt::Executor<F> for OnHome
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        if let Some(home) = self.0.upgrade() {
            home.spawn(work);
        }
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(BACKEND).field("options", &self.options).finish_non_exhaustive()
    }
}
