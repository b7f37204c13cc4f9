//! The user's table that the suite counts in.

use std::sync::Arc;

use futures::future::BoxFuture;
use tenure::store::Attachment;
use tenure::{Error, Result};
use tenure_conformance::{SharedTable, Then, UserTable};
use tenure_postgres::{SqlError, sql};
use tokio_postgres::{Client, NoTls};

struct Table {
    client: Arc<Client>,
}

fn trouble(error: tokio_postgres::Error) -> Error {
    Error::unavailable("postgres", error)
}

/// The table in this database, made where it is missing.
pub(crate) async fn open(url: String) -> Result<SharedTable> {
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.map_err(trouble)?;
    tokio::spawn(connection);
    // Under a lock: "if not exists" does not keep two from making it at the same time.
    let create = "begin; select pg_advisory_xact_lock(4711); \
                  create table if not exists counts (name text primary key, n bigint not null); \
                  commit";
    client.batch_execute(create).await.map_err(trouble)?;
    Ok(Arc::new(Table { client: Arc::new(client) }))
}

async fn count(client: &Client, row: &str, then: &Then) -> Result<(), SqlError> {
    let make = "insert into counts values ($1, 0) on conflict do nothing";
    client.execute(make, &[&row]).await?;
    let read = "select n from counts where name = $1 for update";
    let next = client.query_one(read, &[&row]).await?.get::<_, i64>(0) + 1;
    client.execute("update counts set n = $2 where name = $1", &[&row, &next]).await?;
    match then {
        Then::Apply => Ok(()),
        Then::Veto(error) => Err(error.clone().into()),
        Then::Fail => Ok(client.batch_execute("select * from no_such_table").await?),
        // Without the words that a panic hook would print.
        Then::Panic => std::panic::resume_unwind(Box::new("as the test wants it")),
    }
}

impl UserTable for Table {
    fn count(&self, row: &str, then: Then) -> Attachment {
        let row = row.to_owned();
        sql(move |client| {
            let (row, then) = (row.clone(), then.clone());
            Box::pin(async move { count(client, &row, &then).await })
        })
    }

    fn read(&self, row: &str) -> BoxFuture<'static, Result<u64>> {
        let (client, row) = (Arc::clone(&self.client), row.to_owned());
        Box::pin(async move {
            let sql = "select n from counts where name = $1";
            let row = client.query_opt(sql, &[&row]).await.map_err(trouble)?;
            Ok(row.map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
        })
    }
}
