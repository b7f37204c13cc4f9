//! One connection to the servers, and the question that decides everything: was it sent?
//!
//! The client reconnects by itself and keeps what it was given meanwhile. So a request that was
//! handed over may reach the server at any later time; only what was never handed over, or what the
//! servers themselves refused, is known not to have happened.
//!
//! There are two ways to the servers. The client library lives on a thread of its own, so that renewals
//! and news go on while the caller's runtime is busy or blocked. The [`Wire`] lives on the runtime that
//! opened the store and serves requests made there: it saves a change of threads on the way out and back,
//! and whoever asks on a runtime is proof that it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tenure::{Error, Result};
use tokio::sync::watch;

use crate::BACKEND;
use crate::credentials::Credentials;
use crate::elsewhere::Elsewhere;
use crate::options::Options;
use crate::subject::Subjects;
use crate::time::ServerTime;
use crate::url::{Login, Target};
use crate::wire::{Answer, Content, Dial, Wire};
use tenure::backend::home::Home;

/// A read is asked again after this long without an answer: its leader may just have changed.
const ASK_AGAIN: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(50);
/// Between looks whether all requests are answered.
const SETTLED: Duration = Duration::from_millis(5);
/// A server that is silent for this long is asked for a sign of life. After three times as long it is
/// left for another one: a lease of ten seconds survives that. Any server that runs gives the sign at
/// once, however long its disks take; one that does not is left no more often than that.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How often in a row such a sign may be missing.
pub(crate) const SILENCES: u32 = 3;

/// Whether the connection is there, and how often it was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) up: bool,
    pub(crate) losses: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Nothing can have happened.
    Unsent(String),
    /// It may have happened, or may happen yet.
    Unanswered(String),
}

impl From<RequestError> for Trouble {
    fn from(error: RequestError) -> Self {
        match error.kind() {
            RequestErrorKind::NoResponders => Self::nobody(),
            RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => {
                Self::Unsent(format!("the request was refused by the client: {error}"))
            }
            _ => Self::Unanswered(format!("no answer: {error}")),
        }
    }
}

impl Trouble {
    /// Nobody was there to hear it.
    pub(crate) fn nobody() -> Self {
        let why =
            "no server answers for the bucket: it has no leader at present, or JetStream is off";
        Self::Unsent(why.into())
    }

    fn reason(self) -> String {
        match self {
            Self::Unsent(reason) | Self::Unanswered(reason) => reason,
        }
    }

    /// What it means for a request that changes nothing.
    pub(crate) fn for_read(self) -> Error {
        Error::unavailable(BACKEND, self.reason())
    }

    /// What it means for a request that changes something.
    pub(crate) fn for_write(self) -> Error {
        match self {
            Self::Unsent(reason) => Error::unavailable(BACKEND, reason),
            Self::Unanswered(reason) => Error::unknown(BACKEND, reason),
        }
    }
}

/// One connection, and whether it is there.
pub(crate) struct Line {
    pub(crate) client: Client,
    pub(crate) link: watch::Receiver<Link>,
}

/// The connections of one store.
pub(crate) struct Connection {
    pub(crate) line: Line,
    wire: Wire,
    pub(crate) subjects: Subjects,
    pub(crate) options: Options,
    pub(crate) time: ServerTime,
    pub(crate) home: Home,
    /// How many servers keep the bucket, as its leader last said; 0 before that.
    pub(crate) replicas: AtomicUsize,
    /// Whether its leader said that it is in a cluster.
    pub(crate) clustered: AtomicBool,
    closed: AtomicBool,
    /// Requests that went through the client library and wait for their answers.
    under_way: Arc<()>,
}

impl Connection {
    pub(crate) async fn open(target: &Target, options: Options) -> Result<Self> {
        let home = Home::start(BACKEND)?;
        let credentials = options.credentials.as_deref().map(Credentials::open).transpose()?;
        let credentials = credentials.map(Arc::new);
        let settings = settings(target, &options, credentials.clone());
        let line = Line::open(target, &options, settings, &home).await?;
        let dial = Dial::new(target, &options, credentials, &line.client);
        let wire = Wire::open(dial, options.clock.clone());
        let (subjects, time) =
            (Subjects::new(&target.bucket), ServerTime::new(options.clock.clone()));
        let (replicas, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (clustered, under_way) = (AtomicBool::new(false), Arc::new(()));
        Ok(Self {
            line,
            wire,
            subjects,
            options,
            time,
            home,
            replicas,
            clustered,
            closed,
            under_way,
        })
    }

    /// Sends what was handed over and hangs up; whoever waits for an answer still gets it.
    pub(crate) async fn hang_up(&self) {
        self.wire.close();
        for _ in 0..self.options.reply_timeout.as_millis() / SETTLED.as_millis() {
            if self.wire.is_quiet() && Arc::strong_count(&self.under_way) == 1 {
                break;
            }
            tokio::time::sleep(SETTLED).await;
        }
        if let Err(error) = self.line.client.drain().await {
            tracing::debug!(%error, "the connection was gone already");
        }
    }

    /// Nothing is asked from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether a request from here would leave at once.
    pub(crate) fn is_up(&self) -> bool {
        (self.wire.is_here() && self.wire.is_up()) || self.line.link.borrow().up
    }

    /// How many servers keep the bucket.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed)
    }

    /// Whether several servers may keep the bucket. How many do may change at any time without our
    /// being told; a server that is in a cluster was started so.
    pub(crate) fn is_clustered(&self) -> bool {
        self.clustered.load(Ordering::Relaxed) || self.line.client.server_info().cluster.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// One request and its answer. Waits for a lost connection to come back before it sends, not
    /// after.
    pub(crate) async fn ask(&self, content: &Content<'_>, patience: Duration) -> Answer {
        if self.is_closed() {
            return Err(Trouble::Unsent("the store was closed".into()));
        }
        if self.wire.is_here()
            && let Some(answer) = self.wire.ask(content, patience).await
        {
            return answer;
        }
        let _under_way = Arc::clone(&self.under_way);
        Box::pin(self.line.ask(content, patience, &self.time)).await
    }

    /// Asks the leader of the bucket something that changes nothing, again if need be.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        payload: &serde_json::Value,
    ) -> Result<T> {
        let subject = format!("$JS.API.{endpoint}.{}", self.subjects.stream());
        let payload = payload.to_string();
        let content = Content { subject: &subject, head: None, payload: payload.as_bytes() };
        let until = self.time.uptime() + self.options.reply_timeout;
        loop {
            let left = until.saturating_sub(self.time.uptime());
            let patience = left.min(ASK_AGAIN);
            let trouble = match self.ask(&content, patience).await {
                Ok(reply) => return parse(&reply),
                Err(trouble) => trouble,
            };
            if self.is_closed() || self.time.uptime() + PAUSE >= until {
                return Err(trouble.for_read());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Waits for a lost connection.
async fn back(link: &mut watch::Receiver<Link>, patience: Duration) -> Result<(), Trouble> {
    let lost = || Trouble::Unsent("the connection is lost and not back yet".into());
    let back = tokio::time::timeout(patience, link.wait_for(|link| link.up)).await;
    back.map_err(|_| lost())?.map(drop).map_err(|_| lost())
}

impl Line {
    /// Connects on a thread of its own.
    async fn open(
        target: &Target,
        options: &Options,
        (settings, link): (ConnectOptions, watch::Receiver<Link>),
        home: &Home,
    ) -> Result<Self> {
        let servers = target.servers.clone();
        let connecting = home.spawn(async move { settings.connect(servers).await });
        let patience = options.connect_timeout * 2;
        match tokio::time::timeout(patience, connecting).await {
            Ok(Ok(Ok(client))) => Ok(Self { client, link }),
            Ok(Ok(Err(error))) => Err(unreachable(target, options, &error)),
            Ok(Err(error)) => Err(Error::unavailable(BACKEND, error)),
            Err(_) => {
                let shown = target.shown();
                let what = format!("cannot connect to {shown}: no answer within {patience:?}");
                Err(Error::unavailable(BACKEND, what))
            }
        }
    }

    /// One request and its answer.
    async fn ask(&self, content: &Content<'_>, patience: Duration, time: &ServerTime) -> Answer {
        let mut link = self.link.clone();
        let asked = time.uptime();
        if !link.borrow().up {
            back(&mut link, patience).await?;
        }
        let patience = patience.saturating_sub(time.uptime().saturating_sub(asked));
        let losses = link.borrow_and_update().losses;
        let payload = Bytes::copy_from_slice(content.payload);
        let mut request = Request::new().payload(payload).timeout(None);
        if let Some(head) = content.head {
            request = request.headers(head.to_map());
        }
        let reply = tokio::select! {
            biased;
            reply = self.client.send_request(content.subject.to_owned(), request) => reply,
            _ = link.wait_for(|link| link.losses != losses) => {
                return Err(Trouble::Unanswered("the connection broke before the answer".into()));
            }
            // The client's own time begins when it has taken the request, which may be never.
            () = tokio::time::sleep(patience) => {
                return Err(Trouble::Unanswered(format!("no answer within {patience:?}")));
            }
        };
        reply.map(|reply| reply.payload).map_err(Trouble::from)
    }
}

/// An answer of the servers, in their JSON.
pub(crate) fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|error| {
        Error::unavailable(BACKEND, format!("the server's answer makes no sense: {error}"))
    })
}

/// How the client library connects, and whether it is connected.
fn settings(
    target: &Target,
    options: &Options,
    credentials: Option<Arc<Credentials>>,
) -> (ConnectOptions, watch::Receiver<Link>) {
    let (link, told) = watch::channel(Link { up: true, losses: 0 });
    let elsewhere = Elsewhere::default();
    let mut settings = start(credentials)
        .name(format!("tenure {}", target.bucket))
        .connection_timeout(options.connect_timeout)
        .ping_interval(SIGN_OF_LIFE)
        .max_reconnects(None)
        // Ours are made of tokens that are encoded; see `subject`.
        .skip_subject_validation(true)
        .reconnect_delay_callback(|attempt| {
            Duration::from_millis(20 * u64::try_from(attempt).unwrap_or(25).min(25))
        })
        .reconnect_to_server_callback(move |servers, _| {
            std::future::ready(elsewhere.next(&servers))
        })
        .require_tls(options.tls)
        .event_callback(move |event| {
            match event {
                Event::Connected => link.send_modify(|link| link.up = true),
                Event::Disconnected | Event::Closed => link.send_modify(|link| {
                    (link.up, link.losses) = (false, link.losses + 1);
                }),
                event => tracing::debug!(%event, "nats"),
            }
            std::future::ready(())
        });
    settings = match &target.login {
        Login::None => settings,
        Login::Token(token) => settings.token(token.clone()),
        Login::Password(user, password) => {
            settings.user_and_password(user.clone(), password.clone())
        }
    };
    if let Some(file) = &options.root_certificates {
        settings = settings.add_root_certificates(file.clone());
    }
    if let Some((certificate, key)) = &options.client_certificate {
        settings = settings.add_client_certificate(certificate.clone(), key.clone());
    }
    (settings, told)
}

/// As whom to connect, where a file says that; it comes before what the address says.
fn start(credentials: Option<Arc<Credentials>>) -> ConnectOptions {
    let Some(credentials) = credentials else { return ConnectOptions::new() };
    ConnectOptions::with_auth_callback(move |nonce| std::future::ready(credentials.answer(&nonce)))
}

/// Why connecting failed, with the next step.
fn unreachable(target: &Target, options: &Options, error: &async_nats::ConnectError) -> Error {
    let shown = target.shown();
    let next = match options.tls {
        true => "is the server running and reachable, and does it speak TLS?",
        false => "is the server running and reachable?",
    };
    let refused = |next: &str| Error::Refused {
        backend: BACKEND,
        reason: format!("{shown}: {error}; {next}"),
    };
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            refused("check user and password, token or credentials file")
        }
        ConnectErrorKind::Tls => {
            refused("check tls, ca, cert and key against the server's TLS settings")
        }
        _ => Error::unavailable(BACKEND, format!("cannot connect to {shown}: {error}; {next}")),
    }
}
