//! A way to a server on which some calls break, wait or are refused, and all others pass.

use std::collections::HashMap;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tenure_conformance::Failure;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Before the message of a call: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// What the message of a transaction begins with if it compares anything. Those that only read do not.
const COMPARES: u8 = 0x0a;

/// What does not pass, and what came.
#[derive(Default)]
struct Rules {
    /// Calls that break, by the end of their path, and how often each was tried.
    broken: HashMap<&'static str, u32>,
    /// Calls that wait, likewise, and how many do.
    held: HashMap<&'static str, u32>,
    /// How many transactions that write were refused, while they are.
    refused: Option<u32>,
    connections: u32,
}

/// Forwards call by call to a server of this host, for as long as the test's runtime runs.
pub(crate) struct Sieve {
    pub(crate) port: u16,
    rules: watch::Sender<Rules>,
}

impl Sieve {
    pub(crate) async fn before(server: String) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let rules = watch::Sender::<Rules>::default();
        let served = rules.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                served.send_modify(|rules| rules.connections += 1);
                tokio::spawn(serve(near, server.clone(), served.clone()));
            }
        });
        Ok(Self { port, rules })
    }

    /// From now on every call of this method breaks before the server hears of it, and those that are
    /// under way break off.
    pub(crate) fn break_calls(&self, method: &'static str) {
        self.rules.send_modify(|rules| _ = rules.broken.insert(method, 0));
    }

    /// How often a call that breaks was tried.
    pub(crate) fn tried(&self, method: &str) -> u32 {
        self.rules.borrow().broken.get(method).copied().unwrap_or_default()
    }

    /// From now on every call of this method waits before the server hears of it.
    pub(crate) fn hold_calls(&self, method: &'static str) {
        self.rules.send_modify(|rules| _ = rules.held.insert(method, 0));
    }

    /// How many calls of this method wait.
    pub(crate) fn waiting(&self, method: &str) -> u32 {
        self.rules.borrow().held.get(method).copied().unwrap_or_default()
    }

    /// Lets all pass that wait.
    pub(crate) fn let_go(&self) {
        self.rules.send_modify(|rules| rules.held.clear());
    }

    /// From now on transactions that write are refused, in the words of a server that is behind.
    pub(crate) fn refuse_writes(&self) {
        self.rules.send_modify(|rules| rules.refused = Some(0));
    }

    /// From now on they pass. How many were refused.
    pub(crate) fn let_writes_pass(&self) -> u32 {
        let mut refused = None;
        self.rules.send_modify(|rules| refused = rules.refused.take());
        refused.unwrap_or_default()
    }

    /// How often somebody connected.
    pub(crate) fn connections(&self) -> u32 {
        self.rules.borrow().connections
    }
}

async fn serve(near: TcpStream, server: String, rules: watch::Sender<Rules>) -> Option<()> {
    let _ = near.set_nodelay(true);
    let far = TcpStream::connect(server).await.ok()?;
    let _ = far.set_nodelay(true);
    let mut near = h2::server::handshake(near).await.ok()?;
    let (far, connection) = h2::client::handshake(far).await.ok()?;
    tokio::spawn(connection);
    while let Some(Ok((request, respond))) = near.accept().await {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let is_broken = rules.send_if_modified(|rules| count(rules.broken.get_mut(&*method)));
        // One that is dropped without an answer is reset.
        if !is_broken {
            tokio::spawn(forward(request, respond, far.clone(), method, rules.clone()));
        }
    }
    Some(())
}

fn count(counter: Option<&mut u32>) -> bool {
    counter.map(|counter| *counter += 1).is_some()
}

async fn forward(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    far: SendRequest<Bytes>,
    method: String,
    rules: watch::Sender<Rules>,
) -> Option<()> {
    rules.send_modify(|rules| _ = count(rules.held.get_mut(&*method)));
    let mut changes = rules.subscribe();
    changes.wait_for(|rules| !rules.held.contains_key(&*method)).await.ok()?;
    let (parts, mut body) = request.into_parts();
    let mut begin = Bytes::new();
    if method == "Txn" {
        begin = body.data().await?.ok()?;
        let _ = body.flow_control().release_capacity(begin.len());
        let writes = begin.get(PREFIX) == Some(&COMPARES);
        if writes && rules.send_if_modified(|rules| count(rules.refused.as_mut())) {
            return respond.send_response(too_many_requests()?, true).ok().map(drop);
        }
    }
    let mut far = far.ready().await.ok()?;
    let (response, mut there) = far.send_request(Request::from_parts(parts, ()), false).ok()?;
    there.send_data(begin, false).ok()?;
    tokio::spawn(pass(body, there));
    let (parts, body) = response.await.ok()?.into_parts();
    let back = respond.send_response(Response::from_parts(parts, ()), false).ok()?;
    tokio::select! {
        passed = pass(body, back) => passed,
        _ = changes.wait_for(|rules| rules.broken.contains_key(&*method)) => {
            respond.send_reset(Reason::INTERNAL_ERROR);
            None
        }
    }
}

fn too_many_requests() -> Option<Response<()>> {
    let response = Response::builder().header("content-type", "application/grpc");
    let response = response.header("grpc-status", "8");
    response.header("grpc-message", "etcdserver: too many requests").body(()).ok()
}

async fn pass(mut from: RecvStream, mut to: SendStream<Bytes>) -> Option<()> {
    while let Some(chunk) = from.data().await {
        let chunk = chunk.ok()?;
        let _ = from.flow_control().release_capacity(chunk.len());
        to.send_data(chunk, false).ok()?;
    }
    match from.trailers().await.ok()? {
        Some(trailers) => to.send_trailers(trailers).ok(),
        None => to.send_data(Bytes::new(), true).ok(),
    }
}
