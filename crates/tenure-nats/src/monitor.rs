//! What the servers' disks promise: read from a monitoring endpoint, or stated by the operator.
//!
//! A client of NATS cannot ask when the server flushes. The monitoring endpoint tells; without one,
//! and without a statement in the URL, the durability is declared to be the server's business.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};
use serde::Deserialize;
use tenure::store::Durability;
use tenure::{Error, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::BACKEND;
use crate::options::{Options, Sync};

/// The most an answer may hold.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// What an acknowledged write survives.
pub(crate) async fn durability(config: &Config, options: &Options) -> Result<Durability> {
    if config.storage == StorageType::Memory {
        return Ok(Durability::Volatile);
    }
    let sync = match &options.monitor {
        Some(url) => Some(ask(url, options.connect_timeout).await?),
        None => options.sync,
    };
    Ok(match sync {
        Some(Sync::Always) => Durability::Flushed,
        Some(Sync::Every(interval)) => Durability::Periodic(interval),
        None => Durability::Server,
    })
}

async fn ask(url: &str, timeout: Duration) -> Result<Sync> {
    let failed = |why: String| {
        Error::unavailable(BACKEND, format!("monitoring endpoint {url} does not tell: {why}"))
    };
    let Some(address) = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')) else {
        return Err(Error::invalid(format!("monitor {url}"), "write http://host:8222"));
    };
    let answer = tokio::time::timeout(timeout, fetch(address)).await;
    let answer = answer.map_err(|_| failed(format!("no answer within {timeout:?}")))?;
    read(&answer.map_err(|error| failed(error.to_string()))?).map_err(|why| failed(why.to_owned()))
}

async fn fetch(address: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("GET /varz HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    connection.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[derive(Deserialize)]
struct Varz {
    jetstream: Option<JetStream>,
}

#[derive(Deserialize)]
struct JetStream {
    config: Option<JetStreamConfig>,
}

#[derive(Deserialize)]
struct JetStreamConfig {
    #[serde(default)]
    sync_always: bool,
    sync_interval: Option<u64>,
}

fn read(answer: &str) -> Result<Sync, &'static str> {
    let body = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?.1;
    let varz: Varz = serde_json::from_str(body).map_err(|_| "it is no NATS server's")?;
    let config = varz.jetstream.and_then(|jetstream| jetstream.config).ok_or("JetStream is off")?;
    match config.sync_interval {
        _ if config.sync_always => Ok(Sync::Always),
        Some(nanos) => Ok(Sync::Every(Duration::from_nanos(nanos))),
        None => Err("the server does not say when it flushes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_or_refused() {
        let answer = |body: &str| read(&format!("HTTP/1.0 200 OK\r\nX: y\r\n\r\n{body}"));
        let every = r#"{"jetstream":{"config":{"sync_interval":120000000000}}}"#;
        assert_eq!(answer(every), Ok(Sync::Every(Duration::from_secs(120))));
        let always = r#"{"jetstream":{"config":{"sync_interval":1,"sync_always":true}}}"#;
        assert_eq!(answer(always), Ok(Sync::Always));
        assert!(answer("{}").is_err() && answer("hello").is_err() && read("").is_err());
    }
}
