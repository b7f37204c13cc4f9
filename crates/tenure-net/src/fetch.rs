//! One small document from one URL, by HTTP or HTTPS GET.
//!
//! Each fetch has a connection of its own, follows no redirect, and ends within its timeout. An answer
//! other than 200, or one larger than the limit, is an error.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::tls::ClientTls;

/// How to fetch.
#[derive(Clone, Debug)]
pub struct Fetch {
    tls: ClientTls,
    timeout: Duration,
    max_bytes: usize,
}

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The time was up, from looking up the name to the last byte.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The server answered with something else than 200.
    #[error("the answer was {0}")]
    Status(StatusCode),
    /// The document is larger than the limit.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// The settings of TLS cannot be used.
    #[error(transparent)]
    Settings(#[from] tenure::Error),
    /// Everything else: no connection, no TLS, no HTTP.
    #[error("{0}")]
    Failed(String),
}

impl Fetch {
    /// Takes at most so long and so many bytes, and encrypts this way where the URL begins with `https`.
    pub fn new(tls: ClientTls, timeout: Duration, max_bytes: usize) -> Self {
        // HTTP/1.1 is spoken, so no other protocol is offered.
        Self { tls: tls.alpn(&[]), timeout, max_bytes }
    }

    /// Fetches the document.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn get(&self, uri: &Uri) -> Result<Bytes, FetchError> {
        let fetched = tokio::time::timeout(self.timeout, self.get_in_time(uri)).await;
        fetched.map_err(|_| FetchError::Timeout(self.timeout))?
    }

    async fn get_in_time(&self, uri: &Uri) -> Result<Bytes, FetchError> {
        let request = Request::get(uri)
            .header(header::ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())
            .map_err(|error| failed(&error))?;
        let answer = match uri.scheme_str() {
            Some("https") => {
                let tls = self.tls.clone();
                let config = tokio::task::spawn_blocking(move || tls.config()).await;
                let config = config.map_err(|error| failed(&error))??;
                let builder = HttpsConnectorBuilder::new().with_tls_config((*config).clone());
                client().build(builder.https_only().enable_http1().build()).request(request).await
            }
            _ => client().build_http().request(request).await,
        };
        let answer = answer.map_err(|error| failed(&error))?;
        if answer.status() != StatusCode::OK {
            return Err(FetchError::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), self.max_bytes).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| match error.is::<LengthLimitError>() {
            true => FetchError::TooLarge(self.max_bytes),
            false => failed(&*error),
        })
    }
}

fn client() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    // Fetches are minutes apart: no connection is kept for the next one.
    builder.pool_max_idle_per_host(0);
    builder
}

/// With its causes: the library's own words are often only "client error (Connect)".
fn failed<E: std::error::Error + ?Sized>(error: &E) -> FetchError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    FetchError::Failed(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::ServerConfig;
    use rustls::crypto::aws_lc_rs;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::tls::Pem;

    const MAX: usize = 1000;

    /// Answers one request by its path.
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            request.push(byte);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, header, body) = match path {
            "/most" => ("200 OK", "", "a".repeat(MAX)),
            "/large" => ("200 OK", "", "a".repeat(MAX + 1)),
            "/moved" => ("307 Temporary Redirect", "location: /most\r\n", String::new()),
            "/asked" => ("200 OK", "", request.clone()),
            "/never" => return std::future::pending().await,
            _ => ("404 Not Found", "", String::new()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\n{header}content-length: {length}\r\n\r\n");
        // Whoever has read enough hangs up.
        let _ = stream.write_all((head + &body).as_bytes()).await;
        let _ = stream.shutdown().await;
    }

    /// Starts a server and tells its port; with TLS, if there is any.
    async fn start(tls: Option<ServerConfig>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream).await;
                            }
                        }
                    }
                });
            }
        });
        port
    }

    fn uri(text: String) -> Uri {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn an_answer_is_taken_whole_or_not_at_all() {
        let port = start(None).await;
        let fetch = Fetch::new(ClientTls::new("tests"), Duration::from_secs(10), MAX);
        let get =
            async |path: &str| fetch.get(&uri(format!("http://127.0.0.1:{port}{path}"))).await;
        assert_eq!(get("/most").await.unwrap().len(), MAX);
        assert!(matches!(get("/large").await, Err(FetchError::TooLarge(MAX))));
        assert!(get("/moved").await.unwrap_err().to_string().contains("307"));
        assert!(get("/none").await.unwrap_err().to_string().contains("404"));
        let asked = String::from_utf8(get("/asked").await.unwrap().to_vec()).unwrap();
        let asked = asked.to_ascii_lowercase();
        assert!(asked.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{asked}");
        assert!(asked.contains("accept: application/json\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn a_server_that_is_silent_or_absent_is_an_error() {
        let port = start(None).await;
        let fetch = Fetch::new(ClientTls::new("tests"), Duration::from_millis(100), MAX);
        let error = fetch.get(&uri(format!("http://127.0.0.1:{port}/never"))).await.unwrap_err();
        assert!(matches!(error, FetchError::Timeout(_)), "{error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let fetch = Fetch::new(ClientTls::new("tests"), Duration::from_secs(10), MAX);
        let error = fetch.get(&uri(format!("http://{nobody}/"))).await.unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }

    #[tokio::test]
    async fn a_server_is_spoken_to_only_if_it_is_trusted() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let port = start(Some(server)).await;
        let fetch = Fetch::new(ClientTls::new("tests"), Duration::from_secs(10), MAX);
        let url = uri(format!("https://localhost:{port}/most"));
        // Without certificates of the machine's own the settings are wrong already; it is an error either way.
        assert!(fetch.get(&url).await.is_err());
        let ca = Pem::Text(made.cert.pem().into_bytes());
        let fetch =
            Fetch::new(ClientTls::new("tests").ca(ca).alpn(&[b"h2"]), Duration::from_secs(10), MAX);
        assert_eq!(fetch.get(&url).await.unwrap().len(), MAX);
        let other = uri(format!("https://127.0.0.1:{port}/most"));
        let error = fetch.get(&other).await.unwrap_err().to_string();
        assert!(error.contains("not valid for name"), "{error}");
    }
}
