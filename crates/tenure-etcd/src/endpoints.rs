//! Which server is used, and the move to another one when it fails.
//!
//! One connection at a time: the servers are tried in turn, the next one beside one that takes its time,
//! and a server counts as good once it has answered a linearizable read, which it can only do together
//! with a majority. A connection on which something went wrong is dropped, and the next call goes to the
//! next server. So no server that is cut off, frozen or restarting holds anybody up for longer than one
//! attempt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use prost::Message;
use tenure::{Error, Result};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;

use crate::dial::Line;
use crate::error::Fault;
use crate::grpc::Wire;
use crate::link::Link;
use crate::wire::{AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, path};
use crate::{BACKEND, Options};
use tenure::backend::home::Home;

/// Between rounds through all servers, and between attempts at a call.
const PAUSE: Duration = Duration::from_millis(50);
/// After this long without an answer of one server the next one is tried beside it. Short leases do not
/// live much longer than connecting to a server that hangs may take.
const STAGGER: Duration = Duration::from_millis(200);

pub(crate) struct Endpoints {
    pub(crate) options: Arc<Options>,
    home: Arc<Home>,
    link: RwLock<Option<Arc<Link>>>,
    opening: Mutex<()>,
    next: AtomicUsize,
    /// What the last attempt to connect was told.
    told: std::sync::Mutex<String>,
    /// Closed with the store.
    open: Semaphore,
}

/// How much longer a call may take.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    until: Duration,
}

impl Endpoints {
    pub(crate) fn new(options: Arc<Options>, home: Arc<Home>) -> Arc<Self> {
        Arc::new(Self {
            options,
            home,
            link: RwLock::new(None),
            opening: Mutex::new(()),
            next: AtomicUsize::new(0),
            told: std::sync::Mutex::default(),
            open: Semaphore::new(0),
        })
    }

    pub(crate) fn budget(&self) -> Budget {
        Budget { until: self.options.clock.uptime().saturating_add(self.options.timeout) }
    }

    pub(crate) fn left(&self, budget: Budget) -> Duration {
        budget.until.saturating_sub(self.options.clock.uptime())
    }

    /// Refuses everything from now on.
    pub(crate) fn close(&self) {
        self.open.close();
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.is_closed()
    }

    /// Resolves when the store is closed.
    pub(crate) async fn closed(&self) {
        // There are no permits to be had, so this ends only with the closing.
        let _ = self.open.acquire().await;
    }

    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        self.link.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection in use, or a new one.
    pub(crate) async fn link(self: &Arc<Self>, budget: Budget) -> Result<Arc<Link>> {
        if self.is_closed() {
            return Err(Error::unavailable(BACKEND, "the store is closed"));
        }
        if let Some(link) = self.current() {
            return Ok(link);
        }
        Box::pin(self.open_link(budget)).await
    }

    async fn open_link(self: &Arc<Self>, budget: Budget) -> Result<Arc<Link>> {
        let opening = async {
            let _turn = self.opening.lock().await;
            match self.current() {
                Some(link) => Ok(link),
                None => self.open_some(budget).await,
            }
        };
        let late = || {
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            Error::unavailable(BACKEND, format!("no server could be reached in time; {told}"))
        };
        tokio::time::timeout(self.left(budget), opening).await.unwrap_or_else(|_| Err(late()))
    }

    /// Tries the servers until one is good, or time is up.
    async fn open_some(self: &Arc<Self>, budget: Budget) -> Result<Arc<Link>> {
        loop {
            let why = match self.open_first().await {
                Ok(link) => {
                    let link = Arc::new(link);
                    *self.link.write().unwrap_or_else(PoisonError::into_inner) =
                        Some(Arc::clone(&link));
                    return Ok(link);
                }
                Err(Fault::No(error)) => return Err(error),
                Err(fault) => fault.why(),
            };
            tracing::debug!(%why, "no etcd server is good");
            if !self.pause(budget).await {
                return Err(Error::unavailable(BACKEND, why));
            }
        }
    }

    /// One round through the servers: the first that is good. All others wait for whoever does this, so
    /// one that hangs is not waited for alone.
    async fn open_first(self: &Arc<Self>) -> Result<Link, Fault> {
        let mut why = Fault::Elsewhere("no server is named".into());
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
                    Some(Ok(link)) => return Ok(link),
                    Some(Err(fault @ Fault::No(_))) => return Err(fault),
                    Some(Err(fault)) => {
                        why = fault;
                        *self.told.lock().unwrap_or_else(PoisonError::into_inner) =
                            why.why();
                    }
                    None => return Err(why),
                },
                () = pause => {}
            }
        }
    }

    /// Tries the next server, on the store's own thread, where the connection lives from then on.
    async fn open_next(self: &Arc<Self>) -> Result<Link, Fault> {
        // Before it is tried: who waits less than it takes to fail would come back to it for ever.
        let server = self.next.fetch_add(1, Ordering::Relaxed) % self.options.endpoints.len();
        let this = Arc::clone(self);
        let mut opening = Opening(self.home.spawn(async move { this.open(server).await }));
        let closed = |_| Fault::No(Error::unavailable(BACKEND, "the store is closed"));
        (&mut opening.0).await.map_err(closed)?
    }

    async fn open(&self, server: usize) -> Result<Link, Fault> {
        let address = &self.options.endpoints[server];
        let late = || Fault::Elsewhere(format!("{address} did not answer in time"));
        let opening = async {
            let tls = self.options.tls.as_ref();
            let line = Line::dial(address, tls, &self.home).await?;
            let mut wire = Wire::new(line, address, tls.is_some())?;
            self.log_in(&mut wire).await?;
            let link = Link::new(server, wire, &self.home);
            self.probe(&link).await?;
            Ok(link)
        };
        let opened = tokio::time::timeout(self.options.connect_timeout, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(late()));
        tracing::debug!(%address, good = opened.is_ok(), "tried a server");
        opened
    }

    async fn log_in(&self, wire: &mut Wire) -> Result<(), Fault> {
        let Some((name, password)) = self.options.login.clone() else { return Ok(()) };
        let question = AuthenticateRequest { name, password };
        let answer: AuthenticateResponse = wire.call(path::AUTHENTICATE, question).await?;
        wire.show(&answer.token)
    }

    /// A linearizable read: answered only by a server that is in touch with a majority.
    async fn probe(&self, link: &Link) -> Result<(), Fault> {
        let key = format!("{}/", self.options.prefix).into_bytes();
        let question = RangeRequest { key, range_end: vec![], limit: 1, count_only: true };
        link.call::<_, RangeResponse>(path::RANGE, question).await.map(drop)
    }

    /// Gives a connection up; the next call goes to the next server.
    pub(crate) fn fail(&self, link: &Arc<Link>) {
        let mut current = self.link.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            *current = None;
            self.next.store(link.server + 1, Ordering::Relaxed);
        }
    }

    /// The same, unless the server only asks for patience.
    pub(crate) fn fail_by(&self, link: &Arc<Link>, fault: &Fault) {
        if !matches!(fault, Fault::Later(_)) {
            self.fail(link);
        }
    }

    /// Waits a little, so that a server that refuses at once is not asked without end. Whether there is
    /// time left to ask again.
    pub(crate) async fn pause(&self, budget: Budget) -> bool {
        let has_time = self.left(budget) > PAUSE;
        if has_time {
            tokio::time::sleep(PAUSE).await;
        }
        has_time
    }

    /// Somebody stopped waiting for an answer: sees whether the server still gives any.
    pub(crate) fn suspect(self: &Arc<Self>, link: &Arc<Link>) {
        if self.is_closed() || link.suspected.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, link) = (Arc::clone(self), Arc::clone(link));
        let attempt = self.options.attempt;
        self.home.spawn(async move {
            match tokio::time::timeout(attempt, this.probe(&link)).await {
                Ok(Ok(())) => link.suspected.store(false, Ordering::Release),
                _ => this.fail(&link),
            }
        });
    }

    /// Asks something that changes nothing, of one server after the other if need be.
    pub(crate) async fn read<Q, R>(
        self: &Arc<Self>,
        path: &'static str,
        question: Q,
        budget: Budget,
    ) -> Result<R>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        loop {
            let link = self.link(budget).await?;
            let attempt = self.left(budget).min(self.options.attempt);
            let watched = Watched::new(self, &link);
            let answer = tokio::time::timeout(attempt, link.call(path, question.clone())).await;
            watched.done();
            let fault = match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(fault @ (Fault::No(_) | Fault::NoLease))) => return Err(fault.of_read()),
                Ok(Err(fault)) => fault,
                Err(_) => Fault::Unclear(format!("no answer within {attempt:?}")),
            };
            self.fail_by(&link, &fault);
            if !self.pause(budget).await {
                return Err(fault.of_read());
            }
        }
    }
}

/// A connection that is being opened, for as long as somebody waits for it.
struct Opening(JoinHandle<Result<Link, Fault>>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Notices when whoever waits for an answer goes away without one.
pub(crate) struct Watched<'a> {
    endpoints: &'a Arc<Endpoints>,
    link: Option<&'a Arc<Link>>,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(endpoints: &'a Arc<Endpoints>, link: &'a Arc<Link>) -> Self {
        Self { endpoints, link: Some(link) }
    }

    pub(crate) fn done(mut self) {
        self.link = None;
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.link {
            self.endpoints.suspect(link);
        }
    }
}
