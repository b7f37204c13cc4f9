//! The orderly end: nobody is left without an answer, and another replica goes on.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt as _;
use tenure::clock::ManualClock;
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_proto::v1;
use tenure_server::api::{AcquireTerms, Api};
use tenure_server::auth::Caller;
use tenure_server::{ServerLimits, Shutdown};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::serving::{
    Serving, acquire, asking, end_of, in_line, next, on_each, release, terms, told, waiting,
};

const SCOPE: &str = "shop/a";

#[tokio::test]
async fn waits_and_streams_are_told_to_go_elsewhere_and_another_replica_takes_over() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let (mut here, there) = (a.leases().await?, b.leases().await?);
        let grant = acquire(&here, SCOPE, terms("a#1")).await?;
        let waiter = asking(&here, SCOPE, waiting("b#1"));
        in_line(&there, SCOPE, 1).await?;
        let watch = v1::WatchLeasesRequest { prefix: String::new(), after: None };
        let mut events = here.watch(watch).await?.into_inner();
        next(&mut events).await?.context("it watches")?;
        let observe = v1::ObserveRequest { scope: SCOPE.into() };
        let mut leaders = a.elections().await?.observe(observe).await?.into_inner();
        next(&mut leaders).await?.context("it observes")?;
        let mut objects = a.store().await?.watch(v1::WatchRequest::default()).await?.into_inner();
        next(&mut objects).await?.context("it watches objects")?;

        a.shutdown.begin();
        for told_so in [
            end_of(waiter).await?.map(drop),
            next(&mut events).await.map(drop),
            next(&mut leaders).await.map(drop),
            next(&mut objects).await.map(drop),
        ] {
            let error = told(told_so, Code::Unavailable, "unavailable")?;
            ensure!(error.backend == "server" && error.message.contains("another"), "{error:?}");
        }
        a.ended().await?;
        // Its waiter left the line with it, and the lease is still held.
        in_line(&there, SCOPE, 0).await?;
        let waiter = asking(&there, SCOPE, waiting("b#1"));
        in_line(&there, SCOPE, 1).await?;
        release(&there, &grant).await?;
        ensure!(end_of(waiter).await??.token > grant.token);
        Ok(())
    })
    .await
}

fn commit(id: u64) -> v1::ExchangeRequest {
    let put = v1::Put {
        key: Some(v1::Key { kind: "thing".into(), id: id.to_string() }),
        ..v1::Put::default()
    };
    let write = v1::Write { write: Some(v1::write::Write::Put(put)) };
    let commit = v1::CommitRequest { writes: vec![write], ..v1::CommitRequest::default() };
    v1::ExchangeRequest { calls: vec![v1::Call { id, call: Some(v1::call::Call::Commit(commit)) }] }
}

#[tokio::test]
async fn an_exchange_says_leaving_once_and_answers_what_is_sent_until_it_is_closed() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut client = server.store().await?;
        let (requests, outgoing) = mpsc::channel(8);
        let mut answers = client.exchange(ReceiverStream::new(outgoing)).await?.into_inner();
        requests.send(commit(1)).await?;
        ensure!(next(&mut answers).await?.context("an answer")?.answers.len() == 1);
        server.shutdown.begin();
        let leaving = next(&mut answers).await?.context("the word")?;
        ensure!(leaving.leaving && leaving.answers.is_empty(), "{leaving:?}");
        for id in 2..=5 {
            requests.send(commit(id)).await?;
        }
        drop(requests);
        let mut answered = 0;
        while let Some(message) = next(&mut answers).await? {
            ensure!(!message.leaving, "said once");
            for answer in message.answers {
                let done = matches!(answer.answer, Some(v1::answer::Answer::Commit(_)));
                ensure!(done, "{answer:?}");
                answered += 1;
            }
        }
        ensure!(answered == 4, "{answered} of 4");
        server.ended().await
    })
    .await
}

/// A client that is never quiet hears it all the same.
#[tokio::test]
async fn a_busy_exchange_hears_that_the_server_leaves() -> Result<()> {
    let store = MemoryStore::new().into_store();
    let server = Serving::start(&store).await?;
    let mut client = server.store().await?;
    let (requests, outgoing) = mpsc::channel(64);
    let mut answers = client.exchange(ReceiverStream::new(outgoing)).await?.into_inner();
    let sending = tokio::spawn(async move {
        let mut id = 0;
        while requests.send(commit(id)).await.is_ok() {
            id += 1;
        }
    });
    for _ in 0..50 {
        next(&mut answers).await?.context("answers")?;
    }
    server.shutdown.begin();
    let mut messages = 0;
    while !next(&mut answers).await?.context("it ended")?.leaving {
        messages += 1;
        ensure!(messages < 20_000, "never told");
    }
    sending.abort();
    Ok(())
}

/// Whoever does not go is cut off when the grace is over.
#[tokio::test]
async fn whoever_stays_is_cut_off() -> Result<()> {
    let store = MemoryStore::new().into_store();
    let grace = Duration::from_millis(300);
    let server = Serving::start_with(&store, ServerLimits::default(), grace).await?;
    let mut client = server.store().await?;
    let (requests, outgoing) = mpsc::channel(8);
    let mut answers = client.exchange(ReceiverStream::new(outgoing)).await?.into_inner();
    server.shutdown.begin();
    ensure!(next(&mut answers).await?.context("the word")?.leaving);
    let cut = tokio::spawn(async move { next(&mut answers).await });
    // The runtime of the server is kept, so nobody else can have cut it.
    let mut server = server;
    server.wait().await?;
    let cut = end_of(cut).await?;
    let status = cut.expect_err("still connected");
    ensure!(status.code() != Code::DeadlineExceeded, "never cut");
    drop((requests, server));
    Ok(())
}

/// Whoever does not wait is not sent away in the middle: its lease may be as good as granted.
#[tokio::test]
async fn an_acquisition_without_a_wait_that_was_begun_is_answered() -> Result<()> {
    let (plan, clock) = (FaultPlan::scripted(), ManualClock::new());
    let memory = MemoryStore::new().into_store();
    let faulty = Faulty::new(Arc::clone(memory.backend()), plan.clone(), Arc::new(clock.clone()));
    let shutdown = Shutdown::default();
    let api = Api::new(Store::new(faulty), ServerLimits::default(), shutdown.clone())?;
    let view = api.view(&Caller::anybody())?;
    let (scope, late) = (SCOPE.parse()?, Duration::from_secs(60));
    let asked = AcquireTerms { owner: "a#1".into(), ..AcquireTerms::default() };
    plan.next(Operation::Commit, Fault::Delay(late));
    let mut acquiring = pin!(view.acquire(&scope, &asked));
    ensure!((&mut acquiring).now_or_never().is_none(), "it was done at once");
    shutdown.begin();
    let early = (&mut acquiring).now_or_never();
    ensure!(early.is_none(), "sent away: {early:?}");
    clock.advance(late);
    ensure!(acquiring.await?.owner.to_string() == "a#1");
    Ok(())
}

/// What is begun after the word is answered or sent elsewhere, never left waiting.
#[tokio::test]
async fn a_wait_that_comes_too_late_is_sent_elsewhere() -> Result<()> {
    let store = MemoryStore::new().into_store();
    let server = Serving::start(&store).await?;
    let leases = server.leases().await?;
    acquire(&leases, SCOPE, terms("a#1")).await?;
    // Keeps the connection open.
    let watch = v1::SessionRequest::default();
    let (requests, outgoing) = mpsc::channel(1);
    let mut answers = leases.clone().session(ReceiverStream::new(outgoing)).await?.into_inner();
    requests.send(watch).await?;
    next(&mut answers).await?;
    server.shutdown.begin();
    let late = end_of(asking(&leases, SCOPE, waiting("b#1"))).await?;
    let status = late.unwrap_err();
    ensure!(matches!(status.code(), Code::Unavailable | Code::Unknown), "{status:?}");
    drop(requests);
    server.ended().await
}
