//! Durable commits on a private Postgres, beside tokio-postgres with a connection per writer.

use std::sync::Arc;
use std::time::Duration;

use tenure::Key;
use tenure::store::{Put, Store, Touch};
use tenure_postgres::PostgresStore;
use tenure_testkit::Postgres;
use tokio_postgres::{Client, NoTls, Statement};

use crate::measure::{Plan, commit_rate, heading, human, median, payload, rate};

/// Connections of the raw driver: a stock server takes 100, so 512 writers share these.
const CONNECTIONS: usize = 64;

pub(crate) async fn run(plan: Plan, writers: &[usize]) -> anyhow::Result<()> {
    let server = Postgres::start()?;
    let store = PostgresStore::connect(&server.fresh_database()?).await?.into_store();
    heading(
        "Postgres: durable single-object commits a second",
        &["writers", "Tenure", "tokio-postgres, a statement each", "ratio"],
    );
    let raw = connections(&server.fresh_database()?).await?;
    for &writers in writers {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..plan.runs {
            let tag = format!("{writers}-{run}");
            let a = commit_rate(&store, writers, plan.time, &tag).await?;
            let b = raw_rate(&raw, writers, plan.time, &tag).await?;
            ours.push(a);
            theirs.push(b);
            ratios.push(a / b);
        }
        let (ours, theirs) = (human(median(ours)), human(median(theirs)));
        println!("| {writers} | {ours} | {theirs} | {:.1}× |", median(ratios));
    }
    touches(plan, &store).await
}

type Raw = Arc<Vec<(Client, Statement, Statement)>>;

async fn connections(url: &str) -> anyhow::Result<Raw> {
    let mut all = Vec::new();
    for at in 0..CONNECTIONS {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        if at == 0 {
            let table = "CREATE TABLE raw (id text PRIMARY KEY, payload bytea NOT NULL, version bigint NOT NULL)";
            client.batch_execute(table).await?;
        }
        let insert = client.prepare("INSERT INTO raw VALUES ($1, $2, 1)").await?;
        let update = client
            .prepare(
                "UPDATE raw SET payload = $2, version = version + 1 WHERE id = $1 AND version = $3",
            )
            .await?;
        all.push((client, insert, update));
    }
    Ok(Arc::new(all))
}

async fn raw_rate(raw: &Raw, writers: usize, time: Duration, tag: &str) -> anyhow::Result<f64> {
    let (raw, tag) = (Arc::clone(raw), tag.to_owned());
    rate(writers, time, move |writer, turn| {
        let (raw, id) = (Arc::clone(&raw), format!("{tag}-{writer}"));
        async move {
            let (client, insert, update) = &raw[writer % CONNECTIONS];
            let changed = match i64::try_from(turn)? {
                0 => client.execute(insert, &[&id, &payload(turn)]).await?,
                version => client.execute(update, &[&id, &payload(turn), &version]).await?,
            };
            anyhow::ensure!(changed == 1, "the raw writer lost a race it cannot lose");
            Ok(())
        }
    })
    .await
}

/// Renewals: ten thousand objects of one caller in one call.
async fn touches(plan: Plan, store: &Store) -> anyhow::Result<()> {
    const OBJECTS: usize = 10_000;
    heading("Postgres: touches a second, 10,000 objects a call", &["callers", "Tenure"]);
    let ttl = Duration::from_secs(600);
    let mut all = Vec::new();
    for n in 0..OBJECTS {
        let (store, key) = (store.clone(), Key::new("touched", n.to_string()));
        all.push(async move {
            let done = store.commit(Put::new(key.clone(), "x").ttl(ttl)).await?;
            anyhow::Ok(Touch { key, revision: done.revision.unwrap_or(0), ttl })
        });
    }
    let all = Arc::new(futures::future::try_join_all(all).await?);
    let mut figures = Vec::new();
    for _ in 0..plan.runs {
        let (store, all) = (store.clone(), Arc::clone(&all));
        let calls = rate(1, plan.time, move |_, _| {
            let (store, all) = (store.clone(), Arc::clone(&all));
            async move {
                for touched in store.touch(all.to_vec()).await? {
                    touched?;
                }
                Ok(())
            }
        });
        figures.push(calls.await? * OBJECTS as f64);
    }
    println!("| 1 | {} |", human(median(figures)));
    Ok(())
}
