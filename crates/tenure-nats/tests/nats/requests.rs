//! Requests: one message for each write, many at once on one connection, and none that hangs. A request
//! must not depend on another one: its caller may leave it unpolled, and the server may take no more.

use std::time::Duration;

use futures::FutureExt as _;
use tenure::Error;
use tenure::clock::{Clock, SystemClock};
use tenure::store::Expect;
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::Nats;
use tokio::runtime::Handle;

use crate::common::{OrFail, Outcome, Server, connections, open, put};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("requests::a_store_has_one_connection_and_a_write_is_one_message", one_connection);
    trials.test("requests::nobody_waits_for_one_that_is_not_polled", move || unpolled(server));
    trials.test("requests::a_client_that_takes_no_more_is_told_in_time", || no_more(true));
    trials.test("requests::so_it_is_on_another_runtime", || no_more(false));
    trials.test("requests::what_is_under_way_is_answered_though_the_store_closes", closed);
}

async fn one_connection() -> Outcome {
    const WRITES: u64 = 20;
    let server = Nats::start().or_fail()?;
    let store = open(&server.url_of("b")).await?;
    let sent = || async {
        let all = connections(&server).await?;
        ensure!(all.len() == 1 && all[0]["name"] == "tenure b", "{all:?}");
        Ok::<_, Failure>(all[0]["in_msgs"].as_u64().unwrap_or_default())
    };
    let before = sent().await?;
    store.commit(put("a", "first")).await?;
    for n in 1..WRITES {
        store.commit(put("a", &n.to_string())).await?;
    }
    let messages = sent().await? - before;
    // The first one looks at what is there.
    ensure!((WRITES..=WRITES + 1).contains(&messages), "{messages} messages");
    Ok(())
}

async fn unpolled(server: Server) -> Outcome {
    let store = open(&server.fresh_bucket()).await?;
    let create = |id: &str| store.commit(put(id, "x").expect(Expect::Absent)).boxed();
    // Two are under way and left alone.
    let (mut first, mut second) = (create("a"), create("b"));
    ensure!(futures::poll!(&mut first).is_pending(), "answered at once");
    ensure!(futures::poll!(&mut second).is_pending(), "answered at once");
    let one = Duration::from_secs(1);
    tokio::time::timeout(one, create("c")).await.or_fail()??;
    // What the others asked was sent as well.
    tokio::time::timeout(one, second).await.or_fail()??;
    tokio::time::timeout(one, first).await.or_fail()??;
    Ok(())
}

async fn no_more(is_here: bool) -> Outcome {
    // More than the sockets of a frozen server and the client's queue hold.
    const REQUESTS: usize = 4000;
    let timeout = Duration::from_millis(700);
    let server = Nats::start().or_fail()?;
    let options = Options::new().reply_timeout(timeout);
    let store = NatsStore::connect_with(&server.fresh_bucket(), options).await?.into_store();
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
    // Four thousand of them take a busy machine a while, too. Waiting for one another would take longer.
    ensure!(took < timeout * 6, "{took:?}");
    let mut unknown = 0;
    for told in told {
        match told.or_fail()? {
            Err(Error::Unavailable { .. }) => {}
            Err(Error::Unknown { .. }) => unknown += 1,
            other => ensure!(false, "a frozen server answered {other:?}"),
        }
    }
    // What the client has in its queue may be sent later.
    ensure!(unknown > 0, "nothing is unknown");
    Ok(())
}

async fn closed() -> Outcome {
    let server = Nats::start().or_fail()?;
    let store = open(&server.fresh_bucket()).await?;
    store.commit(put("a", "first")).await?;
    server.pause(0).or_fail()?;
    let resuming = async {
        // Closing has all the time to break off what was sent before.
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.resume(0)
    };
    let (written, (), resumed) =
        futures::join!(store.commit(put("a", "last")), store.close(), resuming);
    resumed.or_fail()?;
    written?;
    Ok(())
}
