//! Requests that are ready at the same time are sent together. Nobody may depend on another who asks: it
//! may be left unpolled, and the server may take no more.

use std::time::Duration;

use futures::FutureExt as _;
use tenure::Error;
use tenure::clock::{Clock, SystemClock};
use tenure::store::Expect;
use tenure_conformance::ensure;
use tenure_conformance::harness::Trials;
use tenure_nats::{NatsStore, Options};
use tenure_testkit::Nats;
use tokio::runtime::Handle;

use crate::common::{OrFail, Outcome, Server, connections, eventually, open, put};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("together::nobody_waits_for_one_that_is_not_polled", move || unpolled(server));
    trials.test("together::a_client_that_takes_no_more_is_told_in_time", || no_more(true));
    trials.test("together::so_it_is_on_another_runtime", || no_more(false));
}

async fn unpolled(server: Server) -> Outcome {
    let store = open(&server.fresh_bucket()).await?;
    let create = |id: &str| store.commit(put(id, "x").expect(Expect::Absent)).boxed();
    // One under way, and the next one lets everybody else come first. Then both are left alone.
    let (mut under_way, mut next) = (create("a"), create("b"));
    ensure!(futures::poll!(&mut under_way).is_pending(), "answered at once");
    ensure!(futures::poll!(&mut next).is_pending(), "answered at once");
    let second = Duration::from_secs(1);
    tokio::time::timeout(second, create("c")).await.or_fail()??;
    // What the others asked was sent as well.
    tokio::time::timeout(second, next).await.or_fail()??;
    tokio::time::timeout(second, under_way).await.or_fail()??;
    Ok(())
}

/// Resolves when requests to a bucket have a connection of their own.
async fn has_a_way(server: &Nats, url: &str) -> Outcome {
    let bucket = url.rsplit('/').next().unwrap_or_default();
    let name = format!("tenure {bucket} requests");
    let is_there =
        || async { Ok(connections(server).await?.iter().any(|one| one["name"] == *name)) };
    eventually("requests have a way of their own", is_there).await
}

async fn no_more(is_here: bool) -> Outcome {
    // More than the sockets of a frozen server and the client's queue hold.
    const REQUESTS: usize = 4000;
    let patience = Duration::from_millis(700);
    let server = Nats::start().or_fail()?;
    let options = Options::new().reply_timeout(patience);
    let url = server.fresh_bucket();
    let store = NatsStore::connect_with(&url, options).await?.into_store();
    has_a_way(&server, &url).await?;
    let payload = "x".repeat(16 * 1024);
    server.pause(0).or_fail()?;
    let elsewhere = tokio::runtime::Runtime::new()?;
    let runtime = if is_here { &Handle::current() } else { elsewhere.handle() };
    let began = SystemClock.uptime();
    let told = (0..REQUESTS).map(|n| {
        let commit = put(format!("o{n}"), &payload).expect(Expect::Absent);
        let store = store.clone();
        runtime.spawn(async move { store.commit(commit).await })
    });
    let told = futures::future::join_all(told).await;
    let took = SystemClock.uptime() - began;
    elsewhere.shutdown_background();
    // Four thousand of them take a busy machine a while, too. Whoever waited for another would take longer.
    ensure!(took < patience * 6, "{took:?}");
    let (mut unsent, mut unknown) = (0, 0);
    for told in told {
        match told.or_fail()? {
            Err(Error::Unavailable { .. }) => unsent += 1,
            Err(Error::Unknown { .. }) => unknown += 1,
            other => ensure!(false, "a frozen server answered {other:?}"),
        }
    }
    // What waits for the client to take it is known to be unsent only where we hand it over.
    ensure!(unknown > 0 && (unsent > 0 || !is_here), "{unsent} not sent, {unknown} unknown");
    Ok(())
}
