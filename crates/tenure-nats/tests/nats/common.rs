//! What the tests share: one server, and short ways to say things.

use std::time::Duration;

use serde_json::Value;
use tenure::store::{Put, Store};
use tenure::{Key, Result};
use tenure_conformance::Failure;
pub(crate) use tenure_conformance::OrFail;
use tenure_nats::NatsStore;
use tenure_testkit::Nats;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) type Outcome = Result<(), Failure>;

/// The server that all tests share which do not stop it.
#[derive(Clone, Copy)]
pub(crate) struct Server(pub(crate) &'static Nats);

impl Server {
    pub(crate) fn shared() -> Self {
        // Without a server there is nothing to test, and that is a failure.
        let server = Nats::start().unwrap_or_else(|error| panic!("{error:#}"));
        Self(Box::leak(Box::new(server)))
    }

    pub(crate) fn fresh_bucket(self) -> String {
        self.0.fresh_bucket()
    }
}

pub(crate) async fn open(url: &str) -> Result<Store> {
    Ok(NatsStore::connect(url).await?.into_store())
}

pub(crate) fn key(id: impl Into<String>) -> Key {
    Key::new("thing", id)
}

pub(crate) fn put(id: impl Into<String>, payload: &str) -> Put {
    Put::new(key(id), payload.to_owned())
}

/// Looks again and again until it is so.
pub(crate) async fn eventually<F>(what: &str, mut look: impl FnMut() -> F) -> Outcome
where
    F: Future<Output = Result<bool, Failure>>,
{
    for _ in 0..600 {
        if look().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(Failure::new(format!("not within fifteen seconds: {what}")))
}

/// The connections that a server has, as it says.
pub(crate) async fn connections(server: &Nats) -> Result<Vec<Value>, Failure> {
    let address = server.monitor(0).replace("http://", "");
    let mut connection = TcpStream::connect(&address).await?;
    connection.write_all(b"GET /connz?auth=1 HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let told: Value = serde_json::from_str(body).or_fail()?;
    Ok(told["connections"].as_array().cloned().unwrap_or_default())
}
