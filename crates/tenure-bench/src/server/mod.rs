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
use crate::spent::Spent;

/// The ways to ask, as `--ways` names them, and what they are called in the table.
const WAYS: [(&str, &str); 7] = [
    ("rust", "Rust client, one connection for all"),
    ("shared", "gRPC calls, one connection for all"),
    ("calls", "gRPC calls, one connection each"),
    ("http", "HTTP/JSON, one connection each"),
    ("redis", "Redis: SET NX PX, DEL if it is ours, every write flushed, one connection each"),
    ("bare-redis", "Redis: SET NX PX, DEL of whatever is there, the same"),
    ("etcd", "etcd: put if absent under a lease, delete, one connection for all"),
];

/// What to measure.
pub(crate) struct Choice {
    pub(crate) clients: Vec<usize>,
    /// Names of [`WAYS`]; all if empty.
    pub(crate) ways: Vec<String>,
    /// On a store in memory, to see the cost of the way alone.
    pub(crate) memory: bool,
    /// Open sessions, and as many waiters.
    pub(crate) crowd: usize,
}

struct Peers {
    served: Served,
    redis: Option<Redis>,
    _etcd: Option<Etcd>,
    raw: Option<Arc<RawEtcd>>,
}

impl Peers {
    async fn start(ways: &[usize], memory: bool) -> anyhow::Result<Self> {
        let has = |name| ways.iter().any(|way| WAYS[*way].0 == name);
        let served = Served::start(memory)?;
        let redis = if has("redis") || has("bare-redis") { Redis::start().await? } else { None };
        let etcd = if has("etcd") { Some(Etcd::start()?) } else { None };
        let raw = match &etcd {
            Some(etcd) => Some(Arc::new(RawEtcd::connect(&etcd.address(0)).await?)),
            None => None,
        };
        Ok(Self { served, redis, _etcd: etcd, raw })
    }

    /// The process that serves this way, if it is one of ours to look at.
    fn process(&self, way: usize) -> Option<u32> {
        match WAYS[way].0 {
            "redis" | "bare-redis" => self.redis.as_ref().map(Redis::id),
            "etcd" => None,
            _ => Some(self.served.id()),
        }
    }

    async fn measure(
        &self,
        way: usize,
        plan: Plan,
        clients: usize,
        tag: &str,
    ) -> anyhow::Result<f64> {
        let (url, time) = (self.served.url(), plan.time);
        Ok(match WAYS[way].0 {
            "rust" => {
                let store = ServerStore::connect(&url).await?.into_store();
                let rate = cycle_rate(&store, clients, time, tag).await?;
                store.close().await;
                rate
            }
            "shared" => calls::cycle_rate(&url, 1, clients, time, tag).await?,
            "calls" => calls::cycle_rate(&url, clients, clients, time, tag).await?,
            "http" => http::cycle_rate(self.served.address, clients, time, tag).await?,
            "redis" => match &self.redis {
                Some(redis) => redis.owned_cycle_rate(clients, time).await?,
                None => f64::NAN,
            },
            "bare-redis" => match &self.redis {
                Some(redis) => redis.cycle_rate(clients, time).await?,
                None => f64::NAN,
            },
            _ => match &self.raw {
                Some(raw) => raw_rate(raw, clients, time, tag).await?,
                None => f64::NAN,
            },
        })
    }
}

pub(crate) async fn run(plan: Plan, choice: Choice) -> anyhow::Result<()> {
    let chosen =
        |way: &usize| choice.ways.is_empty() || choice.ways.iter().any(|w| w == WAYS[*way].0);
    let ways: Vec<usize> = (0..WAYS.len()).filter(chosen).collect();
    anyhow::ensure!(!ways.is_empty(), "none of these is a way: {}", choice.ways.join(", "));
    let peers = Peers::start(&ways, choice.memory).await?;
    let store = if choice.memory { "memory" } else { "SQLite" };
    for clients in choice.clients {
        table(plan, &peers, &ways, store, clients).await?;
    }
    if choice.crowd > 0 {
        crowd::run(&peers.served, choice.crowd).await?;
    }
    Ok(())
}

/// One table: every way in turn, so many times, and what it took.
async fn table(
    plan: Plan,
    peers: &Peers,
    ways: &[usize],
    store: &str,
    clients: usize,
) -> anyhow::Result<()> {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut costs: Vec<Vec<Spent>> = vec![Vec::new(); ways.len()];
    for run in 0..plan.runs {
        for (at, way) in ways.iter().enumerate() {
            let before = Spent::until_now(peers.process(*way))?;
            let rate = peers.measure(*way, plan, clients, &format!("{clients}-{run}")).await?;
            let spent = Spent::until_now(peers.process(*way))?.since(before);
            costs[at].push(spent.per(rate * plan.time.as_secs_f64()));
            rates[at].push(rate);
        }
    }
    heading(
        &format!("Acquire and release through a server on {store}, {clients} clients"),
        &[
            "way",
            "cycles a second",
            "to Redis",
            "to bare Redis",
            "to etcd",
            "CPU time per cycle: clients",
            "and server",
        ],
    );
    let to = |at: usize, peer: &str| {
        let Some(other) = ways.iter().position(|way| WAYS[*way].0 == peer) else {
            return f64::NAN;
        };
        // Within each run: what slows one down for a while slows down the other.
        median(rates[at].iter().zip(&rates[other]).map(|(ours, theirs)| ours / theirs).collect())
    };
    for (at, way) in ways.iter().enumerate() {
        println!(
            "| {} | {} | {:.2}× | {:.2}× | {:.1}× | {:.1} µs | {:.1} µs |",
            WAYS[*way].1,
            human(median(rates[at].clone())),
            to(at, "redis"),
            to(at, "bare-redis"),
            to(at, "etcd"),
            median(costs[at].iter().map(|spent| spent.clients).collect()),
            median(costs[at].iter().map(|spent| spent.server).collect()),
        );
    }
    Ok(())
}
