//! The stand-in's HTTP.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::faults::{Fault, Faults, Seen};
use super::state::{Answer, State, status};

/// Between bookmarks. Real servers take a minute; a test does not.
const BOOKMARKS: Duration = Duration::from_millis(500);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The connection is to be broken without an answer.
#[derive(Debug)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken on purpose")
    }
}

impl std::error::Error for Broken {}

/// What the server's tasks share with the test.
pub(super) struct Server {
    state: Mutex<State>,
    faults: Mutex<Faults>,
    /// Rises with every change of the state.
    changed: watch::Sender<u64>,
    /// Rises whenever all watches are to be cut.
    cuts: watch::Sender<u64>,
    /// Bookmarks sent so far.
    pub(super) bookmarks: AtomicU64,
    /// The header of whom it lets in.
    welcome: Mutex<String>,
}

impl Server {
    pub(super) fn new(token: &str) -> Self {
        Self {
            state: Mutex::default(),
            faults: Mutex::default(),
            changed: watch::channel(0).0,
            cuts: watch::channel(0).0,
            bookmarks: AtomicU64::new(0),
            welcome: Mutex::new(bearer(token)),
        }
    }

    /// From now on this token is the one that counts.
    pub(super) fn welcome(&self, token: &str) {
        *self.welcome.lock().unwrap_or_else(PoisonError::into_inner) = bearer(token);
    }

    fn is_welcome(&self, shown: &[u8]) -> bool {
        shown == self.welcome.lock().unwrap_or_else(PoisonError::into_inner).as_bytes()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells watchers that there may be something new.
    pub(super) fn nudge(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn cut_watches(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Serves until the runtime ends.
pub(super) async fn serve(server: Arc<Server>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let _ = socket.set_nodelay(true);
        let (server, tls) = (Arc::clone(&server), tls.clone());
        tokio::spawn(async move {
            let Some(tls) = tls else { return connection(server, socket, false).await };
            // Clients that do not trust us go away.
            let Ok(stream) = tls.accept(socket).await else { return };
            let is_known = stream.get_ref().1.peer_certificates().is_some();
            connection(server, stream, is_known).await;
        });
    }
}

/// One connection, by somebody who has shown a certificate or not.
async fn connection(
    server: Arc<Server>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    is_known: bool,
) {
    let service = service_fn(move |request| handle(Arc::clone(&server), request, is_known));
    let http = hyper::server::conn::http1::Builder::new();
    // Clients that go away, and connections broken on purpose.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn handle(
    server: Arc<Server>,
    request: Request<Incoming>,
    is_known: bool,
) -> Result<Response<Body>, Broken> {
    if server.faults().away {
        return Err(Broken);
    }
    let (parts, body) = request.into_parts();
    let method = parts.method.as_str().to_owned();
    let target = parts.uri.to_string();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let given = parts.headers.get("authorization");
    let has_token = given.is_some_and(|given| server.is_welcome(given.as_bytes()));
    let authorized = has_token || is_known;
    let agent = parts.headers.get("user-agent").and_then(|agent| agent.to_str().ok());
    // Without a name, a server calls it that as well.
    let manager = agent.and_then(|agent| agent.split('/').next()).unwrap_or("unknown").to_owned();
    let watching = target.contains("watch=true") || target.contains("watch=1");
    let verb = if watching { "WATCH" } else { &method };
    let fault = server.faults().take(verb);
    let forbidden = server.faults().forbidden.iter().any(|forbidden| forbidden == verb);
    match fault {
        Some(Fault::LoseRequest) => {
            note(&server, method, target, body, 0);
            return Err(Broken);
        }
        Some(Fault::Answer(code)) => {
            note(&server, method, target, body, code);
            return Ok(plain(status(code, "OnPurpose", "on purpose")));
        }
        Some(Fault::Because(code, reason)) => {
            note(&server, method, target, body, code);
            return Ok(plain(status(code, reason, "on purpose")));
        }
        Some(Fault::End) => {
            note(&server, method, target, body, 200);
            return Ok(streamed(stream::empty().boxed()));
        }
        Some(Fault::Mute) => {
            note(&server, method, target, body, 200);
            return Ok(streamed(stream::pending().boxed()));
        }
        _ => {}
    }
    if !authorized {
        note(&server, method, target, body, 401);
        return Ok(plain(status(401, "Unauthorized", "Unauthorized")));
    }
    if forbidden {
        note(&server, method, target, body, 403);
        return Ok(plain(status(403, "Forbidden", "leases.coordination.k8s.io is forbidden")));
    }
    let asked = Asked::new(&target);
    if watching {
        note(&server, method, target, Value::Null, 200);
        return Ok(watch_leases(server, asked));
    }
    let answer = answer(&server, &method, &asked, body.clone(), &manager);
    if method != "GET" {
        server.nudge();
    }
    if let Some(Fault::Delay(time)) = fault {
        tokio::time::sleep(time).await;
    }
    if fault == Some(Fault::LoseReply) {
        note(&server, method, target, body, 0);
        return Err(Broken);
    }
    note(&server, method, target, body, answer.0);
    Ok(plain(answer))
}

fn note(server: &Server, method: String, target: String, body: Value, status: u16) {
    server.faults().seen.push(Seen { method, target, body, status });
}

/// A path and query, taken apart.
#[derive(Clone, Default)]
struct Asked {
    namespace: String,
    name: Option<String>,
    known: bool,
    query: Vec<(String, String)>,
}

impl Asked {
    fn new(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.to_owned(), value.replace("%2F", "/").replace("%3D", "=").replace("%2C", ","))
        };
        let query = query.split('&').map(pair).collect();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match parts[..] {
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
                ref rest @ ..,
            ] => {
                let name = rest.first().map(|name| (*name).to_owned());
                Self { namespace: namespace.into(), name, known: rest.len() <= 1, query }
            }
            _ => Self { query, ..Self::default() },
        }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

fn answer(server: &Server, method: &str, asked: &Asked, body: Value, manager: &str) -> Answer {
    if !asked.known {
        return status(404, "NotFound", "the server could not find the requested resource");
    }
    let namespace = &asked.namespace;
    let mut state = server.state();
    match (method, &asked.name) {
        ("GET", Some(name)) => state.get(namespace, name),
        ("GET", None) => {
            let limit =
                asked.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
            let selector = asked.get("labelSelector").filter(|selector| !selector.is_empty());
            state.list(namespace, selector, limit, asked.get("continue"))
        }
        ("POST", None) => state.create(namespace, body, manager),
        ("PUT", Some(name)) => state.replace(namespace, name, body, manager),
        ("DELETE", Some(name)) => state.delete(namespace, name, &body),
        _ => status(405, "MethodNotAllowed", "the server does not allow this method"),
    }
}

fn plain((code, body): Answer) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    if code == 429 {
        headers.insert("retry-after", hyper::header::HeaderValue::from_static("1"));
    }
    response
}

/// One line of a watch.
fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

fn watch_leases(server: Arc<Server>, asked: Asked) -> Response<Body> {
    let after: u64 = asked.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
    if after < server.state().compacted {
        let gone = status(410, "Expired", "too old resource version");
        if !server.faults().gone_by_event {
            return plain(gone);
        }
        return streamed(stream::iter([line("ERROR", &gone.1)]).boxed());
    }
    let seconds: u64 = asked.get("timeoutSeconds").and_then(|v| v.parse().ok()).unwrap_or(300);
    let ends = Box::pin(tokio::time::sleep(Duration::from_secs(seconds)));
    let bookmarks = asked.get("allowWatchBookmarks") == Some("true");
    let following = Following {
        changed: server.changed.subscribe(),
        cuts: server.cuts.subscribe(),
        server,
        namespace: asked.namespace,
        after,
        bookmarks,
        ends,
        ended: false,
    };
    let lines = stream::unfold(following, |mut following| async move {
        let lines = following.next().await?;
        Some((lines, following))
    });
    streamed(lines.boxed())
}

fn streamed(lines: BoxStream<'static, Bytes>) -> Response<Body> {
    let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(line)));
    Response::new(StreamBody::new(frames).boxed_unsync())
}

/// A watch that runs.
struct Following {
    server: Arc<Server>,
    changed: watch::Receiver<u64>,
    cuts: watch::Receiver<u64>,
    namespace: String,
    after: u64,
    bookmarks: bool,
    ends: std::pin::Pin<Box<tokio::time::Sleep>>,
    ended: bool,
}

impl Following {
    /// The next lines; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            self.changed.mark_unchanged();
            if let Some(lines) = self.look() {
                return Some(lines);
            }
            tokio::select! {
                _ = self.changed.changed() => {}
                _ = self.cuts.changed() => return None,
                () = self.ends.as_mut() => return None,
                () = tokio::time::sleep(BOOKMARKS), if self.bookmarks => {
                    self.after = self.after.max(self.server.state().revision);
                    let metadata = json!({"resourceVersion": self.after.to_string()});
                    let mark = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
                        "metadata": metadata, "spec": {}});
                    self.server.bookmarks.fetch_add(1, Ordering::Relaxed);
                    return Some(line("BOOKMARK", &mark));
                }
            }
        }
        None
    }

    fn look(&mut self) -> Option<Bytes> {
        let state = self.server.state();
        if self.after < state.compacted {
            self.ended = true;
            let (_, gone) = status(410, "Expired", "too old resource version");
            return Some(line("ERROR", &gone));
        }
        let known = state.log.partition_point(|change| change.revision <= self.after);
        let news = state.log.range(known..);
        let mut lines = Vec::new();
        let mut last = self.after;
        for change in news {
            last = change.revision;
            if change.namespace == self.namespace {
                lines.extend_from_slice(&line(change.kind, &change.object));
            }
        }
        drop(state);
        self.after = last;
        (!lines.is_empty()).then(|| lines.into())
    }
}
