//! A client over TCP: one connection a request, as curl does it.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::place::PATIENCE;

#[derive(Clone, Copy)]
pub(crate) struct Client {
    address: SocketAddr,
    token: Option<&'static str>,
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// The body as JSON; null if it is something else.
    pub(crate) body: Value,
}

impl Answer {
    /// The answer, if it has this status.
    #[track_caller]
    pub(crate) fn of(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// The error, if the answer has this status and that code.
    #[track_caller]
    pub(crate) fn error(self, status: u16, code: &str) -> Value {
        let answer = self.of(status);
        let error = &answer.body["error"];
        assert_eq!(error["code"], code, "{}", answer.text);
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()));
        error.clone()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, token: None }
    }

    /// The same with a token, which is never forgotten: there are few.
    pub(crate) fn with(self, token: &str) -> Self {
        Self { token: Some(token.to_owned().leak()), ..self }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], String::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, &[], body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PUT, path, &[], body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, &[], String::new()).await
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        let asking = async {
            let (status, headers, body) = self.begin(method, path, headers, body).await;
            let bytes = body.collect().await.unwrap().to_bytes();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let body = serde_json::from_str(&text).unwrap_or(Value::Null);
            Answer { status: status.as_u16(), headers, text, body }
        };
        tokio::time::timeout(PATIENCE, asking).await.expect("an answer in time")
    }

    async fn begin(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> (StatusCode, HeaderMap, Incoming) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "tenure");
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        (parts.status, parts.headers, body)
    }

    /// Opens a stream of events.
    pub(crate) async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let mut all = vec![("accept", "text/event-stream")];
        all.extend(headers);
        let (status, headers, body) = self.begin(Method::GET, path, &all, String::new()).await;
        assert_eq!(status, 200);
        assert_eq!(headers["content-type"], "text/event-stream");
        Events { body, unread: String::new() }
    }
}

/// A stream of events. Dropping it closes the connection.
pub(crate) struct Events {
    body: Incoming,
    unread: String,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) data: Value,
}

impl Events {
    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.told().await?;
            // A mark is told to nobody.
            if !event.name.is_empty() {
                return Some(event);
            }
        }
    }

    /// The next event, or a mark, which has an id alone.
    pub(crate) async fn told(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("an event in time")
    }

    /// The next event, which must have this name.
    pub(crate) async fn expect(&mut self, name: &str) -> Event {
        let event = self.next().await.expect("the stream goes on");
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.unread.split_once("\n\n") {
                let event = parse(block);
                self.unread = rest.to_owned();
                if let Some(event) = event {
                    return Some(event);
                }
            }
            let frame = self.body.frame().await?.ok()?;
            let data = frame.into_data().unwrap_or_default();
            self.unread.push_str(std::str::from_utf8(&data).unwrap());
        }
    }
}

fn parse(block: &str) -> Option<Event> {
    let mut event = Event { name: String::new(), id: String::new(), data: Value::Null };
    for line in block.lines() {
        match line.split_once(':').map(|(field, value)| (field, value.trim_start())) {
            Some(("event", value)) => event.name = value.into(),
            Some(("id", value)) => event.id = value.into(),
            Some(("data", value)) => event.data = serde_json::from_str(value).unwrap(),
            _ => {}
        }
    }
    (!event.name.is_empty() || !event.id.is_empty()).then_some(event)
}
