//! What needs no credentials, and what needs a permission of its own.

use std::sync::Arc;

use http::StatusCode;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;

use super::rig::{Rig, logged, token, until};

type Tls = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

async fn connect(rig: &Rig) -> Tls {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(rig.ca.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

async fn get(rig: &Rig, path: &str, token: Option<&str>) -> (StatusCode, bool) {
    let stream = connect(rig).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::get(path).header("host", "localhost");
    if let Some(token) = token {
        request = request.header("authorization", format!("bearer {token}"));
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    (answer.status(), answer.headers().contains_key("www-authenticate"))
}

#[tokio::test]
async fn probes_come_without_credentials_and_metrics_need_a_permission() {
    let (plain, first) = token("doors-plain", &["leases:*:*", "objects:*:*"]);
    let (watcher, second) = token("doors-watcher", &["server:observe"]);
    let rig = Rig::start(Some(&format!("{first}{second}")), |_, _| {}).await;
    let turned_away = (StatusCode::UNAUTHORIZED, true);
    for path in ["/healthz", "/readyz", "/grpc.health.v1.Health/Check"] {
        assert_ne!(get(&rig, path, None).await, turned_away, "{path}");
    }
    for path in ["/metrics", "/v1/leases", "/healthz/", "/tenure.v1.Store/Get", "/"] {
        assert_eq!(get(&rig, path, None).await, turned_away, "{path}");
    }
    assert_eq!(get(&rig, "/metrics", Some(&plain)).await.0, StatusCode::FORBIDDEN);
    let denied = ["doors-plain", "action=\"server:observe\"", "peer=127.0.0.1", "denied"];
    assert_eq!(logged(&denied).len(), 1);
    let seen = get(&rig, "/metrics", Some(&watcher)).await.0;
    assert!(seen != StatusCode::FORBIDDEN && seen != StatusCode::UNAUTHORIZED, "{seen}");
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let (_, entry) = token("doors-renewed", &[]);
    let rig = Rig::start(Some(&entry), |_, _| {}).await;
    let shown = |stream: Tls| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let before = shown(connect(&rig).await);
    let (certificate, key) = rig.ca.for_server();
    // Between the two files they do not go together; the old pair is shown.
    super::rig::write(rig.dir.path().join("server.pem"), &certificate);
    let dir = rig.dir.path().display().to_string();
    until("the new certificate was looked at", || async {
        assert_eq!(shown(connect(&rig).await), before);
        !logged(&["ERROR", &dir, "go together", "stays in force"]).is_empty()
    })
    .await;
    assert_eq!(shown(connect(&rig).await), before);
    super::rig::write(rig.dir.path().join("server.key"), &key);
    let renewed = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap().to_vec();
    until("the new certificate is shown", || async { shown(connect(&rig).await) == renewed }).await;
}
