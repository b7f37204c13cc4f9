//! What the tests share: one server, and short ways to say things.

use std::time::Duration;

use tenure::store::{Put, Store};
use tenure::{Key, Result};
use tenure_conformance::Failure;
pub(crate) use tenure_conformance::OrFail;
use tenure_postgres::PostgresStore;
use tenure_testkit::Postgres;
use tokio_postgres::{Client, NoTls};

/// Makes this binary write to a store in a loop until it is killed.
pub(crate) const HAMMER: &str = "--hammer";

pub(crate) type Outcome = Result<(), Failure>;

/// The server that all tests share which do not stop it.
#[derive(Clone, Copy)]
pub(crate) struct Server(pub(crate) &'static Postgres);

impl Server {
    pub(crate) fn shared() -> Self {
        // Without a server there is nothing to test, and that is a failure.
        let server = Postgres::start().unwrap_or_else(|error| panic!("{error:#}"));
        Self(Box::leak(Box::new(server)))
    }

    pub(crate) fn fresh_database(self) -> Result<String, Failure> {
        self.0.fresh_database().or_fail()
    }
}

pub(crate) async fn connect(url: &str) -> Result<Store> {
    Ok(PostgresStore::connect(url).await?.into_store())
}

/// A connection of somebody who is not us.
pub(crate) async fn raw(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.or_fail()?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) fn key(id: impl Into<String>) -> Key {
    Key::new("thing", id)
}

pub(crate) fn put(id: impl Into<String>, payload: &str) -> Put {
    Put::new(key(id), payload.to_owned())
}

/// What a statement of somebody else is answered: the message, or that it worked.
pub(crate) async fn refusal(client: &Client, sql: &str) -> Result<String, Failure> {
    match client.batch_execute(sql).await {
        Ok(()) => Err(Failure::new(format!("the database let this pass: {sql}"))),
        Err(error) => Ok(error.as_db_error().map_or_else(
            || error.to_string(),
            |db| format!("{} | {}", db.message(), db.hint().unwrap_or_default()),
        )),
    }
}

/// Looks again and again until it is so.
pub(crate) async fn eventually<F>(what: &str, mut look: impl FnMut() -> F) -> Outcome
where
    F: Future<Output = Result<bool, Failure>>,
{
    for _ in 0..400 {
        if look().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(Failure::new(format!("not within ten seconds: {what}")))
}
