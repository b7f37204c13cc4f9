//! A server that has no place for another connection says so, to some, and never to so many that it costs
//! more than they would.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure_proto::v1;
use tenure_proto::v1::store_client::StoreClient;
use tenure_server::ServerLimits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::auth::rig::Ca;
use crate::serving::{SOON, Serving, eventually, told};

/// So many are told at once; the test does not know it better than the server's documentation.
const TOLD_AT_ONCE: usize = 64;

async fn ask(stream: &mut TcpStream, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: tenure\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut said = String::new();
    tokio::time::timeout(SOON, stream.read_to_string(&mut said))
        .await
        .context("it stays open")??;
    Ok(said)
}

/// A connection that has a place and keeps it.
async fn placed(server: &Serving) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server.address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: tenure\r\n\r\n").await?;
    let mut said = [0; 12];
    stream.read_exact(&mut said).await?;
    ensure!(said.starts_with(b"HTTP/1.1 200"), "{}", said.escape_ascii());
    Ok(stream)
}

fn one() -> ServerLimits {
    ServerLimits { connections: 1, ..ServerLimits::default() }
}

#[tokio::test]
async fn whoever_comes_too_many_is_told_when_to_come_back() -> Result<()> {
    let server = Serving::limited(one()).await?;
    let taken = placed(&server).await?;
    // HTTP/1, and the connection ends with it.
    let said = ask(&mut TcpStream::connect(server.address).await?, "/v1/leases").await?;
    ensure!(said.starts_with("HTTP/1.1 429"), "{said}");
    ensure!(said.contains("retry-after: 1") && said.contains("connection: close"), "{said}");
    ensure!(said.contains(r#""code":"overloaded""#) && said.contains("connections"), "{said}");
    // gRPC. The client has a channel that finds its way once there is room.
    let channel = Endpoint::from_shared(format!("http://{}", server.address))?.connect_lazy();
    let mut store = StoreClient::new(channel);
    let refused = store.capabilities(v1::CapabilitiesRequest::default()).await;
    let error = told(refused, Code::ResourceExhausted, "overloaded")?;
    ensure!(error.retry_after_ms == 1_000, "{error:?}");
    drop(taken);
    eventually("there is room again", || {
        let mut store = store.clone();
        async move { Ok(store.capabilities(v1::CapabilitiesRequest::default()).await.is_ok()) }
    })
    .await?;
    drop(store);
    eventually("both were counted", || async {
        let mut stream = TcpStream::connect(server.address).await?;
        let request = b"GET /metrics HTTP/1.1\r\nhost: tenure\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        let refused = "tenure_server_connections_refused_total{how=\"answered\"} ";
        let count =
            said.split_once(refused).and_then(|(_, rest)| rest.lines().next()?.parse().ok());
        Ok(count.is_some_and(|count: u64| count >= 2))
    })
    .await
}

#[tokio::test]
async fn silent_ones_are_not_waited_for_and_beyond_a_few_there_is_no_word() -> Result<()> {
    let server = Serving::limited(one()).await?;
    let _taken = placed(&server).await?;
    let mut silent = Vec::new();
    for _ in 0..TOLD_AT_ONCE {
        silent.push(TcpStream::connect(server.address).await?);
    }
    eventually("those beyond are closed at once", || async {
        let mut stream = TcpStream::connect(server.address).await?;
        let mut said = Vec::new();
        let read = tokio::time::timeout(Duration::from_millis(200), stream.read_to_end(&mut said));
        Ok(read.await.is_ok() && said.is_empty())
    })
    .await?;
    for mut stream in silent {
        let mut said = Vec::new();
        let read = stream.read_to_end(&mut said);
        let _ = tokio::time::timeout(SOON, read).await.context("it is still open")?;
    }
    let said = ask(&mut TcpStream::connect(server.address).await?, "/readyz").await?;
    ensure!(said.starts_with("HTTP/1.1 429"), "{said}");
    Ok(())
}

#[tokio::test]
async fn over_tls_they_are_told_too() -> Result<()> {
    let ca = Ca::new();
    let server = Serving::with_tls(&ca, one()).await?;
    let port = server.address.port();
    let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ca.pem));
    let endpoint = Endpoint::from_shared(format!("https://localhost:{port}"))?.tls_config(trust)?;
    let mut first = StoreClient::new(endpoint.connect().await?);
    first.capabilities(v1::CapabilitiesRequest::default()).await?;
    let mut second = StoreClient::new(endpoint.connect().await?);
    let refused = second.capabilities(v1::CapabilitiesRequest::default()).await;
    told(refused, Code::ResourceExhausted, "overloaded")?;
    drop((first, second));
    server.shutdown.begin();
    server.ended().await
}
