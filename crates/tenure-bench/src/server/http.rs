//! Cycles by HTTP/JSON, a kept connection for each client, spoken with the few bytes that it takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::measure::rate;

pub(crate) async fn cycle_rate(
    address: SocketAddr,
    clients: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    let mut connections = Vec::new();
    for _ in 0..clients {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        connections.push(Mutex::new(stream));
    }
    let (connections, tag) = (Arc::new(connections), tag.to_owned());
    rate(clients, time, move |client, turn| {
        let (connections, tag) = (Arc::clone(&connections), tag.clone());
        async move {
            let mut stream = connections[client].lock().await;
            let acquire = json!({
                "scope": format!("bench.http/{tag}-{client}"),
                "owner": format!("client-{client}#{turn}"),
                "ttl_ms": 30_000,
            });
            let answer = ask(&mut stream, "/v1/leases/acquire", &acquire).await?;
            let release = json!({ "grant": answer["grant"] });
            ask(&mut stream, "/v1/leases/release", &release).await?;
            Ok(())
        }
    })
    .await
}

/// One request and its answer.
async fn ask(stream: &mut TcpStream, path: &str, body: &Value) -> anyhow::Result<Value> {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::with_capacity(1024);
    loop {
        let read = stream.read_buf(&mut answer).await?;
        anyhow::ensure!(read > 0, "the server closed the connection");
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&answer[..end])?.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.context("a length")?.trim().parse()?;
        if answer.len() >= end + 4 + length {
            anyhow::ensure!(
                head.starts_with("http/1.1 200"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
            return Ok(serde_json::from_slice(&answer[end + 4..end + 4 + length])?);
        }
    }
}
