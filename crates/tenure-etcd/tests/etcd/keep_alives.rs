//! Lives that nobody confirms: transactions are applied while keep-alives break.

use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::clock::{Clock as _, ManualClock, SystemClock};
use tenure::lease::{Coordinator, Namespace, Scope, Terms};
use tenure::store::{Store, Touch};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_etcd::{EtcdStore, Options};

use crate::common::{OrFail as _, Outcome, Server, connect, eventually, key, put};
use crate::grpc_proxy::GrpcProxy;

const KEEP_ALIVE: &str = "LeaseKeepAlive";

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("etcd::a_life_that_nobody_confirmed_is_not_held", move || not_held(server));
    trials.test("etcd::keep_alives_that_break_at_once_are_not_sent_without_a_pause", move || {
        paused(server)
    });
    trials.test("etcd::a_touch_counts_only_if_its_object_is_found_afterwards", move || {
        found_afterwards(server)
    });
    trials.test("etcd::a_touch_that_took_a_life_looks_again", move || looks_again(server));
}

pub(crate) async fn behind(proxy: &GrpcProxy, prefix: &str) -> Result<Store, Failure> {
    let options = Options::new([format!("127.0.0.1:{}", proxy.port)]).prefix(prefix);
    let options = options.timeout(Duration::from_secs(2));
    Ok(EtcdStore::connect_with(options).await?.into_store())
}

/// The transaction puts the lease on an etcd lease that has lost part of its life, and the keep-alive
/// that is to make up for it breaks. A coordinator that finds its nonce there must not believe in a full life yet.
async fn not_held(server: Server) -> Outcome {
    let proxy = GrpcProxy::before(server.0.address(0)).await?;
    let coordinator = Coordinator::builder(behind(&proxy, "unconfirmed").await?).start()?;
    let scope = Scope::new(&Namespace::new(["unconfirmed"])?, "taken")?;
    // Not so short that a renewal is due by the time the store has given up on the keep-alive.
    let terms = Terms::new().ttl(Duration::from_secs(9));
    // Leaves an etcd lease behind that the next one uses.
    coordinator.acquire(&scope, &terms).await?.release().await?;
    proxy.break_calls(KEEP_ALIVE);
    match coordinator.acquire(&scope, &terms).await {
        Ok(lease) => Err(Failure::new(format!("held without a life: {lease:?}"))),
        Err(_) if proxy.tried(KEEP_ALIVE) == 0 => Err("no keep-alive was tried".into()),
        Err(_) => Ok(()),
    }
}

async fn paused(server: Server) -> Outcome {
    let proxy = GrpcProxy::before(server.0.address(0)).await?;
    let store = behind(&proxy, "paused").await?;
    let life = Duration::from_secs(60);
    let done = store.commit(put("a", "x").ttl(life)).await?.first_put().ok_or("no put")?;
    proxy.break_calls(KEEP_ALIVE);
    let before = SystemClock.uptime();
    let touch = Touch { key: key("a"), revision: done.revision, ttl: life };
    let touched = store.touch(vec![touch]).await.and_then(|mut touched| touched.remove(0));
    if touched.is_ok() {
        return Err("a touch was confirmed by nobody".into());
    }
    // Twenty a second, and as many again for what looks after unused leases.
    let took = SystemClock.uptime() - before;
    let (tried, most) = (proxy.tried(KEEP_ALIVE), took.as_millis() / 25 + 10);
    if u128::from(tried) > most {
        return Err(Failure::new(format!("{tried} keep-alives within {took:?}")));
    }
    Ok(())
}

/// A store that does not know the etcd lease of an object reads the object first and then keeps the lease
/// alive. Here the object ends in between and its etcd lease does not, as for a moment when a life runs out.
async fn found_afterwards(server: Server) -> Outcome {
    let proxy = GrpcProxy::before(server.0.address(0)).await?;
    let (far, near) =
        (behind(&proxy, "afterwards").await?, connect(&server.0.url("afterwards")).await?);
    let life = Duration::from_secs(60);
    let done = near.commit(put("a", "x").ttl(life)).await?.first_put().ok_or("no put")?;
    let touch = Touch { key: key("a"), revision: done.revision, ttl: life };
    touched_and_deleted(&proxy, far, near, touch, || ()).await
}

/// A store that knows the etcd lease keeps it alive while it reads the object. The object is found, but by the
/// time the keep-alive is answered its life may be over.
async fn looks_again(server: Server) -> Outcome {
    let proxy = GrpcProxy::before(server.0.address(0)).await?;
    let clock = ManualClock::new();
    let options = Options::new([format!("127.0.0.1:{}", proxy.port)]).prefix("again");
    let options = options.clock(Arc::new(clock.clone())).timeout(Duration::from_secs(600));
    let far = EtcdStore::connect_with(options).await?.into_store();
    let near = connect(&server.0.url("again")).await?;
    let life = Duration::from_secs(60);
    let done = far.commit(put("a", "x").ttl(life)).await?.first_put().ok_or("no put")?;
    let touch = Touch { key: key("a"), revision: done.revision, ttl: life };
    touched_and_deleted(&proxy, far, near, touch, || clock.advance(life)).await
}

/// Touches an object that is deleted when it has been read and its lease is about to be kept alive, which
/// succeeds: a delete leaves the etcd lease alone.
async fn touched_and_deleted(
    proxy: &GrpcProxy,
    far: Store,
    near: Store,
    touch: Touch,
    meanwhile: impl FnOnce(),
) -> Outcome {
    proxy.hold_calls(KEEP_ALIVE);
    let touching = tokio::spawn(async move { far.touch(vec![touch]).await });
    eventually("a keep-alive", || async { Ok(proxy.waiting(KEEP_ALIVE) > 0) }).await?;
    // Time for what is read beside it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    meanwhile();
    near.delete(&key("a")).await?;
    proxy.let_go();
    match touching.await.or_fail()??.remove(0) {
        Err(Error::NotFound { .. }) => Ok(()),
        touched => Err(Failure::new(format!("its object was gone, but {touched:?}"))),
    }
}
