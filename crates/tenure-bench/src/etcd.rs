//! Leases on a private etcd, beside a client that does the same with bare transactions, and the
//! round trips that an acquisition takes.

use std::sync::Arc;
use std::time::Duration;

use tenure::lease::{Coordinator, Scope, Terms};
use tenure_etcd::EtcdStore;
use tenure_testkit::Etcd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::leases::cycle_rate;
use crate::measure::{Plan, heading, human, median, rate};
use crate::raw_etcd::RawEtcd;

const ROUND_TRIPS: u64 = 1_000;

pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    let server = Etcd::start()?;
    let store = EtcdStore::connect(&server.url("bench")).await?.into_store();
    let raw = Arc::new(RawEtcd::connect(&server.address(0)).await?);
    heading(
        "etcd: acquire and release, cycles a second",
        &["clients", "Tenure", "raw: put if absent under a lease, delete", "ratio"],
    );
    for clients in [1, 64] {
        let mut figures: [Vec<f64>; 3] = Default::default();
        for run in 0..plan.runs {
            let tag = format!("{clients}-{run}");
            // In turn, each first every other time: what the server has to carry grows with time.
            let (ours, by_hand) = if run % 2 == 0 {
                let ours = cycle_rate(&store, clients, plan.time, &tag).await?;
                (ours, raw_rate(&raw, clients, plan.time, &tag).await?)
            } else {
                let by_hand = raw_rate(&raw, clients, plan.time, &tag).await?;
                (cycle_rate(&store, clients, plan.time, &tag).await?, by_hand)
            };
            for (figures, figure) in figures.iter_mut().zip([ours, by_hand, ours / by_hand]) {
                figures.push(figure);
            }
        }
        let [ours, by_hand, ratio] = figures.map(median);
        println!("| {clients} | {} | {} | {ratio:.2}× |", human(ours), human(by_hand));
    }
    round_trips(&server, &store).await?;
    store.close().await;
    Ok(())
}

/// Cycles by bare transactions.
pub(crate) async fn raw_rate(
    raw: &Arc<RawEtcd>,
    clients: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    let (raw, tag) = (Arc::clone(raw), tag.to_owned());
    rate(clients, time, move |client, _| {
        let (raw, key) = (Arc::clone(&raw), format!("raw/{tag}-{client}"));
        async move {
            let revision = raw.acquire(&key).await?;
            raw.release(&key, revision).await
        }
    })
    .await
}

/// What the server has begun to handle while leases were taken that nobody else wants.
async fn round_trips(server: &Etcd, store: &tenure::store::Store) -> anyhow::Result<()> {
    let coordinator = Coordinator::builder(store.clone()).name("trips").start()?;
    let terms = Terms::new().ttl(Duration::from_secs(30));
    let scopes: Result<Vec<Scope>, _> =
        (0..ROUND_TRIPS).map(|n| format!("bench.trips/{n}").parse()).collect();
    let scopes = scopes?;
    // Leases of etcd's are at hand by now.
    let before = calls(server).await?;
    let mut leases = Vec::new();
    for scope in scopes.iter().take(50) {
        leases.push(coordinator.acquire(scope, &terms).await?);
    }
    let after = calls(server).await?;
    let each = (after - before) / leases.len() as f64;
    println!("\nRound trips of an uncontended acquire, counted by the server: {each:.2}");
    for lease in leases {
        lease.release().await?;
    }
    Ok(())
}

/// Single calls that the server has begun to handle. Keep-alives go beside them, down one stream.
async fn calls(server: &Etcd) -> anyhow::Result<f64> {
    let mut stream = tokio::net::TcpStream::connect(server.address(0)).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let unary = |line: &&str| {
        line.starts_with("grpc_server_started_total{") && line.contains("grpc_type=\"unary\"")
    };
    let counts = text.lines().filter(unary).filter_map(|line| line.rsplit(' ').next());
    Ok(counts.filter_map(|count| count.parse::<f64>().ok()).sum())
}
