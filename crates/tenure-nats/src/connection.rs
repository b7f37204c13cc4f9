//! The connection to the servers: one client of `async-nats`, and what a request without an answer means.
//!
//! The client reconnects by itself and keeps what it was given meanwhile. So a request that the client
//! has taken may reach the server at any later time, and is [`RequestFailure::Unanswered`]. Only one that
//! it never took, or that nobody received, is [`RequestFailure::Unsent`]. No request is sent again here;
//! reads are asked again, and writes name the sequence that they replace.
//!
//! The client lives on a thread of its own, so that renewals and watches go on while the caller's
//! runtime is busy or blocked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tenure::{Error, Result};
use tokio::sync::{Semaphore, watch};

use crate::BACKEND;
use crate::credentials::Credentials;
use crate::options::Options;
use crate::server_choice::ServerChoice;
use crate::server_time::ServerTime;
use crate::subject::Subjects;
use crate::url::{Login, Target};
use tenure::backend::home::Home;

/// A read is asked again after this long without an answer: its leader may just have changed.
const ASK_AGAIN: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(50);
/// Requests under way at once; what comes then waits for its place.
const AT_ONCE: u32 = 2048;
/// A server that is silent for this long is asked for a sign of life. After three times as long it is
/// left for another one: a lease of ten seconds survives that. Any server that runs gives the sign at
/// once, however long its disks take; one that does not is left no more often than that.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Whether the connection is there, and how often it was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) up: bool,
    pub(crate) losses: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// Nothing can have happened.
    Unsent(String),
    /// It may have happened, or may happen yet.
    Unanswered(String),
}

impl From<RequestError> for RequestFailure {
    fn from(error: RequestError) -> Self {
        match error.kind() {
            RequestErrorKind::NoResponders => Self::Unsent(
                "no server answers for the bucket: it has no leader at present, or JetStream is off"
                    .into(),
            ),
            RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => {
                Self::Unsent(format!("the request was refused by the client: {error}"))
            }
            _ => Self::Unanswered(format!("no answer: {error}")),
        }
    }
}

impl RequestFailure {
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

/// The connection of one store, and what is known of its servers.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) link: watch::Receiver<Link>,
    pub(crate) subjects: Subjects,
    pub(crate) options: Options,
    pub(crate) time: ServerTime,
    pub(crate) home: Home,
    /// How many servers keep the bucket, as its leader last said; 0 before that.
    pub(crate) replicas: AtomicUsize,
    /// Whether its leader said that it is in a cluster.
    pub(crate) clustered: AtomicBool,
    closed: AtomicBool,
    /// A place for each request under way. What waits for one was not sent.
    places: Semaphore,
}

impl Connection {
    pub(crate) async fn open(target: &Target, options: Options) -> Result<Self> {
        let home = Home::start(BACKEND)?;
        let (settings, link) = settings(target, &options)?;
        let client = connect(target, &options, settings, &home).await?;
        Ok(Self {
            client,
            link,
            subjects: Subjects::new(&target.bucket),
            time: ServerTime::new(options.clock.clone()),
            options,
            home,
            replicas: AtomicUsize::new(0),
            clustered: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            places: Semaphore::new(AT_ONCE as usize),
        })
    }

    /// Waits for the answers that are still to come, and disconnects.
    pub(crate) async fn disconnect(&self) {
        let quiet = self.places.acquire_many(AT_ONCE);
        if tokio::time::timeout(self.options.reply_timeout, quiet).await.is_err() {
            tracing::debug!("disconnecting before all requests were answered");
        }
        self.places.close();
        if let Err(error) = self.client.drain().await {
            tracing::debug!(%error, "the connection was gone already");
        }
    }

    /// Nothing is asked from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether a request would leave at once.
    pub(crate) fn is_up(&self) -> bool {
        self.link.borrow().up
    }

    /// How many servers keep the bucket.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed)
    }

    /// Whether several servers may keep the bucket. How many do may change at any time without our
    /// being told; a server that is in a cluster was started so.
    pub(crate) fn is_clustered(&self) -> bool {
        self.clustered.load(Ordering::Relaxed) || self.client.server_info().cluster.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// One request and its answer. Waits for a lost connection to come back before it sends, not
    /// after. Nothing is ever sent a second time.
    pub(crate) async fn request(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, RequestFailure> {
        if self.is_closed() {
            return Err(closed());
        }
        let mut request = Request::new().payload(payload).timeout(None);
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let sent = AtomicBool::new(false);
        let answer = self.exchange(subject.to_owned(), request, &sent);
        let answer = tokio::time::timeout(timeout, answer).await;
        answer.unwrap_or_else(|_| {
            Err(match sent.into_inner() {
                true => RequestFailure::Unanswered(format!("no answer within {timeout:?}")),
                false => RequestFailure::Unsent(format!("it could not be sent within {timeout:?}")),
            })
        })
    }

    /// The same without a timeout. `sent` says whether the client may have taken the request.
    async fn exchange(
        &self,
        subject: String,
        request: Request,
        sent: &AtomicBool,
    ) -> Result<Bytes, RequestFailure> {
        let _place = self.places.acquire().await.map_err(|_| closed())?;
        let mut link = self.link.clone();
        let losses = link.wait_for(|link| link.up).await.map_err(|_| closed())?.losses;
        sent.store(true, Ordering::Relaxed);
        tokio::select! {
            biased;
            reply = self.client.send_request(subject, request) => Ok(reply?.payload),
            _ = link.wait_for(|link| link.losses != losses) => {
                let why = "the connection broke before the answer";
                Err(RequestFailure::Unanswered(why.into()))
            }
        }
    }

    /// Asks the leader of the bucket something that changes nothing, again if need be.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        payload: &serde_json::Value,
    ) -> Result<T> {
        let subject = format!("$JS.API.{endpoint}.{}", self.subjects.stream());
        let payload = Bytes::from(payload.to_string());
        let until = self.time.uptime() + self.options.reply_timeout;
        loop {
            let left = until.saturating_sub(self.time.uptime());
            let timeout = left.min(ASK_AGAIN);
            let failure = match self.request(&subject, None, payload.clone(), timeout).await {
                Ok(reply) => return parse(&reply),
                Err(failure) => failure,
            };
            if self.is_closed() || self.time.uptime() + PAUSE >= until {
                return Err(failure.for_read());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn closed() -> RequestFailure {
    RequestFailure::Unsent("the store was closed".into())
}

/// Connects on a thread of its own.
async fn connect(
    target: &Target,
    options: &Options,
    settings: ConnectOptions,
    home: &Home,
) -> Result<Client> {
    let servers = target.servers.clone();
    let connecting = home.spawn(async move { settings.connect(servers).await });
    let timeout = options.connect_timeout * 2;
    match tokio::time::timeout(timeout, connecting).await {
        Ok(Ok(Ok(client))) => Ok(client),
        Ok(Ok(Err(error))) => Err(unreachable(target, options, &error)),
        Ok(Err(error)) => Err(Error::unavailable(BACKEND, error)),
        Err(_) => {
            let shown = target.shown();
            let what = format!("cannot connect to {shown}: no answer within {timeout:?}");
            Err(Error::unavailable(BACKEND, what))
        }
    }
}

/// An answer of the servers, in their JSON.
pub(crate) fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|error| {
        Error::unavailable(BACKEND, format!("the server's answer makes no sense: {error}"))
    })
}

/// How the client library connects, and whether it is connected.
fn settings(target: &Target, options: &Options) -> Result<(ConnectOptions, watch::Receiver<Link>)> {
    let (link, told) = watch::channel(Link { up: true, losses: 0 });
    let choice = Arc::new(ServerChoice::default());
    let chosen = Arc::clone(&choice);
    let mut settings = start(options)?
        .name(format!("tenure {}", target.bucket))
        .connection_timeout(options.connect_timeout)
        .ping_interval(SIGN_OF_LIFE)
        .max_reconnects(None)
        // There is room for every request that has a place, so that none of them waits.
        .client_capacity(AT_ONCE as usize)
        // Ours are made of tokens that are encoded; see `subject`.
        .skip_subject_validation(true)
        .reconnect_delay_callback(|attempt| {
            Duration::from_millis(20 * u64::try_from(attempt).unwrap_or(25).min(25))
        })
        .reconnect_to_server_callback(move |servers, _| std::future::ready(choice.next(&servers)))
        .require_tls(options.tls)
        .event_callback(move |event| {
            match event {
                Event::Connected => {
                    chosen.connected();
                    link.send_modify(|link| link.up = true);
                }
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
    Ok((settings, told))
}

/// As whom to connect, where a file says that; it comes before what the address says.
fn start(options: &Options) -> Result<ConnectOptions> {
    let Some(file) = &options.credentials else { return Ok(ConnectOptions::new()) };
    let credentials = Credentials::open(file)?;
    Ok(ConnectOptions::with_auth_callback(move |nonce| {
        std::future::ready(credentials.answer(&nonce))
    }))
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
