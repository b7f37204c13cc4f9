//! Which server is used, and the move to another one when it fails.
//!
//! There is one connection at a time. The servers are tried in turn, the next one beside one that is slow.
//! A server counts as good once it has answered a linearizable read, which takes a majority. A connection
//! on which something went wrong is dropped, and the next call goes to the next server. So no server that
//! is cut off, frozen or restarting holds a caller up for longer than one attempt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use prost::Message;
use tenure::{Error, Result};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;

use crate::connection::{Client, Connection};
use crate::error::CallError;
use crate::messages::{
    AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, path,
};
use crate::{BACKEND, Options};
use tenure::backend::home::Home;

/// Between rounds through all servers, and between attempts at a call.
const PAUSE: Duration = Duration::from_millis(50);
/// An attempt that has less time than this is not begun again.
const SHORTEST: Duration = Duration::from_millis(50);
/// After this long without an answer of one server the next one is tried beside it. Short leases do not
/// live much longer than connecting to a server that hangs may take.
const STAGGER: Duration = Duration::from_millis(200);

pub(crate) struct Endpoints {
    pub(crate) options: Arc<Options>,
    home: Arc<Home>,
    connection: RwLock<Option<Arc<Connection>>>,
    opening: Mutex<()>,
    next: AtomicUsize,
    /// Why the last attempt to connect failed.
    last_failure: std::sync::Mutex<String>,
    /// Closed with the store.
    open: Semaphore,
}

/// When a call is over, answered or not.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    until: Duration,
}

impl Endpoints {
    pub(crate) fn new(options: Arc<Options>, home: Arc<Home>) -> Arc<Self> {
        Arc::new(Self {
            options,
            home,
            connection: RwLock::new(None),
            opening: Mutex::new(()),
            next: AtomicUsize::new(0),
            last_failure: std::sync::Mutex::default(),
            open: Semaphore::new(0),
        })
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline { until: self.options.clock.uptime().saturating_add(self.options.timeout) }
    }

    pub(crate) fn time_left(&self, deadline: Deadline) -> Duration {
        deadline.until.saturating_sub(self.options.clock.uptime())
    }

    /// Refuses everything from now on.
    pub(crate) fn close(&self) {
        self.open.close();
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.is_closed()
    }

    /// Resolves when the store is closed.
    pub(crate) async fn closed(&self) {
        // There are no permits to be had, so this ends only with the closing.
        let _ = self.open.acquire().await;
    }

    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        self.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection in use, or a new one.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        deadline: Deadline,
    ) -> Result<Arc<Connection>> {
        if self.is_closed() {
            return Err(Error::unavailable(BACKEND, "the store is closed"));
        }
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        Box::pin(self.open_connection(deadline)).await
    }

    async fn open_connection(self: &Arc<Self>, deadline: Deadline) -> Result<Arc<Connection>> {
        let opening = async {
            let _turn = self.opening.lock().await;
            match self.current() {
                Some(connection) => Ok(connection),
                None => self.open_some(deadline).await,
            }
        };
        let late = || {
            let told = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
            Error::unavailable(BACKEND, format!("no server could be reached in time; {told}"))
        };
        tokio::time::timeout(self.time_left(deadline), opening)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Tries the servers until one is good, or time is up.
    async fn open_some(self: &Arc<Self>, deadline: Deadline) -> Result<Arc<Connection>> {
        loop {
            let why = match self.open_first().await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    *self.connection.write().unwrap_or_else(PoisonError::into_inner) =
                        Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                Err(CallError::Final(error)) => return Err(error),
                Err(error) => error.reason(),
            };
            tracing::debug!(%why, "no etcd server is good");
            if !self.pause(deadline).await {
                return Err(Error::unavailable(BACKEND, why));
            }
        }
    }

    /// One round through the servers: the first that is good. All other calls wait for this one, so it
    /// does not wait for a server that hangs alone.
    async fn open_first(self: &Arc<Self>) -> Result<Connection, CallError> {
        let mut why = CallError::TryElsewhere("no server is named".into());
        let mut untried = self.options.endpoints.len();
        let mut opening = FuturesUnordered::new();
        loop {
            if untried > 0 {
                untried -= 1;
                opening.push(self.open_next());
            }
            let pause = async {
                match untried {
                    0 => std::future::pending().await,
                    _ => tokio::time::sleep(STAGGER).await,
                }
            };
            tokio::select! {
                opened = opening.next() => match opened {
                    Some(Ok(connection)) => return Ok(connection),
                    Some(Err(error @ CallError::Final(_))) => return Err(error),
                    Some(Err(error)) => {
                        why = error;
                        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) =
                            why.reason();
                    }
                    None => return Err(why),
                },
                () = pause => {}
            }
        }
    }

    /// Tries the next server, on the store's own thread, where the connection lives from then on.
    async fn open_next(self: &Arc<Self>) -> Result<Connection, CallError> {
        // Before it is tried: who waits less than it takes to fail would come back to it for ever.
        let server = self.next.fetch_add(1, Ordering::Relaxed) % self.options.endpoints.len();
        let this = Arc::clone(self);
        let mut opening = AbortOnDrop(self.home.spawn(async move { this.open(server).await }));
        let closed = |_| CallError::Final(Error::unavailable(BACKEND, "the store is closed"));
        (&mut opening.0).await.map_err(closed)?
    }

    async fn open(&self, server: usize) -> Result<Connection, CallError> {
        let address = &self.options.endpoints[server];
        let late = || CallError::TryElsewhere(format!("{address} did not answer in time"));
        let opening = async {
            let mut client = Client::connect(address, self.options.tls.as_ref()).await?;
            self.log_in(&mut client).await?;
            let connection = Connection::new(server, client, &self.home);
            self.probe(&connection).await?;
            Ok(connection)
        };
        let opened = tokio::time::timeout(self.options.connect_timeout, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(late()));
        tracing::debug!(%address, good = opened.is_ok(), "tried a server");
        opened
    }

    async fn log_in(&self, client: &mut Client) -> Result<(), CallError> {
        let Some((name, password)) = self.options.login.clone() else { return Ok(()) };
        let question = AuthenticateRequest { name, password };
        let answer: AuthenticateResponse = client.call(path::AUTHENTICATE, question).await?;
        client.set_token(&answer.token)
    }

    /// A linearizable read: answered only by a server that is in touch with a majority.
    async fn probe(&self, connection: &Connection) -> Result<(), CallError> {
        let key = format!("{}/", self.options.prefix).into_bytes();
        let question = RangeRequest { key, range_end: vec![], limit: 1, count_only: true };
        connection.call::<_, RangeResponse>(path::RANGE, question).await.map(drop)
    }

    /// Gives a connection up; the next call goes to the next server.
    pub(crate) fn fail(&self, connection: &Arc<Connection>) {
        let mut current = self.connection.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
            self.next.store(connection.server + 1, Ordering::Relaxed);
        }
    }

    /// The same, unless the server would do better a little later on this very connection.
    pub(crate) fn fail_by(&self, connection: &Arc<Connection>, error: &CallError) {
        if !matches!(error, CallError::TryLater(_)) {
            self.fail(connection);
        }
    }

    /// Waits a little, so that a server that refuses at once is not asked without end. Whether there is
    /// time left to ask again: a write that is sent and then not waited for would have an unknown outcome.
    pub(crate) async fn pause(&self, deadline: Deadline) -> bool {
        let has_time = self.time_left(deadline) > PAUSE + SHORTEST;
        if has_time {
            tokio::time::sleep(PAUSE).await;
        }
        has_time
    }

    /// Finds out in the background whether the server still answers, after a caller stopped waiting.
    pub(crate) fn probe_behind(self: &Arc<Self>, connection: &Arc<Connection>) {
        if self.is_closed() || connection.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, connection) = (Arc::clone(self), Arc::clone(connection));
        let attempt = self.options.attempt;
        self.home.spawn(async move {
            match tokio::time::timeout(attempt, this.probe(&connection)).await {
                Ok(Ok(())) => connection.probing.store(false, Ordering::Release),
                _ => this.fail(&connection),
            }
        });
    }

    /// Asks something that changes nothing, of one server after the other if need be.
    pub(crate) async fn read<Q, R>(
        self: &Arc<Self>,
        path: &'static str,
        question: Q,
        deadline: Deadline,
    ) -> Result<R>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        loop {
            let connection = self.connection(deadline).await?;
            let attempt = self.time_left(deadline).min(self.options.attempt);
            let guard = CallGuard::new(self, &connection);
            let answer =
                tokio::time::timeout(attempt, connection.call(path, question.clone())).await;
            guard.answered();
            let error = match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error @ (CallError::Final(_) | CallError::LeaseNotFound))) => {
                    return Err(error.into_read_error());
                }
                Ok(Err(error)) => error,
                Err(_) => CallError::Unknown(format!("no answer within {attempt:?}")),
            };
            self.fail_by(&connection, &error);
            if !self.pause(deadline).await {
                return Err(error.into_read_error());
            }
        }
    }
}

/// A connection that is being opened, for as long as somebody waits for it.
struct AbortOnDrop(JoinHandle<Result<Connection, CallError>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Has the connection probed if its caller stops waiting before there is an answer.
pub(crate) struct CallGuard<'a> {
    endpoints: &'a Arc<Endpoints>,
    connection: Option<&'a Arc<Connection>>,
}

impl<'a> CallGuard<'a> {
    pub(crate) fn new(endpoints: &'a Arc<Endpoints>, connection: &'a Arc<Connection>) -> Self {
        Self { endpoints, connection: Some(connection) }
    }

    pub(crate) fn answered(mut self) {
        self.connection = None;
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            self.endpoints.probe_behind(connection);
        }
    }
}
