//! Those who take their time: connections that do not begin, bodies that do not arrive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use prost::Message as _;
use tenure_proto::v1;
use tenure_server::ServerLimits;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::auth::rig::Ca;
use crate::serving::{SOON, Serving, eventually};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const GET: &str = "tenure.v1.Store/Get";
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: tenure\r\n\r\n";
/// How long a connection has to begin in these tests.
const WITHIN: Duration = Duration::from_millis(400);

fn limits() -> ServerLimits {
    ServerLimits { header_timeout: WITHIN, ..ServerLimits::default() }
}

/// What the server says until it closes the connection, which it must.
async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    // Closed or reset, both are an end.
    let end = tokio::time::timeout(SOON, stream.read_to_end(&mut said)).await;
    let _ = end.context("it is still open")?;
    Ok(said)
}

/// Asks for something small over a connection, and keeps it.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<bool> {
    if stream.write_all(HEALTH).await.is_err() {
        return Ok(false);
    }
    let mut said = vec![0; 1024];
    let read = tokio::time::timeout(SOON, stream.read(&mut said)).await?.unwrap_or(0);
    Ok(said[..read].starts_with(b"HTTP/1.1 200"))
}

#[tokio::test]
async fn whoever_does_not_begin_loses_its_place_to_others() -> Result<()> {
    let beginnings =
        [&b""[..], b"GET /healthz HTTP/1.1\r\nhost: ten", b"PRI * HTTP/2.0\r\n", PREFACE];
    let limits = ServerLimits { connections: beginnings.len(), ..limits() };
    let server = Serving::limited(limits).await?;
    let mut silent = Vec::new();
    for beginning in beginnings {
        let mut stream = TcpStream::connect(server.address).await?;
        stream.write_all(beginning).await?;
        silent.push(stream);
    }
    let mut late = TcpStream::connect(server.address).await?;
    ensure!(!ask(&mut late).await?, "there was room for one more");
    for mut stream in silent {
        until_closed(&mut stream).await?;
    }
    eventually("their places are free", || async {
        ask(&mut TcpStream::connect(server.address).await?).await
    })
    .await
}

#[tokio::test]
async fn who_stops_within_a_handshake_or_after_it_is_cut_off() -> Result<()> {
    let ca = Ca::new();
    let server = Serving::with_tls(&ca, limits()).await?;
    let address = server.address;
    // The head of a record, and nothing in it.
    let mut half = TcpStream::connect(address).await?;
    half.write_all(&[0x16, 3, 1, 2, 0, 1]).await?;
    until_closed(&mut half).await?;
    let mut silent = shaken(address, &ca).await?;
    until_closed(&mut silent).await?;
    let mut good = shaken(address, &ca).await?;
    ensure!(ask(&mut good).await?);
    server.shutdown.begin();
    drop(good);
    server.ended().await
}

/// A connection with TLS, over which nothing has been said.
async fn shaken(
    address: SocketAddr,
    ca: &Ca,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>> {
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(ca.pem.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = rustls::pki_types::ServerName::try_from("localhost")?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// Whoever waits over HTTP/1 is silent for as long as it waits, and so is one whose machine has gone.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_other_end_of_a_silent_connection_is_asked_for_signs_of_life() -> Result<()> {
    let server = Serving::limited(ServerLimits::default()).await?;
    let stream = TcpStream::connect(server.address).await?;
    let place = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
    let ends = [place(server.address), place(stream.local_addr()?)];
    eventually("the system asks", || async {
        let sockets = std::fs::read_to_string("/proc/net/tcp")?;
        let mut fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let server = fields.find(|fields| fields.get(1..3).is_some_and(|found| found == ends));
        // The timer that runs for it: 02 is the one for this.
        Ok(server.and_then(|fields| fields.get(5).copied()).is_some_and(|it| it.starts_with("02:")))
    })
    .await
}

#[tokio::test]
async fn an_idle_connection_that_has_begun_is_left_alone() -> Result<()> {
    let server = Serving::limited(limits()).await?;
    // One that has asked for nothing yet, as clients have that connect ahead.
    let calls = Calls::open(server.address).await?;
    let mut plain = TcpStream::connect(server.address).await?;
    ensure!(ask(&mut plain).await?);
    for _ in 0..2 {
        tokio::time::sleep(3 * WITHIN).await;
        let answer = calls.call(GET, &get().encode_to_vec(), None).await?;
        ensure!(answer == 0, "status {answer}");
        ensure!(ask(&mut plain).await?);
    }
    Ok(())
}

fn get() -> v1::GetRequest {
    v1::GetRequest { key: Some(v1::Key { kind: "thing".into(), id: "1".into() }) }
}

/// A connection for calls that are made by hand, so that they can be made badly.
struct Calls {
    client: h2::client::SendRequest<Bytes>,
    address: SocketAddr,
}

impl Calls {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let (client, connection) = h2::client::handshake(stream).await?;
        tokio::spawn(connection);
        Ok(Self { client, address })
    }

    /// Calls something, and tells the status. Of the message, only so many bytes are ever sent.
    async fn call(&self, method: &str, message: &[u8], only: Option<usize>) -> Result<i32> {
        let uri = format!("http://{}/{method}", self.address);
        let request = http::Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let (answer, mut sending) =
            self.client.clone().ready().await?.send_request(request, false)?;
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        frame.extend_from_slice(message);
        frame.truncate(only.unwrap_or(frame.len()));
        sending.send_data(frame.into(), only.is_none())?;
        let answer = tokio::time::timeout(SOON, answer).await??;
        let status = |headers: &http::HeaderMap| -> Option<i32> {
            headers.get("grpc-status")?.to_str().ok()?.parse().ok()
        };
        if let Some(status) = status(answer.headers()) {
            return Ok(status);
        }
        let mut body = answer.into_body();
        let rest = async {
            while let Some(data) = body.data().await {
                body.flow_control().release_capacity(data?.len())?;
            }
            anyhow::Ok(body.trailers().await?)
        };
        let trailers = tokio::time::timeout(SOON, rest).await??.context("no trailers")?;
        status(&trailers).context("no status")
    }
}

/// A request of which one byte of the body is sent.
async fn half(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let head = "PUT /v1/objects/thing/1 HTTP/1.1\r\nhost: tenure\r\ncontent-length: 20\r\n\r\n{";
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

/// The rest of that body.
const REST: &[u8] = br#""payload": "12345"}"#;

async fn answer(stream: &mut TcpStream) -> Result<String> {
    let mut said = vec![0; 2048];
    let read = tokio::time::timeout(SOON, stream.read(&mut said)).await??;
    Ok(String::from_utf8_lossy(&said[..read]).into_owned())
}

#[tokio::test]
async fn no_more_bodies_are_waited_for_than_there_is_room_for() -> Result<()> {
    let request_timeout = 10 * SOON;
    let limits = ServerLimits { requests: 1, request_timeout, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    // Of two, one is waited for and the other refused without its body.
    let (mut one, mut other) = (half(server.address).await?, half(server.address).await?);
    let (told, waiting) = tokio::select! {
        told = answer(&mut one) => (told?, other),
        told = answer(&mut other) => (told?, one),
    };
    ensure!(told.starts_with("HTTP/1.1 429") && told.contains("bodies"), "{told}");
    let calls = Calls::open(server.address).await?;
    let message = get().encode_to_vec();
    ensure!(calls.call(GET, &message, Some(4)).await? == tonic::Code::ResourceExhausted as i32);
    // What needs no body, or brings it along, is served.
    ensure!(ask(&mut TcpStream::connect(server.address).await?).await?);
    ensure!(calls.call(GET, &message, None).await? == 0);
    drop(waiting);
    eventually("there is room for another", || async {
        let mut stream = half(server.address).await?;
        let _ = stream.write_all(REST).await;
        Ok(answer(&mut stream).await.is_ok_and(|told| told.starts_with("HTTP/1.1 200")))
    })
    .await
}

#[tokio::test]
async fn a_body_that_does_not_arrive_has_its_time() -> Result<()> {
    let limits = ServerLimits { request_timeout: WITHIN, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let told = answer(&mut half(server.address).await?).await?;
    ensure!(told.starts_with("HTTP/1.1 400") && told.contains("did not arrive"), "{told}");
    let calls = Calls::open(server.address).await?;
    // Also where nobody is asked who they are.
    for method in [GET, "grpc.health.v1.Health/Check"] {
        let told = calls.call(method, &get().encode_to_vec(), Some(4)).await?;
        ensure!(told == tonic::Code::InvalidArgument as i32, "{method}: status {told}");
    }
    Ok(())
}
