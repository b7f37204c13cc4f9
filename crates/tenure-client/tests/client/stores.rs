//! Two servers on one real store: leases are held at one and waited for at the other, and one of them
//! ends without a word.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::lease::{Coordinator, Scope, Terms, Wait};
use tenure::store::{Commit, Expect, Put, Store};
use tenure::{Error, Key, Result};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, OrFail};
use tenure_etcd::EtcdStore;
use tenure_nats::NatsStore;
use tenure_postgres::PostgresStore;
use tenure_testkit::{Etcd, Nats, Postgres};

use crate::common::{Outcome, Serving, connect, eventually};

/// Changes that each of the workers makes, and how many of these there are.
const CHANGES: usize = 12;
const WORKERS: usize = 6;

pub(crate) fn add(trials: &mut Trials) {
    for name in ["postgres", "etcd", "nats"] {
        trials.test(format!("replicas_on_{name}::one_holds_at_a_time"), || one_at_a_time(name));
        trials.test(format!("replicas_on_{name}::no_update_is_lost_with_a_replica"), || {
            no_lost_update(name)
        });
    }
}

/// A private server of a store, which ends with this, and where it is.
struct Backing {
    name: &'static str,
    url: String,
    _server: Box<dyn Any>,
}

impl Backing {
    fn start(name: &'static str) -> Result<Self, Failure> {
        let (url, server): (String, Box<dyn Any>) = match name {
            "postgres" => {
                let server = Postgres::start().or_fail()?;
                (server.fresh_database().or_fail()?, Box::new(server))
            }
            "etcd" => {
                let server = Etcd::start().or_fail()?;
                (server.url("replicas"), Box::new(server))
            }
            _ => {
                let server = Nats::start().or_fail()?;
                (server.fresh_bucket(), Box::new(server))
            }
        };
        Ok(Self { name, url, _server: server })
    }

    /// A connection of its own, as every replica has.
    async fn open(&self) -> Result<Store> {
        Ok(match self.name {
            "postgres" => PostgresStore::connect(&self.url).await?.into_store(),
            "etcd" => EtcdStore::connect(&self.url).await?.into_store(),
            _ => NatsStore::connect(&self.url).await?.into_store(),
        })
    }

    async fn pair(&self) -> Result<(Serving, Serving)> {
        Ok((Serving::start(self.open().await?), Serving::start(self.open().await?)))
    }
}

fn scope() -> Result<Scope> {
    "billing.nightly/close".parse()
}

/// Holders at both replicas in turn: never two, tokens that rise, and a prompt hand-over.
async fn one_at_a_time(name: &'static str) -> Outcome {
    let backing = Backing::start(name)?;
    let (a, b) = backing.pair().await?;
    let inside = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut holders = Vec::new();
    for n in 0..WORKERS {
        let server = if n % 2 == 0 { &a } else { &b };
        let coordinator = Coordinator::new(connect(&server.url()).await?)?;
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        holders.push(tokio::spawn(async move {
            let terms = Terms::new().wait(Wait::For(Duration::from_secs(60)));
            for _ in 0..CHANGES {
                let lease = coordinator.acquire(&scope()?, &terms).await?;
                if inside.swap(true, Ordering::AcqRel) {
                    return Err(Failure::new(format!("two hold it, one with {}", lease.token())));
                }
                tokens.lock().unwrap_or_else(PoisonError::into_inner).push(lease.token());
                tokio::time::sleep(Duration::from_millis(3)).await;
                inside.store(false, Ordering::Release);
                lease.release().await?;
            }
            Ok::<(), Failure>(())
        }));
    }
    for holder in holders {
        holder.await??;
    }
    let tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if tokens.len() != WORKERS * CHANGES || !tokens.is_sorted_by(|a, b| a < b) {
        return Err(Failure::new(format!("tokens do not rise: {tokens:?}")));
    }
    promptly(&a, &b).await
}

/// Somebody who waits at the other replica is told at once, not when the life would have ended.
async fn promptly(a: &Serving, b: &Serving) -> Outcome {
    let here = Coordinator::new(connect(&a.url()).await?)?;
    let there = Coordinator::new(connect(&b.url()).await?)?;
    let terms = Terms::new().ttl(Duration::from_secs(60)).wait(Wait::For(Duration::from_secs(60)));
    let lease = here.acquire(&scope()?, &terms).await?;
    let first = lease.token();
    let waiting = tokio::spawn(async move { there.acquire(&scope()?, &terms).await });
    if here.store().capabilities().multi_object_commits {
        eventually("somebody is in line", || async {
            Ok(here.status(&scope()?).await?.waiters.len() == 1)
        })
        .await?;
    } else {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    lease.release().await?;
    let next = tokio::time::timeout(Duration::from_secs(2), waiting).await;
    let next = next.map_err(|_| Failure::new("not told within two seconds"))???;
    if next.token() <= first {
        return Err(Failure::new(format!("{} after {first}", next.token())));
    }
    Ok(next.release().await?)
}

/// A list to which everybody adds under the lease, fenced where the store can: each entry is there
/// once, though one replica is gone in the middle.
async fn no_lost_update(name: &'static str) -> Outcome {
    let backing = Backing::start(name)?;
    let (a, b) = backing.pair().await?;
    let store = backing.open().await?;
    store.commit(Put::new(list(), "")).await?;
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        // Half of them begin at the one that will be gone.
        let (first, second) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let url = format!("http://{},{}", first.address, second.address);
        let coordinator = Coordinator::new(connect(&url).await?)?;
        workers.push(tokio::spawn(async move {
            for change in 0..CHANGES {
                add_entry(&coordinator, &format!("{n}.{change}")).await?;
            }
            Ok::<(), Failure>(())
        }));
    }
    eventually("a third is done", || async {
        Ok(entries(&store).await?.len() > WORKERS * CHANGES / 3)
    })
    .await?;
    drop(a);
    for worker in workers {
        worker.await??;
    }
    let mut all = entries(&store).await?;
    let count = all.len();
    all.sort();
    all.dedup();
    if count != WORKERS * CHANGES || all.len() != count {
        return Err(Failure::new(format!("{count} entries, {} different", all.len())));
    }
    Ok(())
}

fn list() -> Key {
    Key::new("list", "all")
}

async fn entries(store: &Store) -> Result<Vec<String>> {
    let object = store.get(&list()).await?.ok_or_else(|| Error::NotFound { key: list() })?;
    let text = String::from_utf8_lossy(&object.payload).into_owned();
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Adds one entry, however often it takes.
async fn add_entry(coordinator: &Coordinator, entry: &str) -> Outcome {
    // A life that is over soon after a replica has taken an answer with it.
    let terms = Terms::new().ttl(Duration::from_secs(3)).wait(Wait::For(Duration::from_secs(40)));
    for _ in 0..20 {
        let lease = match coordinator.acquire(&scope()?, &terms).await {
            Ok(lease) => lease,
            Err(Error::Unavailable { .. } | Error::Unknown { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let fence = coordinator.store().capabilities().multi_object_commits;
        let added = attempt(coordinator.store(), fence.then(|| lease.fence()), entry).await;
        // What it ends with does not matter here: it is free in the end.
        let _ = lease.release().await;
        match added {
            Ok(()) => return Ok(()),
            Err(
                Error::Lost { .. }
                | Error::Conflict { .. }
                | Error::Unknown { .. }
                | Error::Unavailable { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::new(format!("{entry} could not be added")))
}

async fn attempt(store: &Store, fence: Option<tenure::store::Fence>, entry: &str) -> Result<()> {
    let object = store.get(&list()).await?.ok_or_else(|| Error::NotFound { key: list() })?;
    let text = String::from_utf8_lossy(&object.payload).into_owned();
    // The last attempt went through, though its answer did not come.
    if text.split_whitespace().any(|known| known == entry) {
        return Ok(());
    }
    let put = Put::new(list(), format!("{text} {entry}")).expect(Expect::Version(object.version));
    let commit = Commit::from(put);
    let commit = match fence {
        Some(fence) => commit.fenced_by(fence),
        None => commit,
    };
    store.commit(commit).await.map(drop)
}
