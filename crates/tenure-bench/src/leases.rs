//! Leases: cycles of acquiring and releasing, beside peers in the same run.

use std::sync::Arc;
use std::time::Duration;

use tenure::lease::{Coordinator, Lease, Scope, Terms};
use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure_postgres::PostgresStore;
use tenure_sqlite::SqliteStore;
use tenure_testkit::Postgres;
use tokio_postgres::{Client, NoTls, Statement};

use crate::measure::{Plan, heading, human, median, rate};
use crate::redis::Redis;

/// One lease per client, so that what is measured is the store and not the wait for each other.
const TTL: Duration = Duration::from_secs(30);
/// Leases of one session in the renewal benchmark.
const SESSION: usize = 10_000;

pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    let folder = tempfile::tempdir_in(".")?;
    let server = Postgres::start()?;
    let memory = MemoryStore::new().into_store();
    let sqlite = SqliteStore::open(folder.path().join("tenure.db"))?.into_store();
    let postgres = PostgresStore::connect(&server.fresh_database()?).await?.into_store();
    cycles(plan, &memory, &sqlite, &postgres, &server).await?;
    heading(
        "Renewals a second, 10,000 leases of one session in one round trip",
        &["store", "Tenure"],
    );
    for (name, store) in [("memory", &memory), ("SQLite", &sqlite), ("Postgres", &postgres)] {
        println!("| {name} | {} |", human(renewals(plan, store).await?));
    }
    crate::handover::run(plan, &folder, &server).await?;
    sqlite.close().await;
    postgres.close().await;
    Ok(())
}

async fn cycles(
    plan: Plan,
    memory: &Store,
    sqlite: &Store,
    postgres: &Store,
    server: &Postgres,
) -> anyhow::Result<()> {
    heading(
        "Acquire and release: cycles a second",
        &[
            "clients",
            "memory",
            "SQLite",
            "Postgres",
            "raw Postgres: a statement each",
            "Postgres ratio",
            "Redis, SET NX PX and DEL, every write flushed",
            "SQLite to Redis",
        ],
    );
    let raw = connections(&server.fresh_database()?).await?;
    let redis = Redis::start().await?;
    for clients in [1, 64] {
        let mut figures: [Vec<f64>; 7] = Default::default();
        for run in 0..plan.runs {
            let tag = format!("{clients}-{run}");
            let ours = [
                cycle_rate(memory, clients, plan.time, &tag).await?,
                cycle_rate(sqlite, clients, plan.time, &tag).await?,
                cycle_rate(postgres, clients, plan.time, &tag).await?,
            ];
            let by_hand = raw_rate(&raw, clients, plan.time, &tag).await?;
            let redis = match &redis {
                Some(redis) => redis.cycle_rate(clients, plan.time).await?,
                None => f64::NAN,
            };
            let all =
                [ours[0], ours[1], ours[2], by_hand, ours[2] / by_hand, redis, ours[1] / redis];
            for (figures, figure) in figures.iter_mut().zip(all) {
                figures.push(figure);
            }
        }
        let [a, b, c, d, ratio, redis, to_redis] = figures.map(median);
        println!(
            "| {clients} | {} | {} | {} | {} | {ratio:.1}× | {} | {to_redis:.1}× |",
            human(a),
            human(b),
            human(c),
            human(d),
            human(redis),
        );
    }
    Ok(())
}

pub(crate) async fn cycle_rate(
    store: &Store,
    clients: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    let coordinator = Coordinator::builder(store.clone()).name("bench").start()?;
    let scopes: Result<Vec<Scope>, _> =
        (0..clients).map(|n| format!("bench.cycles/{tag}-{n}").parse()).collect();
    let scopes = Arc::new(scopes?);
    let terms = Arc::new(Terms::new().ttl(TTL).wait(Duration::from_secs(60)));
    rate(clients, time, move |client, _| {
        let (coordinator, scopes) = (coordinator.clone(), Arc::clone(&scopes));
        let terms = Arc::clone(&terms);
        async move {
            let lease = coordinator.acquire(&scopes[client], &terms).await?;
            lease.release().await?;
            Ok(())
        }
    })
    .await
}

type Raw = Arc<Vec<(Client, Statement, Statement)>>;

/// What people write by hand: an upsert that takes what has expired, a delete that checks the owner.
async fn connections(url: &str) -> anyhow::Result<Raw> {
    let mut all = Vec::new();
    for at in 0..64 {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        if at == 0 {
            let table = "CREATE TABLE lease (scope text PRIMARY KEY, holder text NOT NULL,
                token bigint NOT NULL, expires_at timestamptz NOT NULL);
                CREATE SEQUENCE token";
            client.batch_execute(table).await?;
        }
        let acquire = client
            .prepare(
                "INSERT INTO lease VALUES ($1, $2, nextval('token'), clock_timestamp() + interval '30 s')
                 ON CONFLICT (scope) DO UPDATE SET holder = excluded.holder, token = excluded.token,
                    expires_at = excluded.expires_at
                 WHERE lease.expires_at < clock_timestamp()
                 RETURNING token",
            )
            .await?;
        let release = client.prepare("DELETE FROM lease WHERE scope = $1 AND token = $2").await?;
        all.push((client, acquire, release));
    }
    Ok(Arc::new(all))
}

async fn raw_rate(raw: &Raw, clients: usize, time: Duration, tag: &str) -> anyhow::Result<f64> {
    let (raw, tag) = (Arc::clone(raw), tag.to_owned());
    rate(clients, time, move |client, _| {
        let (raw, scope) = (Arc::clone(&raw), format!("bench.cycles/{tag}-{client}"));
        async move {
            let (connection, acquire, release) = &raw[client % raw.len()];
            let row = connection.query_one(acquire, &[&scope, &"bench"]).await?;
            let token: i64 = row.get(0);
            let released = connection.execute(release, &[&scope, &token]).await?;
            anyhow::ensure!(released == 1, "the raw client lost a lease it cannot lose");
            Ok(())
        }
    })
    .await
}

async fn renewals(plan: Plan, store: &Store) -> anyhow::Result<f64> {
    let coordinator = Coordinator::builder(store.clone()).name("session").start()?;
    let leases = Arc::new(session(&coordinator, SESSION, "renewals").await?);
    let mut figures = Vec::new();
    for _ in 0..plan.runs {
        let (coordinator, leases) = (coordinator.clone(), Arc::clone(&leases));
        let calls = rate(1, plan.time, move |_, _| {
            let (coordinator, leases) = (coordinator.clone(), Arc::clone(&leases));
            async move {
                let all: Vec<&Lease> = leases.iter().collect();
                for renewed in coordinator.heartbeat(&all).await {
                    renewed?;
                }
                Ok(())
            }
        });
        figures.push(calls.await? * SESSION as f64);
    }
    Ok(median(figures))
}

/// So many leases of one coordinator, acquired with some concurrency.
pub(crate) async fn session(
    coordinator: &Coordinator,
    count: usize,
    tag: &str,
) -> anyhow::Result<Vec<Lease>> {
    use futures::stream::{StreamExt, TryStreamExt};
    let terms = Terms::new().ttl(Duration::from_secs(600));
    futures::stream::iter(0..count)
        .map(|n| {
            let (coordinator, terms, scope) =
                (coordinator.clone(), terms.clone(), format!("bench.{tag}/{n}"));
            async move { anyhow::Ok(coordinator.acquire(&scope.parse()?, &terms).await?) }
        })
        .buffer_unordered(512)
        .try_collect()
        .await
}
