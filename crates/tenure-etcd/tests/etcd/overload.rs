//! A server that has too much to do and says so.

use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::clock::{Clock as _, ManualClock, SystemClock};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_etcd::{EtcdStore, Options};

use crate::common::{OrFail as _, Outcome, Server, eventually, put};
use crate::grpc_proxy::GrpcProxy;
use crate::keep_alives::behind;

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("etcd::a_server_with_too_much_to_do_is_asked_again_after_a_pause", move || {
        asked_again(server)
    });
    trials.test("etcd::a_commit_whose_time_ran_out_says_what_the_server_said", move || {
        says_why(server)
    });
}

/// It did nothing, so the commit is tried again until its time is up; not at once, and not by
/// connecting and logging in again, which is more work for the server than the commit.
async fn asked_again(server: Server) -> Outcome {
    let proxy = GrpcProxy::before(server.0.address(0)).await?;
    let store = behind(&proxy, "overload").await?;
    store.commit(put("a", "1")).await?;
    let connected = proxy.connections();
    proxy.refuse_writes();
    let before = SystemClock.uptime();
    let error = store.commit(put("a", "2")).await.err();
    let took = SystemClock.uptime() - before;
    let refused = proxy.let_writes_pass();
    if !matches!(&error, Some(Error::Unavailable { reason, .. }) if reason.contains("too many")) {
        return Err(Failure::new(format!("the server did nothing, and the store says {error:?}")));
    }
    // Twenty a second.
    let most = took.as_millis() / Duration::from_millis(50).as_millis() + 2;
    let again = proxy.connections() - connected;
    if refused < 2 || u128::from(refused) > most || again > 0 {
        let text = format!("{refused} attempts and {again} connections within {took:?}");
        return Err(Failure::new(text));
    }
    store.commit(put("a", "2")).await?;
    Ok(())
}

/// Its time may run out while it waits to try again, and then it is still the server that was in its way.
async fn says_why(server: Server) -> Outcome {
    let proxy = GrpcProxy::before(server.0.address(0)).await?;
    let clock = ManualClock::new();
    let patience = Duration::from_secs(600);
    let options = Options::new([format!("127.0.0.1:{}", proxy.port)]).prefix("ran-out");
    let options = options.clock(Arc::new(clock.clone())).timeout(patience);
    let store = EtcdStore::connect_with(options).await?.into_store();
    store.commit(put("a", "1")).await?;
    proxy.refuse_writes();
    let committing = tokio::spawn(async move { store.commit(put("a", "2")).await });
    eventually("a refusal", || async { Ok(proxy.refused() > 0) }).await?;
    clock.advance(patience);
    match committing.await.or_fail()? {
        Err(Error::Unavailable { reason, .. }) if reason.contains("too many") => Ok(()),
        other => Err(Failure::new(format!("the server had too much to do, but {other:?}"))),
    }
}
