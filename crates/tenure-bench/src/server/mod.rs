//! The server: cycles over the wire beside Redis and etcd, and what open sessions and waiters cost.
//!
//! The server runs in a process of its own, as its peers do; the clients share this one.

mod calls;
mod crowd;
mod http;
mod process;

use std::sync::Arc;

use tenure_client::ServerStore;
use tenure_testkit::Etcd;

pub(crate) use self::process::serve;

use self::process::Served;
use crate::etcd::raw_rate;
use crate::leases::cycle_rate;
use crate::measure::{Plan, heading, human, median};
use crate::raw_etcd::RawEtcd;
use crate::redis::Redis;

const COLUMNS: [&str; 9] = [
    "clients",
    "Rust client, one connection for all",
    "gRPC calls, one connection each",
    "HTTP/JSON, one connection each",
    "Redis: SET NX PX and DEL, every write flushed",
    "etcd: put if absent under a lease, delete",
    "gRPC calls to Redis",
    "gRPC calls to etcd",
    "HTTP to gRPC calls",
];

pub(crate) async fn run(plan: Plan, clients: &[usize], crowd: usize) -> anyhow::Result<()> {
    let served = Served::start()?;
    heading("Acquire and release through a server on SQLite: cycles a second", &COLUMNS);
    let etcd = Etcd::start()?;
    let raw = Arc::new(RawEtcd::connect(&etcd.address(0)).await?);
    let redis = Redis::start().await?;
    for &clients in clients {
        let mut figures: [Vec<f64>; 9] = Default::default();
        for run in 0..plan.runs {
            let tag = format!("{clients}-{run}");
            let store = ServerStore::connect(&served.url()).await?.into_store();
            let shared = cycle_rate(&store, clients, plan.time, &tag).await?;
            store.close().await;
            let grpc = calls::cycle_rate(&served.url(), clients, plan.time, &tag).await?;
            let http = http::cycle_rate(served.address, clients, plan.time, &tag).await?;
            let redis = match &redis {
                Some(redis) => redis.cycle_rate(clients, plan.time).await?,
                None => f64::NAN,
            };
            let etcd = raw_rate(&raw, clients, plan.time, &tag).await?;
            let all = [
                shared,
                grpc,
                http,
                redis,
                etcd,
                grpc / redis,
                grpc / etcd,
                http / grpc,
                shared / redis,
            ];
            for (figures, figure) in figures.iter_mut().zip(all) {
                figures.push(figure);
            }
        }
        let [shared, grpc, http, redis, etcd, to_redis, to_etcd, to_grpc, shared_to_redis] =
            figures.map(median);
        println!(
            "| {clients} | {} ({shared_to_redis:.2}× Redis) | {} | {} | {} | {} | {to_redis:.2}× | {to_etcd:.1}× | {to_grpc:.2}× |",
            human(shared),
            human(grpc),
            human(http),
            human(redis),
            human(etcd),
        );
    }
    drop((etcd, redis));
    crowd::run(&served, crowd).await
}
