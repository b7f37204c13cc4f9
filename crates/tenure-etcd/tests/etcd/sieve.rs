//! A way to a server on which some calls break and all others pass.

use std::collections::HashMap;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tenure_conformance::Failure;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Calls that break, by the end of their path, and how often each was tried.
type Broken = watch::Sender<HashMap<&'static str, u32>>;

/// Forwards call by call to a server of this host, for as long as the test's runtime runs.
pub(crate) struct Sieve {
    pub(crate) port: u16,
    broken: Broken,
}

impl Sieve {
    pub(crate) async fn before(server: String) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let broken = Broken::default();
        let rules = broken.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(serve(near, server.clone(), rules.clone()));
            }
        });
        Ok(Self { port, broken })
    }

    /// From now on every call of this method breaks before the server hears of it, and those that are
    /// under way break off.
    pub(crate) fn break_calls(&self, method: &'static str) {
        self.broken.send_modify(|broken| _ = broken.insert(method, 0));
    }

    /// How often a call that breaks was tried.
    pub(crate) fn tried(&self, method: &str) -> u32 {
        self.broken.borrow().get(method).copied().unwrap_or_default()
    }
}

async fn serve(near: TcpStream, server: String, broken: Broken) -> Option<()> {
    let _ = near.set_nodelay(true);
    let far = TcpStream::connect(server).await.ok()?;
    let _ = far.set_nodelay(true);
    let mut near = h2::server::handshake(near).await.ok()?;
    let (far, connection) = h2::client::handshake(far).await.ok()?;
    tokio::spawn(connection);
    while let Some(Ok((request, respond))) = near.accept().await {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let is_broken = broken.send_if_modified(|broken| match broken.get_mut(&*method) {
            Some(tried) => {
                *tried += 1;
                true
            }
            None => false,
        });
        // One that is dropped without an answer is reset.
        if !is_broken {
            let breaks = broken.subscribe();
            tokio::spawn(forward(request, respond, far.clone(), method, breaks));
        }
    }
    Some(())
}

async fn forward(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    far: SendRequest<Bytes>,
    method: String,
    mut breaks: watch::Receiver<HashMap<&'static str, u32>>,
) -> Option<()> {
    let (parts, body) = request.into_parts();
    let mut far = far.ready().await.ok()?;
    let (response, there) = far.send_request(Request::from_parts(parts, ()), false).ok()?;
    tokio::spawn(pass(body, there));
    let (parts, body) = response.await.ok()?.into_parts();
    let back = respond.send_response(Response::from_parts(parts, ()), false).ok()?;
    tokio::select! {
        passed = pass(body, back) => passed,
        _ = breaks.wait_for(|broken| broken.contains_key(&*method)) => {
            respond.send_reset(Reason::INTERNAL_ERROR);
            None
        }
    }
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
