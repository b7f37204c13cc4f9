//! Several servers on one store, of which some end: clients notice no more than a reconnect.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::Key;
use tenure::backend::FeedLimits;
use tenure::clock::SystemClock;
use tenure::lease::{Coordinator, Terms};
use tenure::store::memory::MemoryStore;
use tenure::store::{Put, WatchRequest};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_server::ServerLimits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::{Outcome, Serving, connect, eventually, refused};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("commits_go_on_while_servers_leave_in_order", in_order);
    trials.test("a_lease_outlives_the_server_that_granted_it", lease_survives);
    trials.test("a_watch_misses_nothing_while_servers_are_replaced", watch_survives);
    trials.test("a_watch_of_something_quiet_outlives_history_and_its_server", quiet_watch);
    trials.test("nobody_there_is_told_with_the_next_step", nobody);
    trials.test("a_full_server_is_not_told_as_one_that_is_not_there", full);
}

/// Two servers on one store, and a client that knows both.
fn pair() -> (tenure::store::Store, Serving, Serving, String) {
    let store = MemoryStore::new().into_store();
    let (a, b) = (Serving::start(store.clone()), Serving::start(store.clone()));
    let url = format!("http://{},{}", a.address, b.address);
    (store, a, b, url)
}

/// An orderly end loses no answer: every one of many commits succeeds, none is unknown.
async fn in_order() -> Outcome {
    let (store, a, b, url) = pair();
    let client = connect(&url).await?;
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..100 {
                    let put = Put::new(Key::new("thing", format!("{writer}-{n}")), "x");
                    client.commit(put).await?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok::<(), tenure::Error>(())
            })
        })
        .collect();
    let written = || async {
        let page = store.list(&tenure::store::Query::new("thing").limit(1000)).await?;
        Ok::<_, Failure>(page.objects.len())
    };
    eventually("some are written", || async { Ok(written().await? > 200) }).await?;
    a.stop().await?;
    for writer in writers {
        writer.await??;
    }
    let all = store.list_all(&tenure::store::Query::new("thing").limit(1000)).await?;
    if all.len() != 1600 {
        return Err(Failure::new(format!("{} of 1600 were written", all.len())));
    }
    drop(b);
    Ok(())
}

async fn lease_survives() -> Outcome {
    let (_store, a, b, url) = pair();
    let coordinator = Coordinator::new(connect(&url).await?)?;
    let terms = Terms::new().ttl(Duration::from_millis(1500));
    let scope = "billing.nightly/close".parse()?;
    let lease = coordinator.acquire(&scope, &terms).await?;
    let revision = coordinator.holder(&scope).await?.map(|info| info.revision);
    // Gone without a word, in the middle of things.
    drop(a);
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(loss) = lease.loss() {
            return Err(Failure::new(format!("lost: {loss}")));
        }
    }
    let holder = coordinator.holder(&scope).await?;
    if holder.as_ref().map(|info| (info.token, info.revision))
        != revision.map(|r| (lease.token(), r))
    {
        return Err(Failure::new(format!("held by {holder:?}")));
    }
    lease.release().await?;
    drop(b);
    Ok(())
}

async fn watch_survives() -> Outcome {
    let (store, a, b, url) = pair();
    let client = connect(&url).await?;
    let mut watch = client.watch(&WatchRequest::kind("thing")).await?;
    let writing = tokio::spawn(async move {
        for n in 0..600 {
            store.commit(Put::new(Key::new("thing", format!("{n:04}")), "x")).await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<(), tenure::Error>(())
    });
    let mut servers = vec![b, a];
    let mut seen = 0;
    while seen < 600 {
        let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let batch = batch.map_err(|_| Failure::new(format!("nothing after {seen}")))?;
        let batch = batch.ok_or_else(|| Failure::new("the watch ended"))??;
        for event in &batch.events {
            if event.key().id != format!("{seen:04}") {
                return Err(Failure::new(format!("{} instead of {seen:04}", event.key())));
            }
            seen += 1;
        }
        // The one it watches at goes without a word.
        if seen >= 200 && servers.len() == 2 {
            servers.pop();
        }
    }
    writing.await??;
    Ok(())
}

async fn quiet_watch() -> Outcome {
    const KEPT: usize = 50;
    let limits = FeedLimits { batches: KEPT, bytes: usize::MAX };
    let store = MemoryStore::with_history(SystemClock::shared(), limits).into_store();
    let (a, b) = (Serving::start(store.clone()), Serving::start(store.clone()));
    let client = connect(&format!("http://{},{}", a.address, b.address)).await?;
    let mut watch = client.watch(&WatchRequest::kind("quiet")).await?;
    let mut busy = client.watch(&WatchRequest::kind("busy")).await?;
    for n in 0..KEPT * 4 {
        store.commit(Put::new(Key::new("busy", n.to_string()), "x")).await?;
        // The server keeps up.
        busy.next().await.ok_or_else(|| Failure::new("the busy watch ended"))??;
    }
    let start = client.watch(&WatchRequest::kind("quiet").after(watch.start())).await;
    let gone = async { start?.next().await.transpose() };
    if !matches!(gone.await, Err(tenure::Error::Compacted { .. })) {
        return Err(Failure::new("all of history is still there"));
    }
    let last = store.list(&tenure::store::Query::new("busy").limit(1)).await?.revision;
    for _ in 0..200 {
        if watch.told() >= last {
            break;
        }
        if let Ok(told) = tokio::time::timeout(Duration::from_millis(100), watch.next()).await {
            return Err(Failure::new(format!("told {told:?}")));
        }
    }
    if watch.told() < last {
        return Err(Failure::new(format!("it is at {} of {last}", watch.told())));
    }
    // The one it watches at goes without a word, and nothing was ever told from there.
    let address = a.address;
    drop(a);
    let is_gone = || async { Ok(TcpStream::connect(address).await.is_err()) };
    eventually("the server is gone", is_gone).await?;
    store.commit(Put::new(Key::new("quiet", "a"), "x")).await?;
    let batch = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    let batch = batch.map_err(|_| Failure::new("nothing is told"))?;
    let batch = batch.ok_or_else(|| Failure::new("the watch ended"))??;
    if batch.events.len() != 1 || batch.events[0].key().id != "a" {
        return Err(Failure::new(format!("told {batch:?}")));
    }
    drop(b);
    Ok(())
}

async fn full() -> Outcome {
    let limits = ServerLimits { connections: 1, ..ServerLimits::default() };
    let store = MemoryStore::new().into_store();
    let server = Serving::start_with(store, SocketAddr::from(([127, 0, 0, 1], 0)), limits);
    let mut taken = TcpStream::connect(server.address).await?;
    taken.write_all(b"GET /healthz HTTP/1.1\r\nhost: tenure\r\n\r\n").await?;
    taken.read_exact(&mut [0; 12]).await?;
    let error = refused(connect(&server.url()).await)?;
    let text = error.to_string();
    if error.code() != "unavailable"
        || !text.contains("no server takes it at present; try again later")
        || !text.contains("connections")
        || text.contains("start one")
    {
        return Err(Failure::new(format!("told {text}")));
    }
    Ok(())
}

async fn nobody() -> Outcome {
    let error = refused(connect("http://127.0.0.1:1").await)?;
    let text = error.to_string();
    if error.code() != "unavailable"
        || !text.contains("no server on 127.0.0.1:1; start one with `tenure serve`")
    {
        return Err(Failure::new(format!("told {text}")));
    }
    Ok(())
}
