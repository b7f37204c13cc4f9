//! Calls and streams of gRPC, straight on HTTP/2.
//!
//! A commit waits for one call, so the way to the wire is short: the caller itself hands the request to
//! the connection and is woken by the answer. A general client passes it through a queue and two tasks
//! more, which costs about as much again.

use std::marker::PhantomData;
use std::pin::pin;
use std::task::Context;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
};
use prost::Message;
use tenure::Error;
use tonic::{Code, Status};

use crate::dial::{Line, Open};
use crate::error::Fault;

/// A page of the largest objects; the store bounds what it asks for by itself.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// Before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Where the server says how it went.
static STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// A connection and who we are on it.
#[derive(Clone)]
pub(crate) struct Wire {
    line: Line,
    scheme: Scheme,
    authority: Authority,
    headers: HeaderMap,
}

impl Wire {
    /// Talks to the server at this address over this line.
    pub(crate) fn new(line: Line, address: &str, encrypted: bool) -> Result<Self, Fault> {
        let odd = |_| Fault::No(Error::invalid(format!("etcd server {address:?}"), "no address"));
        let mut headers = HeaderMap::new();
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        // A server that has lost the others says so at once, instead of letting us wait.
        headers.insert("hasleader", HeaderValue::from_static("true"));
        Ok(Self {
            line,
            scheme: if encrypted { Scheme::HTTPS } else { Scheme::HTTP },
            authority: address.parse().map_err(odd)?,
            headers,
        })
    }

    /// Whoever logged in has this to show.
    pub(crate) fn show(&mut self, token: &str) -> Result<(), Fault> {
        let odd = |_| Fault::Elsewhere("the server gave an unusable token".into());
        let mut token = HeaderValue::from_str(token).map_err(odd)?;
        token.set_sensitive(true);
        self.headers.insert("token", token);
        Ok(())
    }

    fn request(&self, path: &'static str) -> Request<()> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(PathAndQuery::from_static(path));
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        // All three parts are there, which is all that can be wrong with them.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        request
    }

    async fn begin(
        &self,
        path: &'static str,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Fault> {
        // Until here nothing has left.
        let unsent = |error: h2::Error| Fault::Elsewhere(format!("no connection: {error}"));
        let mut send = self.line.send.clone();
        std::future::poll_fn(|cx| send.poll_ready(cx)).await.map_err(unsent)?;
        send.send_request(self.request(path), false).map_err(unsent)
    }

    /// One question, one answer.
    pub(crate) async fn call<Q, R>(&self, path: &'static str, question: Q) -> Result<R, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let _open = self.line.open();
        let framed = framed(&question);
        drop(question);
        let (response, mut body) = self.begin(path).await?;
        body.send_data(framed, true).map_err(broke)?;
        let mut body = accept(response.await)?;
        let mut bytes = Bytes::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(broke)?;
            // Cannot fail: this much was received.
            let _ = body.flow_control().release_capacity(chunk.len());
            bytes = joined(bytes, chunk)?;
        }
        let trailers = body.trailers().await.map_err(broke)?;
        verdict(trailers.as_ref())?;
        match length(&bytes)? {
            Some(length) if bytes.len() == PREFIX + length => decode(bytes.slice(PREFIX..)),
            _ => Err(Fault::Unclear("the answer is not one message".into())),
        }
    }

    /// A stream in each direction. Questions are sent while answers are waited for.
    pub(crate) async fn stream<Q, R>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Answers<R>, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let open = self.line.open();
        let (response, body) = self.begin(path).await?;
        let mut asking: Asking = Some(Box::pin(ask(body, questions)));
        let mut response = pin!(response);
        let response = std::future::poll_fn(|cx| {
            go_on(&mut asking, cx);
            response.as_mut().poll(cx)
        });
        let (body, received) = (accept(response.await)?, BytesMut::new());
        Ok(Answers { asking, body, received, _open: open, _of: PhantomData })
    }
}

/// Sends questions as fast as the connection takes them.
async fn ask<Q: Message>(mut body: SendStream<Bytes>, questions: impl Stream<Item = Q>) {
    let mut questions = pin!(questions);
    while let Some(question) = questions.next().await {
        let framed = framed(&question);
        body.reserve_capacity(framed.len());
        while body.capacity() < framed.len() {
            let more = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
            if !matches!(more, Some(Ok(_))) {
                return;
            }
        }
        if body.send_data(framed, false).is_err() {
            return;
        }
    }
    // Whoever does not get this hears of the end otherwise.
    let _ = body.send_data(Bytes::new(), true);
}

/// What is still to be asked on a stream; nothing once all is, or the connection takes no more.
type Asking = Option<BoxFuture<'static, ()>>;

fn go_on(asking: &mut Asking, cx: &mut Context<'_>) {
    if asking.as_mut().is_some_and(|asking| asking.as_mut().poll(cx).is_ready()) {
        *asking = None;
    }
}

/// The answers of a stream.
pub(crate) struct Answers<R> {
    asking: Asking,
    body: RecvStream,
    received: BytesMut,
    _open: Open,
    _of: PhantomData<fn() -> R>,
}

impl<R: Message + Default> Answers<R> {
    /// The next answer; `None` when the server has ended the stream in peace.
    pub(crate) async fn message(&mut self) -> Result<Option<R>, Fault> {
        loop {
            if let Some(length) = length(&self.received)?
                && self.received.len() >= PREFIX + length
            {
                self.received.advance(PREFIX);
                return decode(self.received.split_to(length).freeze()).map(Some);
            }
            match self.chunk().await {
                Some(chunk) => {
                    let chunk = chunk.map_err(broke)?;
                    let _ = self.body.flow_control().release_capacity(chunk.len());
                    self.received.extend_from_slice(&chunk);
                }
                None => {
                    let trailers = self.body.trailers().await.map_err(broke)?;
                    return verdict(trailers.as_ref()).map(|()| None);
                }
            }
        }
    }

    async fn chunk(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let Self { asking, body, .. } = self;
        let mut data = pin!(body.data());
        std::future::poll_fn(|cx| {
            go_on(asking, cx);
            data.as_mut().poll(cx)
        })
        .await
    }
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

fn joined(before: Bytes, chunk: Bytes) -> Result<Bytes, Fault> {
    if before.is_empty() {
        return Ok(chunk);
    }
    length(&before)?;
    let mut both = before.try_into_mut().unwrap_or_else(|before| BytesMut::from(&*before));
    both.extend_from_slice(&chunk);
    Ok(both.freeze())
}

/// The length of the message that begins here, once its prefix has arrived.
fn length(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(Fault::Unclear("the answer is compressed, which nobody asked for".into()));
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_ANSWER {
        let (max, got) = (MAX_ANSWER as u64, length as u64);
        return Err(Fault::No(Error::LimitExceeded { limit: "answer_bytes", max, got }));
    }
    Ok(Some(length))
}

fn decode<R: Message + Default>(bytes: Bytes) -> Result<R, Fault> {
    R::decode(bytes).map_err(|error| Fault::Unclear(format!("the answer makes no sense: {error}")))
}

/// The request left, and what became of it is not known.
fn broke(error: h2::Error) -> Fault {
    Fault::Unclear(format!("the connection broke: {error}"))
}

/// The body of an answer that is none of HTTP's own refusals.
fn accept(response: Result<Response<RecvStream>, h2::Error>) -> Result<RecvStream, Fault> {
    let response = response.map_err(broke)?;
    if response.status() != StatusCode::OK {
        return Err(Fault::Unclear(format!("HTTP status {}", response.status())));
    }
    // A refusal has its verdict up here, where no body follows.
    if response.headers().contains_key(&STATUS) {
        verdict(Some(response.headers()))?;
    }
    Ok(response.into_body())
}

/// What the server says about it at the end.
fn verdict(trailers: Option<&HeaderMap>) -> Result<(), Fault> {
    // Of what went well nothing else is wanted.
    if trailers.and_then(|trailers| trailers.get(&STATUS)).is_some_and(|status| status == "0") {
        return Ok(());
    }
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() == Code::Ok => Ok(()),
        Some(status) => Err(status.into()),
        None => Err(Fault::Unclear("the answer ended without a verdict".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::LeaseRequest;

    #[test]
    fn what_is_framed_is_read_in_any_pieces() {
        let whole = framed(&LeaseRequest { id: 300 });
        assert_eq!(length(&whole[..PREFIX - 1]).unwrap(), None);
        assert_eq!(length(&whole).unwrap(), Some(whole.len() - PREFIX));
        for at in 0..whole.len() {
            let pieces = joined(whole.slice(..at), whole.slice(at..)).unwrap();
            let read: LeaseRequest = decode(pieces.slice(PREFIX..)).unwrap();
            assert_eq!(read.id, 300);
        }
        assert!(matches!(length(&[1, 0, 0, 0, 0]), Err(Fault::Unclear(_))));
        assert!(matches!(length(&[0, 255, 0, 0, 0]), Err(Fault::No(_))));
    }

    #[test]
    fn only_an_explicit_verdict_counts() {
        let mut trailers = HeaderMap::new();
        assert!(matches!(verdict(None), Err(Fault::Unclear(_))));
        assert!(matches!(verdict(Some(&trailers)), Err(Fault::Unclear(_))));
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(verdict(Some(&trailers)).is_ok());
        trailers.insert("grpc-status", HeaderValue::from_static("14"));
        trailers.insert("grpc-message", HeaderValue::from_static("etcdserver: no leader"));
        assert!(matches!(verdict(Some(&trailers)), Err(Fault::Elsewhere(_))));
    }
}
