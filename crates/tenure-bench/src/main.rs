//! Tenure beside the raw drivers, in one run, on this machine.
//!
//! Every figure is the median of several runs, every comparison is a ratio taken within one run:
//! machines are noisy, ratios less so. Nothing here asserts; it prints a Markdown table that
//! `docs/benchmarks.md` keeps.

mod etcd;
mod footprint;
mod handover;
mod leases;
mod measure;
mod memory;
mod nats;
mod postgres;
mod raw_etcd;
mod redis;
mod server;
mod size;
mod spent;
mod sqlite;
mod watch;

use std::time::Duration;

use clap::{Parser, Subcommand};

use measure::Plan;

/// The one of the `tenure` command, for us and for the peers in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Measures Tenure beside the raw drivers")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Runs of each measurement; the median counts.
    #[arg(long, global = true, default_value_t = 5)]
    runs: usize,
    /// Milliseconds of each run.
    #[arg(long, global = true, default_value_t = 1_000)]
    millis: u64,
}

#[derive(Subcommand)]
enum What {
    /// Everything below, one after the other.
    Store {
        /// Objects in the large store of the size comparison.
        #[arg(long, default_value_t = 1_000_000)]
        objects: usize,
    },
    /// Commits in memory.
    Memory,
    /// Durable commits in one SQLite file, beside rusqlite.
    Sqlite,
    /// Durable commits on a private Postgres, beside tokio-postgres.
    Postgres {
        /// How many writers at once, one row of the table for each.
        #[arg(long, value_delimiter = ',', default_value = "1,64,512")]
        writers: Vec<usize>,
    },
    /// Fan-out to a thousand watchers.
    Watch,
    /// Cost of get and commit in a small and in a large store.
    Size {
        /// Objects in the large store.
        #[arg(long, default_value_t = 1_000_000)]
        objects: usize,
        /// Which stores.
        #[arg(long, value_delimiter = ',', default_value = "memory,sqlite,postgres")]
        stores: Vec<String>,
    },
    /// Cycles, renewals and hand-overs of leases, beside raw Postgres and Redis.
    Leases {
        /// How many clients at once, one row of the table for each.
        #[arg(long, value_delimiter = ',', default_value = "1,64")]
        clients: Vec<usize>,
        /// Which stores.
        #[arg(long, value_delimiter = ',', default_value = "memory,sqlite,postgres")]
        stores: Vec<String>,
        /// Cycles alone.
        #[arg(long)]
        cycles: bool,
    },
    /// Cycles of leases on a private etcd, beside bare transactions, and round trips.
    Etcd,
    /// Cycles of leases on a private NATS server, beside async-nats.
    Nats,
    /// Cycles through a server on SQLite beside Redis and etcd; sessions and waiters in numbers.
    Server {
        /// How many clients at once, one table for each.
        #[arg(long, value_delimiter = ',', default_value = "1,64")]
        clients: Vec<usize>,
        /// Which of rust, shared, calls, http, redis, bare-redis and etcd; all of them unless given.
        #[arg(long, value_delimiter = ',')]
        ways: Vec<String>,
        /// On a store in memory, to see what the way costs.
        #[arg(long)]
        memory: bool,
        /// Open sessions, and as many waiters; none with 0.
        #[arg(long, default_value_t = 10_000)]
        crowd: usize,
    },
    /// Serves for `server`.
    #[command(hide = true)]
    ServeForBench {
        /// The SQLite file; in memory without one.
        file: Option<std::path::PathBuf>,
    },
    /// Memory of idle leases and waiters.
    Footprint {
        /// Leases, and as many waiters.
        #[arg(long, default_value_t = 100_000)]
        count: usize,
        /// On which store, in this very process; by default on all, each in a process of its own.
        #[arg(long)]
        store: Option<String>,
        /// With --store: all waiters on one scope, instead of each on one of its own.
        #[arg(long)]
        together: bool,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let plan = Plan { runs: arguments.runs, time: Duration::from_millis(arguments.millis) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match arguments.what {
            What::Store { objects } => {
                memory::run(plan).await?;
                sqlite::run(plan).await?;
                postgres::run(plan, &[1, 64, 512]).await?;
                watch::run(plan).await?;
                size::run(plan, objects, &size::ALL.map(String::from)).await
            }
            What::Memory => memory::run(plan).await,
            What::Sqlite => sqlite::run(plan).await,
            What::Postgres { writers } => postgres::run(plan, &writers).await,
            What::Watch => watch::run(plan).await,
            What::Size { objects, stores } => size::run(plan, objects, &stores).await,
            What::Leases { clients, stores, cycles } => {
                leases::run(plan, &clients, &stores, cycles).await
            }
            What::Etcd => etcd::run(plan).await,
            What::Nats => nats::run(plan).await,
            What::Server { clients, ways, memory, crowd } => {
                server::run(plan, server::Choice { clients, ways, memory, crowd }).await
            }
            What::ServeForBench { file } => server::serve(file.as_deref()).await,
            What::Footprint { count, store, together } => {
                footprint::run(count, store.as_deref(), together).await
            }
        }
    })
}
