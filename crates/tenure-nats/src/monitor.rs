//! What the servers' disks promise: read from a monitoring endpoint, or stated by the operator.
//!
//! A client of NATS cannot ask when the servers flush. Their monitoring endpoints tell, each for its
//! own server; unless all that keep the bucket were asked, and without a statement in the URL, the
//! durability is declared to be the servers' business.

use std::time::Duration;

use async_nats::jetstream::stream::StorageType;
use futures::future::try_join_all;
use serde::Deserialize;
use tenure::store::Durability;
use tenure::{Error, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::BACKEND;
use crate::connection::Connection;
use crate::options::Sync;
use crate::stream_info::Info;

/// The most an answer may hold.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// What an acknowledged write survives: the weakest promise of those that keep the bucket. If one of
/// them was not asked, nothing is known.
pub(crate) async fn durability(info: &Info, connection: &Connection) -> Result<Durability> {
    let options = &connection.options;
    if info.config.storage == StorageType::Memory {
        return Ok(Durability::Volatile);
    }
    let sync = match &options.monitor {
        Some(urls) => {
            let asking = urls.split(',').map(|url| ask(url, options.connect_timeout));
            let told = try_join_all(asking).await?;
            weakest(&told, &keepers(info, connection))
        }
        None => options.sync,
    };
    Ok(match sync {
        Some(Sync::Always) => Durability::Flushed,
        Some(Sync::Every(interval)) => Durability::Periodic(interval),
        None => Durability::Server,
    })
}

/// The servers that keep the bucket, by name.
fn keepers(info: &Info, connection: &Connection) -> Vec<String> {
    if info.keepers.is_empty() {
        // No cluster, so it is the one we talk to.
        return vec![connection.client.server_info().server_name];
    }
    info.keepers.clone()
}

/// The longest that one of the keepers waits before it flushes; `None` if one of them did not tell.
fn weakest(told: &[Told], keepers: &[String]) -> Option<Sync> {
    let mut weakest = Sync::Always;
    for keeper in keepers {
        let sync = told.iter().find(|told| told.server == *keeper)?.sync;
        weakest = match (weakest, sync) {
            (Sync::Every(a), Sync::Every(b)) => Sync::Every(a.max(b)),
            (Sync::Every(a), Sync::Always) | (Sync::Always, Sync::Every(a)) => Sync::Every(a),
            (Sync::Always, Sync::Always) => Sync::Always,
        };
    }
    Some(weakest)
}

/// What one server says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    server: String,
    sync: Sync,
}

async fn ask(url: &str, timeout: Duration) -> Result<Told> {
    let failed = |why: String| {
        Error::unavailable(BACKEND, format!("monitoring endpoint {url} does not tell: {why}"))
    };
    if !url.starts_with("http://") {
        return Err(Error::invalid(format!("monitor {url}"), "write http://host:8222"));
    }
    let varz = format!("{}/varz", url.trim_end_matches('/'));
    let body = tokio::time::timeout(timeout, get(&varz)).await;
    let body = body.map_err(|_| failed(format!("no answer within {timeout:?}")))?;
    read(&body.map_err(failed)?).map_err(|why| failed(why.to_owned()))
}

/// What an HTTP server answers at this URL. Nothing else in this crate speaks HTTP.
async fn get(url: &str) -> Result<Vec<u8>, String> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let exchange = async {
        let mut connection = TcpStream::connect(host).await?;
        let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        connection.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok(answer)
    };
    let mut answer = exchange.await.map_err(|error: std::io::Error| error.to_string())?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let head = head.ok_or("it does not speak HTTP")?;
    Ok(answer.split_off(head + 4))
}

#[derive(Deserialize)]
struct Varz {
    #[serde(default)]
    server_name: String,
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

fn read(body: &[u8]) -> Result<Told, &'static str> {
    let varz: Varz = serde_json::from_slice(body).map_err(|_| "it is no NATS server's")?;
    let config = varz.jetstream.and_then(|jetstream| jetstream.config).ok_or("JetStream is off")?;
    let sync = match config.sync_interval {
        _ if config.sync_always => Sync::Always,
        Some(nanos) => Sync::Every(Duration::from_nanos(nanos)),
        None => return Err("the server does not say when it flushes"),
    };
    Ok(Told { server: varz.server_name, sync })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_or_refused() {
        let answer = |body: &str| read(body.as_bytes());
        let told = |sync| Ok(Told { server: "n1".into(), sync });
        let every = r#"{"server_name":"n1","jetstream":{"config":{"sync_interval":120000000000}}}"#;
        assert_eq!(answer(every), told(Sync::Every(Duration::from_secs(120))));
        let always =
            r#"{"server_name":"n1","jetstream":{"config":{"sync_interval":1,"sync_always":true}}}"#;
        assert_eq!(answer(always), told(Sync::Always));
        assert!(answer("{}").is_err() && answer("hello").is_err() && answer("").is_err());
    }

    #[test]
    fn a_bucket_is_as_durable_as_the_weakest_of_its_servers() {
        let (often, seldom) =
            (Sync::Every(Duration::from_secs(1)), Sync::Every(Duration::from_secs(120)));
        let told = [("a", Sync::Always), ("b", Sync::Always), ("c", often), ("d", seldom)];
        let told = told.map(|(server, sync)| Told { server: server.into(), sync });
        let weakest = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            weakest(&told, &names)
        };
        assert_eq!(weakest(&["a", "b"]), Some(Sync::Always));
        assert_eq!(weakest(&["a", "c", "b"]), Some(often));
        assert_eq!(weakest(&["d", "c", "a"]), Some(seldom));
        // Nobody asked the third one.
        assert_eq!(weakest(&["a", "b", "e"]), None);
    }
}
