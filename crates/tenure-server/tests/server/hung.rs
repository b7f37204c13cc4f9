//! A store that does not answer: whoever asked is told in time, and its place is free again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::clock::SystemClock;
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_proto::v1;
use tenure_server::ServerLimits;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::serving::{
    Serving, acquire, asking, end_of, in_line, next, release, terms, told, waiting,
};

const SCOPE: &str = "billing.nightly/close";
const WITHIN: Duration = Duration::from_millis(400);
const NEVER: Fault = Fault::Delay(Duration::from_secs(3_600));

/// A server that works on so many requests at a time, each for so long at most.
async fn start(requests: usize) -> Result<(Serving, Arc<FaultPlan>)> {
    let (plan, memory) = (FaultPlan::scripted(), MemoryStore::new().into_store());
    let faulty = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let limits = ServerLimits { requests, request_timeout: WITHIN, ..ServerLimits::default() };
    let server = Serving::start_with(&Store::new(faulty), limits, Duration::from_secs(1)).await?;
    Ok((server, plan))
}

fn put() -> v1::CommitRequest {
    let key = Some(v1::Key { kind: "thing".into(), id: "1".into() });
    let put = v1::Put { key, payload: "a".into(), ..v1::Put::default() };
    let write = v1::Write { write: Some(v1::write::Write::Put(put)) };
    v1::CommitRequest { writes: vec![write], ..v1::CommitRequest::default() }
}

#[tokio::test]
async fn what_may_have_happened_is_unknown_and_what_was_only_read_can_be_asked_again() -> Result<()>
{
    let (server, plan) = start(1).await?;
    let (mut leases, mut store) = (server.leases().await?, server.store().await?);
    acquire(&leases, SCOPE, terms("a#1")).await?;

    plan.next(Operation::Commit, NEVER);
    told(store.commit(put()).await, Code::Unknown, "unknown")?;
    plan.next(Operation::Commit, NEVER);
    let revoke = v1::RevokeRequest { scope: SCOPE.into(), ..v1::RevokeRequest::default() };
    told(leases.revoke(revoke).await, Code::Unknown, "unknown")?;
    plan.next(Operation::List, NEVER);
    let list = v1::ListLeasesRequest::default();
    told(leases.list(list.clone()).await, Code::Unavailable, "unavailable")?;
    // Whoever may ask again has to: it may have been granted. Of whoever cannot it is let go of.
    for (owner, code, word) in
        [("a#1", Code::Unknown, "unknown"), ("a", Code::Unavailable, "unavailable")]
    {
        plan.next(Operation::Commit, NEVER);
        told(acquire(&leases, "billing/other", terms(owner)).await, code, word)?;
    }

    // Several calls to the store, none of them too long, are one request.
    let slow = Fault::Delay(WITHIN * 3 / 4);
    plan.next(Operation::List, slow);
    plan.next(Operation::List, slow);
    let show = v1::ShowSlotsRequest { group: "billing.pool".into() };
    let shown = server.slots().await?.show(show).await;
    told(shown, Code::Unavailable, "unavailable")?;

    // None of them keeps its place.
    store.commit(put()).await?;
    ensure!(!leases.list(list).await?.into_inner().leases.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_small_call_among_others_is_answered_too() -> Result<()> {
    let (server, plan) = start(1).await?;
    let mut store = server.store().await?;
    let (calls, outgoing) = tokio::sync::mpsc::channel(1);
    let mut answers = store.exchange(ReceiverStream::new(outgoing)).await?.into_inner();
    plan.next(Operation::Commit, NEVER);
    let call = |id| v1::Call { id, call: Some(v1::call::Call::Commit(put())) };
    calls.send(v1::ExchangeRequest { calls: vec![call(1)] }).await?;
    let first = next(&mut answers).await?.context("it ended")?.answers.remove(0).answer;
    let Some(v1::answer::Answer::Error(error)) = first else { anyhow::bail!("{first:?}") };
    ensure!(error.code == "unknown", "{error:?}");
    calls.send(v1::ExchangeRequest { calls: vec![call(2)] }).await?;
    let second = next(&mut answers).await?.context("it ended")?.answers.remove(0).answer;
    ensure!(matches!(second, Some(v1::answer::Answer::Commit(_))), "{second:?}");
    Ok(())
}

#[tokio::test]
async fn a_wait_takes_as_long_as_it_takes() -> Result<()> {
    let (server, plan) = start(8).await?;
    let leases = server.leases().await?;
    let grant = acquire(&leases, SCOPE, terms("a#1")).await?;
    let waiter = asking(&leases, SCOPE, waiting("b#1"));
    in_line(&leases, SCOPE, 1).await?;
    // By the time that this is given up, the wait has lasted longer than a request may.
    plan.next(Operation::Touch, NEVER);
    let key = Some(v1::Key { kind: "thing".into(), id: "1".into() });
    let touches = vec![v1::Touch { key, revision: 1, ttl_ms: 1_000 }];
    let touched = server.store().await?.touch(v1::TouchRequest { touches }).await;
    told(touched, Code::Unknown, "unknown")?;
    release(&leases, &grant).await?;
    ensure!(end_of(waiter).await??.owner == "b#1");
    Ok(())
}

#[tokio::test]
async fn a_stream_that_does_not_begin_is_given_up_and_its_room_is_free() -> Result<()> {
    let (plan, memory) = (FaultPlan::scripted(), MemoryStore::new().into_store());
    let faulty = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let limits = ServerLimits { streams: 1, request_timeout: WITHIN, ..ServerLimits::default() };
    let server = Serving::start_with(&Store::new(faulty), limits, Duration::from_secs(1)).await?;
    let (mut leases, mut store) = (server.leases().await?, server.store().await?);
    let mut elections = server.elections().await?;
    let objects = || v1::WatchRequest { kind: Some("thing".into()), ..v1::WatchRequest::default() };
    plan.next(Operation::Watch, NEVER);
    told(store.watch(objects()).await.map(drop), Code::Unavailable, "unavailable")?;
    plan.next(Operation::Watch, NEVER);
    let watch = v1::WatchLeasesRequest::default();
    told(leases.watch(watch).await.map(drop), Code::Unavailable, "unavailable")?;
    plan.next(Operation::Watch, NEVER);
    let observe = v1::ObserveRequest { scope: SCOPE.into() };
    told(elections.observe(observe).await.map(drop), Code::Unavailable, "unavailable")?;
    // Once begun, it lasts.
    let mut watched = store.watch(objects()).await?.into_inner();
    ensure!(next(&mut watched).await?.is_some());
    tokio::time::sleep(WITHIN * 2).await;
    store.commit(put()).await?;
    ensure!(next(&mut watched).await?.context("it ended")?.events.len() == 1);
    Ok(())
}
