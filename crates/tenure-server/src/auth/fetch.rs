//! One small document from one URL: a connection of its own, no redirects, a bound on time and size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::tls;

/// From the name's address to the last byte.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Sets of keys have a few thousand.
const MOST_BYTES: usize = 1024 * 1024;

/// Where to get it.
pub(super) struct Source {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Source {
    /// Refuses a URL that others could answer in its place.
    pub(super) fn new(uri: Uri) -> Result<Self, String> {
        let host = uri.host().ok_or("it names no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("a name and password in it would end up in logs; leave them out".into());
        }
        let local = host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        let (port, tls) = match uri.scheme_str() {
            Some("https") => (443, Some(Arc::new(tls::client_config()?))),
            Some("http") if local => (80, None),
            Some("http") => {
                return Err(
                    "over plain http anybody on the way could put in keys of their own; use \
                            https"
                        .into(),
                );
            }
            _ => return Err("it must begin with https://".into()),
        };
        let port = uri.port_u16().unwrap_or(port);
        Ok(Self { uri, host, port, tls })
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }
}

/// The document.
pub(super) async fn get(source: &Source) -> Result<Bytes, String> {
    let late = |_| format!("no answer within {TIMEOUT:?}");
    tokio::time::timeout(TIMEOUT, connect(source)).await.map_err(late)?
}

async fn connect(source: &Source) -> Result<Bytes, String> {
    let stream = TcpStream::connect((source.host.as_str(), source.port)).await;
    let stream = stream.map_err(|error| format!("connecting: {error}"))?;
    let Some(tls) = &source.tls else { return ask(source, stream).await };
    let name = ServerName::try_from(source.host.clone()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
    ask(source, stream.map_err(|error| format!("TLS: {error}"))?).await
}

async fn ask<T>(source: &Source, stream: T) -> Result<Bytes, String>
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let path = source.uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = source.uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let work = async move {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(format!("the answer was {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    };
    // The connection ends when the work is done and lets go of it.
    tokio::join!(work, connection).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_nobody_can_answer_for_others_are_taken() {
        let take = |url: &str| Source::new(url.parse().unwrap());
        for good in ["http://127.0.0.1:8/a", "http://[::1]/a", "http://localhost/a"] {
            assert!(take(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example/a", "ftp://127.0.0.1/a", "http://u:p@127.0.0.1/a", "/a"] {
            assert!(take(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_taken_whole_or_not_at_all() {
        use axum::routing;
        let large = || async { vec![b'a'; MOST_BYTES + 1] };
        let most = || async { vec![b'a'; MOST_BYTES] };
        let moved = || async { axum::response::Redirect::temporary("/most") };
        let routes = axum::Router::new()
            .route("/large", routing::get(large))
            .route("/most", routing::get(most))
            .route("/moved", routing::get(moved));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let fetch = async |path: &str| {
            let uri = format!("http://{address}{path}").parse().unwrap();
            get(&Source::new(uri).unwrap()).await
        };
        assert_eq!(fetch("/most").await.unwrap().len(), MOST_BYTES);
        assert!(fetch("/large").await.is_err());
        assert!(fetch("/moved").await.unwrap_err().contains("307"));
        assert!(fetch("/none").await.unwrap_err().contains("404"));
    }
}
