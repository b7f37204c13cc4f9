//! Processes killed while their commits carry the user's own SQL: each commit changes an object and
//! counts in a row, so the object's version and the row's number are the same at every instant.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tenure::random::{SeededRandom, SystemRandom, below, nonce};
use tenure::store::{Commit, Put, Store};
use tenure::{Error, Key};
use tokio::time::timeout;

use crate::Failure;
use crate::context::{Context, PATIENCE};
use crate::process::Worker;
use crate::user_table::{SharedTable, Then};
use crate::worker::Request;

/// Commits that a worker has under way at the same time, so that some share a transaction.
const AT_ONCE: usize = 4;

/// The request to a worker: change this object and count in this row, together, until killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Both {
    pub kind: String,
    pub id: String,
    pub row: String,
}

impl Both {
    fn key(&self) -> Key {
        Key::new(&self.kind, &self.id)
    }

    /// Runs until killed, and says how many commits were acknowledged.
    pub(crate) async fn run(
        self,
        store: &Store,
        table: &SharedTable,
        say: impl Fn(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        let acked = AtomicU64::new(0);
        let one = || async {
            loop {
                // Never the same twice, so that every commit that applies is a version.
                let put = Put::new(self.key(), nonce(&SystemRandom));
                let commit = Commit::from(put).attach(table.count(&self.row, Then::Apply));
                match store.commit(commit).await {
                    Ok(_) => say(&(acked.fetch_add(1, Ordering::AcqRel) + 1).to_string())?,
                    Err(Error::Unavailable { .. } | Error::Unknown { .. }) => {}
                    Err(error) => return say(&error.to_string()),
                }
            }
        };
        join_all((0..AT_ONCE).map(|_| one())).await.into_iter().collect()
    }
}

/// Kills a worker in the middle of such commits, so many times, and compares after each.
pub(crate) async fn kill_rounds(ctx: &Context, rounds: u32, seed: u64) -> Result<(), Failure> {
    let random = SeededRandom::new(seed);
    let kind = ctx.kind("both");
    let both = Both { id: "one".into(), row: format!("{kind}-row"), kind };
    let mut before = 0;
    for round in 0..rounds {
        let what = format!("round {round} of seed {seed}");
        let wanted = below(&random, 40) + 1;
        let killed = timeout(PATIENCE * 3, killed_after(ctx, &both, wanted)).await;
        let acked = killed.map_err(|_| format!("{what}: {wanted} commits took too long"))??;
        let found = compare(ctx, &both).await.map_err(|failure| failure.during(&what))?;
        ensure!(
            found >= before + acked,
            "{what}: {acked} were acknowledged after {before}, {found} are there"
        );
        before = found;
    }
    Ok(())
}

/// How many commits a worker acknowledged that was killed after it had acknowledged so many.
async fn killed_after(ctx: &Context, both: &Both, wanted: u64) -> Result<u64, Failure> {
    let mut worker = Worker::start(ctx.worker()?)?;
    worker.send(0, Request::Both(both.clone())).await?;
    let mut acked = 0;
    let count = |line: &str| -> Result<u64, Failure> {
        line.parse().map_err(|_| Failure::new(format!("a worker was refused: {line}")))
    };
    while acked < wanted {
        let line = worker.line().await?.ok_or("a worker ended by itself")?;
        acked = acked.max(count(&line)?);
    }
    worker.kill().await?;
    while let Some(line) = worker.line().await? {
        acked = acked.max(count(&line)?);
    }
    Ok(acked)
}

/// The object's version, which the row must equal.
async fn compare(ctx: &Context, both: &Both) -> Result<u64, Failure> {
    let version = async || -> Result<u64, Failure> {
        let object = ctx.store().get(&both.key()).await?;
        Ok(object.map_or(0, |object| object.version))
    };
    // A server may finish what a dead process had sent: the row counts if the object stood still.
    for _ in 0..1_000 {
        let before = version().await?;
        let row = ctx.table()?.read(&both.row).await?;
        if version().await? == before {
            ensure_eq!(row, before, "the row and the object's version");
            return Ok(before);
        }
    }
    Err("a killed worker goes on writing".into())
}
