//! A proxy that breaks, holds or refuses some calls and forwards all others.

use std::collections::HashMap;
use std::error::Error;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, BodyStream, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tenure_conformance::Failure;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Before the message of a call: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// What the message of a transaction begins with if it compares anything. Those that only read do not.
const COMPARES: u8 = 0x0a;

type Failed = Box<dyn Error + Send + Sync>;
type Body = BoxBody<Bytes, Failed>;

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
pub(crate) struct GrpcProxy {
    pub(crate) port: u16,
    rules: watch::Sender<Rules>,
}

impl GrpcProxy {
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

    /// How many transactions were refused.
    pub(crate) fn refused(&self) -> u32 {
        self.rules.borrow().refused.unwrap_or_default()
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

async fn serve(near: TcpStream, server: String, rules: watch::Sender<Rules>) -> Result<(), Failed> {
    let _ = near.set_nodelay(true);
    let far = TcpStream::connect(server).await?;
    let _ = far.set_nodelay(true);
    let executor = TokioExecutor::new();
    let far = hyper::client::conn::http2::handshake(executor.clone(), TokioIo::new(far));
    let (far, connection) = far.await?;
    tokio::spawn(connection);
    let service = service_fn(move |request| forward(request, far.clone(), rules.clone()));
    let server = hyper::server::conn::http2::Builder::new(executor);
    Ok(server.serve_connection(TokioIo::new(near), service).await?)
}

fn count(counter: Option<&mut u32>) -> bool {
    counter.map(|counter| *counter += 1).is_some()
}

/// One call. An error resets its stream.
async fn forward(
    request: Request<Incoming>,
    mut far: SendRequest<Body>,
    rules: watch::Sender<Rules>,
) -> Result<Response<Body>, Failed> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    if rules.send_if_modified(|rules| count(rules.broken.get_mut(&*method))) {
        return Err("the call is broken".into());
    }
    rules.send_modify(|rules| _ = count(rules.held.get_mut(&*method)));
    let mut changes = rules.subscribe();
    changes.wait_for(|rules| !rules.held.contains_key(&*method)).await?;
    let (parts, body) = request.into_parts();
    let body: Body = if method == "Txn" {
        let message = body.collect().await?.to_bytes();
        let writes = message.get(PREFIX) == Some(&COMPARES);
        if writes && rules.send_if_modified(|rules| count(rules.refused.as_mut())) {
            return too_many_requests();
        }
        Full::new(message).map_err(Failed::from).boxed()
    } else {
        body.map_err(Failed::from).boxed()
    };
    far.ready().await?;
    let response = far.send_request(Request::from_parts(parts, body)).await?;
    Ok(response.map(|body| breaking(body, method, changes)))
}

/// The answers, until the calls of this method are to break.
fn breaking(answers: Incoming, method: String, changes: watch::Receiver<Rules>) -> Body {
    let state = (BodyStream::new(answers), method, changes);
    let frames = stream::unfold(state, |(mut frames, method, mut changes)| async move {
        let broken = changes.wait_for(|rules| rules.broken.contains_key(&*method));
        let frame = tokio::select! {
            frame = frames.next() => frame?.map_err(Failed::from),
            _ = broken => Err("the call is broken".into()),
        };
        Some((frame, (frames, method, changes)))
    });
    BoxBody::new(StreamBody::new(frames))
}

fn too_many_requests() -> Result<Response<Body>, Failed> {
    let response = Response::builder().header("content-type", "application/grpc");
    let response = response.header("grpc-status", "8");
    let response = response.header("grpc-message", "etcdserver: too many requests");
    Ok(response.body(Empty::new().map_err(|never| match never {}).boxed())?)
}
