//! Sequences that go back: a server that lost what it had not flushed, and a bucket that was deleted and
//! made anew. Watchers are told, and go on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::store::{Store, Watch, WatchRequest};
use tenure::{Error, Result};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::Nats;
use tokio::task::JoinSet;

use crate::common::{OrFail, Outcome, Server, eventually, open, put};
use crate::outage::{Relay, happen};

const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than it takes a watch to look for changes by itself, where it does so often.
const LOOK: Duration = Duration::from_millis(300);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("back::a_watch_of_what_a_server_lost_says_so_and_another_goes_on", lost);
    trials.test("back::a_watch_says_so_if_it_was_cut_off_meanwhile", || lost_while_away(false));
    trials.test("back::a_watch_that_comes_back_among_constant_writes_says_so", || {
        lost_while_away(true)
    });
    trials.test("back::a_watch_that_heard_nothing_yet_says_so_among_constant_writes", move || {
        among_writes(server, 100)
    });
    trials.test("back::a_watch_looks_for_another_bucket_among_constant_writes", move || {
        among_writes(server, 0)
    });
    trials.test("back::a_watch_of_a_bucket_made_anew_says_so_and_another_goes_on", move || {
        made_anew(server)
    });
}

/// Waits until the watch has told this revision.
async fn heard(watch: &mut Watch, revision: u64) -> Outcome {
    loop {
        let batch = tokio::time::timeout(PATIENCE, watch.next()).await.or_fail()?;
        let told = batch.ok_or("the watch ended")??.revision;
        if told >= revision {
            ensure_eq!(told, revision);
            return Ok(());
        }
    }
}

async fn write(store: &Store, id: &str) -> Result<u64> {
    Ok(store.commit(put(id, "x")).await?.revision.unwrap_or(0))
}

/// What a watch says instead of news.
async fn end_of(watch: &mut Watch) -> Result<Error, Failure> {
    match tokio::time::timeout(PATIENCE, watch.next()).await.or_fail()? {
        Some(Err(end)) => Ok(end),
        other => Err(Failure::new(format!("a watch whose sequences went back: {other:?}"))),
    }
}

/// A new watch of a store that has seen sequences go back tells what happens from now on.
async fn goes_on(observer: &Store, store: &Store) -> Outcome {
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    for id in ["after", "wards"] {
        let revision = write(store, id).await?;
        heard(&mut watch, revision).await?;
    }
    Ok(())
}

async fn lost() -> Outcome {
    let server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let (store, observer) = (open(&url).await?, open(&url).await?);
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let revision = write(&store, "kept").await?;
    heard(&mut watch, revision).await?;
    let (server, ()) = happen(server, |server| {
        server.stop(0)?;
        server.save(0)?;
        server.start_again(0)
    })
    .await?;
    let back = || async { Ok(write(&store, "back").await.is_ok()) };
    eventually("the store is back", back).await?;
    let mut last = 0;
    for n in 0..20 {
        last = write(&store, &format!("lost-{n}")).await?;
    }
    heard(&mut watch, last).await?;
    let (server, ()) = happen(server, |server| {
        server.kill(0)?;
        server.put_back(0)?;
        server.start_again(0)
    })
    .await?;
    match end_of(&mut watch).await? {
        Error::Compacted { requested, oldest } => {
            ensure_eq!(requested, last);
            ensure!(oldest < last, "{oldest} after {last}");
        }
        other => return Err(Failure::new(format!("the watch ended with {other}"))),
    }
    goes_on(&observer, &store).await?;
    drop(server);
    Ok(())
}

/// When the watch is connected again, the server has drawn more sequences than it had lost. A server that
/// loses power falls silent first, and whoever looks at that moment waits for it; and if it goes on to draw
/// sequences, the first thing that the watch hears is one of those.
async fn lost_while_away(is_busy: bool) -> Outcome {
    let server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let relay = Relay::to(server.port(0)).await?;
    let bucket = url.rsplit('/').next().unwrap_or_default();
    let store = open(&url).await?;
    let url = format!("nats://127.0.0.1:{}/{bucket}", relay.port);
    let options = Options::new().reply_timeout(PATIENCE * 2);
    let options = if is_busy { options.poll_interval(LOOK / 30) } else { options };
    let observer = NatsStore::connect_with(&url, options).await?.into_store();
    // From the first watch on the bucket tells of what it stores, also after it has lost something.
    drop(store.watch(&WatchRequest::kind("thing")).await?);
    let (server, ()) = happen(server, |server| {
        server.stop(0)?;
        server.save(0)?;
        server.start_again(0)
    })
    .await?;
    let back = || async { Ok(write(&store, "back").await.is_ok()) };
    eventually("the store is back", back).await?;
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let last = write(&store, "lost").await?;
    heard(&mut watch, last).await?;
    if is_busy {
        // It has looked, and all is well; then it looks again, and hears nothing.
        tokio::time::sleep(LOOK).await;
        server.pause(0).or_fail()?;
        tokio::time::sleep(LOOK).await;
    }
    relay.cut().await;
    let (server, ()) = happen(server, |server| {
        server.kill(0)?;
        server.put_back(0)?;
        server.start_again(0)
    })
    .await?;
    let ids = AtomicU32::new(0);
    eventually("more is written than was lost", || async {
        let id = format!("new-{}", ids.fetch_add(1, Ordering::Relaxed));
        Ok(write(&store, &id).await.is_ok_and(|new| new > last + 5))
    })
    .await?;
    let mut writing = JoinSet::new();
    for writer in 0..if is_busy { 32 } else { 0 } {
        let store = store.clone();
        writing.spawn(async move {
            for n in 0.. {
                let _ = write(&store, &format!("busy-{writer}-{n}")).await;
            }
        });
    }
    relay.mend();
    let end = end_of(&mut watch).await?;
    ensure!(matches!(end, Error::Compacted { .. }), "the watch ended with {end}");
    drop(writing);
    goes_on(&observer, &store).await?;
    drop(server);
    Ok(())
}

async fn made_anew(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let (store, observer) = (open(&url).await?, open(&url).await?);
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    let revision = write(&store, "a").await?;
    heard(&mut watch, revision).await?;
    delete(server, &url).await?;
    // Whoever comes makes it anew; it draws as many sequences as the other one had, and more.
    let other = open(&url).await?;
    for n in 0..5 {
        write(&other, &format!("new-{n}")).await?;
    }
    let end = end_of(&mut watch).await?;
    let told = matches!(&end, Error::Compacted { .. } | Error::Refused { .. });
    ensure!(told, "the watch ended with {end}");
    goes_on(&observer, &other).await
}

/// A watch that heard nothing before its bucket was made anew, and that is told without a pause from
/// then on. With so many objects in the bucket before, the first news it has are of sequences that it
/// believes to be behind it; without any, nothing but a look tells the buckets apart.
async fn among_writes(server: Server, objects: usize) -> Outcome {
    let url = server.fresh_bucket();
    let (store, observer) = (open(&url).await?, open(&url).await?);
    for n in 0..objects {
        write(&store, &format!("old-{n}")).await?;
    }
    let mut watch = observer.watch(&WatchRequest::kind("thing")).await?;
    delete(server, &url).await?;
    let other = open(&url).await?;
    // It tells of what it stores from the first watch on.
    let _telling = other.watch(&WatchRequest::kind("thing")).await?;
    let writing = tokio::spawn(async move {
        for n in 0.. {
            let _ = write(&other, &format!("new-{n}")).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let end = async {
        loop {
            match watch.next().await {
                Some(Err(end)) => break Ok(end),
                Some(Ok(batch)) if objects > 0 => {
                    break Err(Failure::new(format!("what was before it is missing: {batch:?}")));
                }
                Some(Ok(_)) => {}
                None => break Err(Failure::new("the watch ended without a word")),
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, end).await.or_fail()??;
    writing.abort();
    let told = matches!(&end, Error::Compacted { .. } | Error::Refused { .. });
    ensure!(told, "the watch ended with {end}");
    Ok(())
}

/// Takes a bucket away.
async fn delete(server: Server, url: &str) -> Outcome {
    let bucket = url.rsplit('/').next().unwrap_or_default();
    let client = async_nats::connect(format!("127.0.0.1:{}", server.0.port(0))).await.or_fail()?;
    let raw = async_nats::jetstream::new(client);
    raw.delete_stream(format!("KV_{bucket}")).await.or_fail()?;
    Ok(())
}
