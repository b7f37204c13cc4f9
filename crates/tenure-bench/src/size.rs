//! Does it stay flat? The cost of one get and one commit in a small and in a large store.
//!
//! Two things grow in a large store: how much it holds, and how much of it is in use. The first is what a
//! store answers for; it is measured with the same thousand objects in use in both. The second is also what
//! the machine's caches hold; it is measured with all objects in use, beside a bare map and a bare table.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use tenure::Key;
use tenure::clock::{Clock as _, SystemClock};
use tenure::random::{SeededRandom, below};
use tenure::store::memory::MemoryStore;
use tenure::store::{Commit, Put, Store};
use tenure_postgres::PostgresStore;
use tenure_sqlite::SqliteStore;

use crate::measure::{Plan, heading, human, median, payload};

const SMALL: usize = 1_000;
/// What can be measured.
pub(crate) const ALL: [&str; 3] = ["memory", "sqlite", "postgres"];

pub(crate) async fn run(plan: Plan, large: usize, stores: &[String]) -> anyhow::Result<()> {
    let title =
        format!("Size: microseconds per operation at 1,000 and {} objects", human(large as f64));
    heading(&title, &["store", "operation", "in use of the large", "small", "large", "ratio"]);
    for store in stores {
        match store.as_str() {
            "memory" => {
                let empty = || MemoryStore::new().into_store();
                compare(plan, "memory", [empty(), empty()], large).await?;
                compare_maps(plan, large);
                compare_steps(plan, large);
            }
            "sqlite" => {
                let folder = tempfile::tempdir_in(".")?;
                let open = |name| SqliteStore::open(folder.path().join(name));
                let pair = [open("small.db")?.into_store(), open("large.db")?.into_store()];
                compare(plan, "SQLite", pair, large).await?;
            }
            "postgres" => {
                let server = tenure_testkit::Postgres::start()?;
                let (small, big) = (server.fresh_database()?, server.fresh_database()?);
                let pair = [
                    PostgresStore::connect(&small).await?.into_store(),
                    PostgresStore::connect(&big).await?.into_store(),
                ];
                compare(plan, "Postgres", pair, large).await?;
                compare_tables(plan, &server, large).await?;
            }
            other => anyhow::bail!("no store is called {other}; there are {}", ALL.join(", ")),
        }
    }
    Ok(())
}

async fn compare(plan: Plan, name: &str, stores: [Store; 2], large: usize) -> anyhow::Result<()> {
    for (store, size) in stores.iter().zip([SMALL, large]) {
        fill(store, size).await?;
    }
    for (operation, used) in [("get", SMALL), ("commit", SMALL), ("get", large), ("commit", large)]
    {
        let (mut costs, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for run in 0..plan.runs {
            let mut pair = [0.0; 2];
            for (at, (store, used)) in stores.iter().zip([SMALL, used]).enumerate() {
                pair[at] = cost(store, used, operation, run as u64, plan.time).await?;
                costs[at].push(pair[at]);
            }
            ratios.push(pair[1] / pair[0]);
        }
        let ([small, big], ratio) = (costs.map(median), median(ratios));
        let used = human(used as f64);
        println!("| {name} | {operation} | {used} | {small:.2} | {big:.2} | {ratio:.2}× |");
    }
    for store in stores {
        store.close().await;
    }
    Ok(())
}

/// The same with a `HashMap` and nothing around it: what the machine's caches alone cost at that size.
fn compare_maps(plan: Plan, large: usize) {
    let sizes = [SMALL, large];
    let mut maps = sizes.map(|size| (0..size).map(|n| (key(n), payload(0))).collect());
    for operation in ["get", "put"] {
        let (mut costs, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for run in 0..plan.runs {
            let mut pair = [0.0; 2];
            for (at, (map, size)) in maps.iter_mut().zip(sizes).enumerate() {
                pair[at] = map_cost(map, size, operation, run as u64, plan.time);
                costs[at].push(pair[at]);
            }
            ratios.push(pair[1] / pair[0]);
        }
        let [small, big] = costs.map(median);
        let ratio = median(ratios);
        println!("| a bare `HashMap` | {operation} | all | {small:.2} | {big:.2} | {ratio:.2}× |");
    }
}

/// The same with a table and nothing around it: what Postgres itself takes longer at that size.
async fn compare_tables(
    plan: Plan,
    server: &tenure_testkit::Postgres,
    large: usize,
) -> anyhow::Result<()> {
    let tables = [table(server, SMALL).await?, table(server, large).await?];
    for (at, operation) in ["get", "commit"].into_iter().enumerate() {
        let (mut costs, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for run in 0..plan.runs {
            let mut pair = [0.0; 2];
            for (cost, (table, size)) in pair.iter_mut().zip(tables.iter().zip([SMALL, large])) {
                *cost = table_cost(table, at, size, run as u64, plan.time).await?;
            }
            costs.iter_mut().zip(pair).for_each(|(costs, cost)| costs.push(cost));
            ratios.push(pair[1] / pair[0]);
        }
        let ([small, big], ratio) = (costs.map(median), median(ratios));
        println!(
            "| a bare table on Postgres | {operation} | all | {small:.2} | {big:.2} | {ratio:.2}× |"
        );
    }
    Ok(())
}

/// A connection, and the statements that read and change one row.
type Table = (tokio_postgres::Client, [tokio_postgres::Statement; 2]);

async fn table(server: &tenure_testkit::Postgres, size: usize) -> anyhow::Result<Table> {
    const FILLED_AT_ONCE: usize = 10_000;
    let (client, connection) =
        tokio_postgres::connect(&server.fresh_database()?, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let create = "create table bare (kind text, id text, version bigint, payload bytea, \
                  primary key (kind, id)) with (fillfactor = 80)";
    client.batch_execute(create).await?;
    let fill = "insert into bare select 'sized', unnest($1::text[]), 1, $2::bytea";
    for first in (0..size).step_by(FILLED_AT_ONCE) {
        let numbers = first..size.min(first + FILLED_AT_ONCE);
        let ids: Vec<String> = numbers.map(|n| key(n).id).collect();
        client.execute(fill, &[&ids, &payload(0)]).await?;
    }
    let get = "select version, payload from bare where kind = $1 and id = $2 and $3::bytea <> ''";
    let put = "update bare set version = version + 1, payload = $3 \
               where kind = $1 and id = $2 returning version";
    let statements = [client.prepare(get).await?, client.prepare(put).await?];
    Ok((client, statements))
}

async fn table_cost(
    (client, statements): &Table,
    operation: usize,
    size: usize,
    seed: u64,
    time: Duration,
) -> anyhow::Result<f64> {
    let random = SeededRandom::new(seed);
    let (begun, mut done) = (SystemClock.uptime(), 0u32);
    while SystemClock.uptime() - begun < time {
        let key = key(usize::try_from(below(&random, size as u64))?);
        let payload = payload(seed * 1_000_000 + u64::from(done));
        client.query_one(&statements[operation], &[&key.kind, &key.id, &payload]).await?;
        done += 1;
    }
    Ok((SystemClock.uptime() - begun).as_secs_f64() * 1e6 / f64::from(done.max(1)))
}

/// One step into memory as large as the objects: the least that anything costs which finds one of them,
/// whatever it does.
fn compare_steps(plan: Plan, large: usize) {
    let chains = [SMALL, large].map(chain);
    let (mut costs, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..plan.runs {
        let pair = [step_cost(&chains[0], plan.time), step_cost(&chains[1], plan.time)];
        costs.iter_mut().zip(pair).for_each(|(costs, cost)| costs.push(cost));
        ratios.push(pair[1] / pair[0]);
    }
    let ([small, big], ratio) = (costs.map(median), median(ratios));
    println!("| one step into memory of that size | | all | {small:.3} | {big:.3} | {ratio:.1}× |");
}

/// As much as an object takes in memory, the first of it the number of another one.
type Link = [usize; 32];

/// Each says which one comes next, in no order; it is one circle.
fn chain(size: usize) -> Vec<Link> {
    let mut order: Vec<usize> = (0..size).collect();
    let random = SeededRandom::new(1);
    for at in (1..size).rev() {
        order.swap(at, usize::try_from(below(&random, at as u64 + 1)).unwrap_or_default());
    }
    let mut links = vec![[0; 32]; size];
    for (at, &from) in order.iter().enumerate() {
        links[from][0] = order[(at + 1) % size];
    }
    links
}

fn step_cost(links: &[Link], time: Duration) -> f64 {
    const STEPS: u32 = 1_000;
    let (begun, mut at, mut done) = (SystemClock.uptime(), 0, 0u32);
    while SystemClock.uptime() - begun < time {
        for _ in 0..STEPS {
            at = links[at][0];
        }
        done += STEPS;
    }
    black_box(at);
    (SystemClock.uptime() - begun).as_secs_f64() * 1e6 / f64::from(done.max(1))
}

fn map_cost(
    map: &mut HashMap<Key, Vec<u8>>,
    size: usize,
    operation: &str,
    seed: u64,
    time: Duration,
) -> f64 {
    let random = SeededRandom::new(seed);
    let begun = SystemClock.uptime();
    let mut done = 0u32;
    while SystemClock.uptime() - begun < time {
        let key = key(usize::try_from(below(&random, size as u64)).unwrap_or_default());
        match operation {
            "get" => drop(black_box(map.get(&key).cloned())),
            _ => drop(map.insert(key, payload(seed * 1_000_000 + u64::from(done)))),
        }
        done += 1;
    }
    (SystemClock.uptime() - begun).as_secs_f64() * 1e6 / f64::from(done.max(1))
}

async fn fill(store: &Store, size: usize) -> anyhow::Result<()> {
    let most = store.capabilities().limits.commit_operations;
    let commits = (0..size).step_by(most).map(|first| {
        let numbers = first..size.min(first + most);
        numbers.fold(Commit::new(), |commit, n| commit.put(Put::new(key(n), payload(0))))
    });
    let commits: Vec<_> = commits.collect();
    for some in commits.chunks(16) {
        let written = some.iter().map(|commit| store.commit(commit.clone()));
        futures::future::try_join_all(written).await?;
    }
    Ok(())
}

/// Ids in no order that the store could profit from.
fn key(n: usize) -> Key {
    Key::new("sized", format!("{:016x}", (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

/// Microseconds per operation, one caller at a time, on random ones of so many objects.
async fn cost(
    store: &Store,
    used: usize,
    operation: &str,
    seed: u64,
    time: Duration,
) -> anyhow::Result<f64> {
    let random = SeededRandom::new(seed);
    let begun = SystemClock.uptime();
    let mut done = 0u32;
    while SystemClock.uptime() - begun < time {
        let key = key(usize::try_from(below(&random, used as u64))?);
        match operation {
            "get" => anyhow::ensure!(store.get(&key).await?.is_some(), "{key} is missing"),
            _ => drop(
                store.commit(Put::new(key, payload(seed * 1_000_000 + u64::from(done)))).await?,
            ),
        }
        done += 1;
    }
    Ok((SystemClock.uptime() - begun).as_secs_f64() * 1e6 / f64::from(done.max(1)))
}
