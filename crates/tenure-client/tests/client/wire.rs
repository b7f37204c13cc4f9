//! What can go wrong between a client and its servers.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::lease::{Coordinator, Terms};
use tenure::store::memory::MemoryStore;
use tenure::store::{Put, Store, WatchRequest};
use tenure::{Error, Key};
use tenure_client::{Options, ServerStore};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, OrFail};
use tenure_server::ServerLimits;
use tenure_testkit::Proxy;

use crate::common::{Outcome, Serving, connect, eventually};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("wire::large_commits_at_once_go_in_several_messages", large);
    trials.test("wire::a_server_that_takes_small_messages_gets_small_ones", small);
    trials.test("wire::answers_are_taken_while_calls_wait_to_leave", flood);
    trials.test("wire::a_frozen_server_is_left_in_time_for_a_lease", frozen);
    trials.test("wire::a_watch_waits_for_a_server_that_is_behind", behind);
    trials.test("wire::what_never_left_is_unavailable_in_time", never_left);
    trials.test("wire::what_never_left_a_closed_store_is_unavailable", closed);
    trials.test("wire::the_only_server_may_restart", restart);
}

fn put(id: impl std::fmt::Display, bytes: usize) -> Put {
    Put::new(Key::new("thing", id.to_string()), vec![b'x'; bytes])
}

fn memory() -> Store {
    MemoryStore::new().into_store()
}

/// Together they are more than a server takes in one message.
async fn large() -> Outcome {
    let server = Serving::start(memory());
    let client = connect(&server.url()).await?;
    let size = client.capabilities().limits.payload_bytes;
    let writers: Vec<_> = (0..64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.commit(put(n, size)).await })
        })
        .collect();
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

/// What is too much for it is refused before it leaves, and nobody else's calls go down with it.
async fn small() -> Outcome {
    let limits = ServerLimits { message_bytes: 64 * 1024, ..ServerLimits::default() };
    let server = Serving::start_with(memory(), SocketAddr::from(([127, 0, 0, 1], 0)), limits);
    let client = connect(&server.url()).await?;
    let writers: Vec<_> = (0..256)
        .map(|n| {
            let (client, bytes) = (client.clone(), if n == 100 { 100_000 } else { 4_000 });
            tokio::spawn(async move { client.commit(put(n, bytes)).await })
        })
        .collect();
    for (n, writer) in writers.into_iter().enumerate() {
        match writer.await? {
            Ok(_) if n != 100 => {}
            Err(Error::LimitExceeded { .. }) if n == 100 => {}
            other => return Err(Failure::new(format!("{n} was told {other:?}"))),
        }
    }
    Ok(())
}

/// So many calls that neither side could send if one of them did not read.
async fn flood() -> Outcome {
    let server = Serving::start(memory());
    let client = connect(&server.url()).await?;
    client.commit(put("a", 32 * 1024)).await?;
    let readers: Vec<_> = (0..8_000)
        .map(|_| {
            let client = client.clone();
            let key = Key::new("thing", "a");
            tokio::spawn(async move {
                client.get(&key).await.map(|object| object.map(|o| o.payload.len()))
            })
        })
        .collect();
    for reader in readers {
        if reader.await?? != Some(32 * 1024) {
            return Err(Failure::new("read something else"));
        }
    }
    Ok(())
}

/// Connections stay open and nothing passes, as with a stopped process.
async fn frozen() -> Outcome {
    let store = memory();
    let (a, b) = (Serving::start(store.clone()), Serving::start(store.clone()));
    let proxy = Proxy::start(a.address.port()).or_fail()?;
    let url = format!("http://127.0.0.1:{},{}", proxy.port(), b.address);
    let client = connect(&url).await?;
    let coordinator = Coordinator::new(client.clone())?;
    let scope = "billing.nightly/close".parse()?;
    let terms = Terms::new().ttl(Duration::from_secs(10));
    let lease = coordinator.acquire(&scope, &terms).await?;
    let mut watch = client.watch(&WatchRequest::kind("thing")).await?;
    proxy.freeze();
    // What is under way is unknown, and told so in time; what comes next goes to the other.
    let first = client.commit(put("first", 1)).await;
    if !matches!(first, Ok(_) | Err(Error::Unknown { .. })) {
        return Err(Failure::new(format!("told {first:?}")));
    }
    client.commit(put("second", 1)).await?;
    let seen = tokio::time::timeout(Duration::from_secs(10), async {
        while let Some(batch) = watch.next().await {
            if batch?.events.iter().any(|event| event.key().id == "second") {
                return Ok(());
            }
        }
        Err(Failure::new("the watch ended"))
    });
    seen.await.map_err(|_| Failure::new("the watch stays with the frozen server"))??;
    tokio::time::sleep(Duration::from_secs(8)).await;
    if let Some(loss) = lease.loss() {
        return Err(Failure::new(format!("lost: {loss}")));
    }
    lease.release().await?;
    proxy.open();
    Ok(())
}

/// Two stores that say the same, one of them later: a replica that lags.
async fn behind() -> Outcome {
    let (ahead, late) = (memory(), memory());
    let (a, b) = (Serving::start(ahead.clone()), Serving::start(late.clone()));
    let client = connect(&format!("http://{},{}", a.address, b.address)).await?;
    let mut watch = client.watch(&WatchRequest::kind("thing")).await?;
    for n in 0..5 {
        ahead.commit(put(n, 1)).await?;
        let batch = watch.next().await.ok_or_else(|| Failure::new("the watch ended"))??;
        if batch.events[0].key().id != n.to_string() {
            return Err(Failure::new(format!("{batch:?} instead of {n}")));
        }
    }
    drop(a);
    let writing = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for n in 0..8 {
            late.commit(put(n, 1)).await?;
        }
        Ok::<(), Error>(())
    });
    for n in 5..8 {
        let batch = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
        let batch = batch.map_err(|_| Failure::new("nothing more is told"))?;
        let batch = batch.ok_or_else(|| Failure::new("the watch ended"))??;
        if batch.events[0].key().id != n.to_string() {
            return Err(Failure::new(format!("{batch:?} instead of {n}")));
        }
    }
    writing.await??;
    drop(b);
    Ok(())
}

async fn never_left() -> Outcome {
    let server = Serving::start(memory());
    let options = Options::new(&server.url())?.timeout(Duration::from_secs(1));
    let client = ServerStore::open(options).await?.into_store();
    client.commit(put("a", 1)).await?;
    drop(server);
    // The first may have left before the connection was known to be gone.
    let _ = client.commit(put("b", 1)).await;
    let written = client.commit(put("c", 1)).await.map(drop);
    let key = Key::new("thing", "a");
    let read = tokio::time::timeout(Duration::from_secs(3), client.get(&key)).await;
    let read = read.map_err(|_| Failure::new("a read takes longer than its time"))?.map(drop);
    for told in [written, read] {
        match told {
            Err(Error::Unavailable { reason, .. }) if reason.contains("tenure serve") => {}
            other => return Err(Failure::new(format!("told {other:?}"))),
        }
    }
    Ok(())
}

async fn closed() -> Outcome {
    let server = Serving::start(memory());
    let client = connect(&server.url()).await?;
    client.commit(put("a", 1)).await?;
    drop(server);
    let _ = tokio::time::timeout(Duration::from_secs(1), client.commit(put("b", 1))).await;
    let writers: Vec<_> = (0..20)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.commit(put(n, 1)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.close().await;
    for writer in writers {
        let told = tokio::time::timeout(Duration::from_secs(5), writer).await;
        match told.map_err(|_| Failure::new("it waits though the store is closed"))?? {
            Err(Error::Unavailable { .. }) => {}
            other => return Err(Failure::new(format!("told {other:?}"))),
        }
    }
    Ok(())
}

/// Not one call fails though nobody is there for a while.
async fn restart() -> Outcome {
    let store = memory();
    let server = Serving::start(store.clone());
    let (client, address) = (connect(&server.url()).await?, server.address);
    let writing = {
        let client = client.clone();
        tokio::spawn(async move {
            for n in 0..300 {
                client.commit(put(n, 1)).await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<(), Error>(())
        })
    };
    eventually("some are written", || async {
        Ok(store.get(&Key::new("thing", "50")).await?.is_some())
    })
    .await?;
    server.stop().await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let again = Serving::start_at(store.clone(), address);
    writing.await??;
    drop(again);
    Ok(())
}
