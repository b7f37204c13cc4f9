//! Too much is refused at once, with the time after which to ask again; the others are served.

use anyhow::{Context, Result, ensure};
use tenure_proto::v1;
use tenure_server::ServerLimits;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::serving::{
    Serving, acquire, asking, end_of, eventually, in_line, next, release, show, terms, told,
    waiting,
};

const SCOPE: &str = "shop/a";

fn put(id: usize, bytes: usize) -> v1::CommitRequest {
    let put = v1::Put {
        key: Some(v1::Key { kind: "thing".into(), id: id.to_string() }),
        payload: vec![b'x'; bytes].into(),
        ..v1::Put::default()
    };
    let write = v1::Write { write: Some(v1::write::Write::Put(put)) };
    v1::CommitRequest { writes: vec![write], ..v1::CommitRequest::default() }
}

fn get(id: usize) -> v1::GetRequest {
    v1::GetRequest { key: Some(v1::Key { kind: "thing".into(), id: id.to_string() }) }
}

#[tokio::test]
async fn too_large_a_message_is_refused_and_the_connection_goes_on() -> Result<()> {
    let limits = ServerLimits { message_bytes: 64 * 1024, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let mut store = server.store().await?;
    let refused = store.commit(put(1, 100 * 1024)).await.unwrap_err();
    ensure!(refused.code() == Code::OutOfRange, "{refused:?}");
    ensure!(refused.message().contains("65536"), "the limit is named: {refused:?}");
    store.commit(put(1, 60 * 1024)).await?;
    // In every service.
    let large = "x".repeat(100 * 1024);
    let metadata = [("a".to_owned(), large.clone())].into();
    let terms = Some(v1::Terms { metadata, ..terms("a#1") });
    let slot = v1::AcquireSlotRequest { group: "shop.pool".into(), count: 1, terms };
    let leader = v1::LeaderRequest { scope: large };
    for refused in [
        server.slots().await?.acquire(slot).await.map(drop),
        server.elections().await?.leader(leader).await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        ensure!(refused.code() == Code::OutOfRange, "{refused:?}");
        ensure!(refused.message().contains("65536"), "the limit is named: {refused:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_burst_of_calls_on_one_connection_is_no_flood() -> Result<()> {
    let server = Serving::limited(ServerLimits::default()).await?;
    let store = server.store().await?;
    let call = |id: usize| {
        let mut store = store.clone();
        async move { store.commit(put(id, 1)).await }
    };
    let calls = futures::future::join_all((0..1_500).map(call)).await;
    for call in calls {
        call?;
    }
    Ok(())
}

#[tokio::test]
async fn too_many_waits_are_refused_and_the_room_is_given_back() -> Result<()> {
    let limits = ServerLimits { waiters_per_client: 2, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let leases = server.leases().await?;
    let grant = acquire(&leases, SCOPE, terms("a#1")).await?;
    let first = asking(&leases, SCOPE, waiting("b#1"));
    let second = asking(&leases, SCOPE, waiting("c#1"));
    in_line(&leases, SCOPE, 2).await?;
    let refused = acquire(&leases, SCOPE, waiting("d#1")).await;
    let error = told(refused, Code::ResourceExhausted, "overloaded")?;
    ensure!(error.retry_after_ms > 0 && error.message.contains("2 waits"), "{error:?}");
    // Whoever does not wait is served, and the line is as it was.
    acquire(&leases, "shop/b", terms("d#1")).await?;
    ensure!(show(&leases, SCOPE).await?.waiters.len() == 2);
    // One that gives up, and one that got what it waited for, make room.
    second.abort();
    in_line(&leases, SCOPE, 1).await?;
    let third = asking(&leases, SCOPE, waiting("d#1"));
    in_line(&leases, SCOPE, 2).await?;
    release(&leases, &grant).await?;
    release(&leases, &end_of(first).await??).await?;
    release(&leases, &end_of(third).await??).await?;
    acquire(&leases, SCOPE, waiting("e#1")).await?;
    Ok(())
}

#[tokio::test]
async fn too_many_streams_are_refused_and_the_room_is_given_back() -> Result<()> {
    let limits = ServerLimits { streams_per_client: 2, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let mut leases = server.leases().await?;
    let mut elections = server.elections().await?;
    let watch = || v1::WatchLeasesRequest { prefix: "shop/".into(), after: None };
    let observe = || v1::ObserveRequest { scope: SCOPE.into() };
    let first = leases.watch(watch()).await?;
    let second = elections.observe(observe()).await?;
    for refused in [
        leases.watch(watch()).await.map(drop),
        elections.observe(observe()).await.map(drop),
        leases.session(futures::stream::pending()).await.map(drop),
        server.store().await?.exchange(futures::stream::pending()).await.map(drop),
    ] {
        let error = told(refused, Code::ResourceExhausted, "overloaded")?;
        ensure!(error.retry_after_ms > 0 && error.message.contains("2 streams"), "{error:?}");
    }
    acquire(&leases, SCOPE, waiting("a#1")).await?;
    drop((first, second));
    eventually("there is room again", || {
        let mut leases = leases.clone();
        async move { Ok(leases.watch(watch()).await.is_ok()) }
    })
    .await
}

#[tokio::test]
async fn reflection_takes_room_among_the_streams_until_it_ends() -> Result<()> {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    let limits = ServerLimits { streams: 1, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let mut reflection = ServerReflectionClient::new(server.channel().await?);
    let (asks, asked) = mpsc::channel(1);
    let mut answers =
        reflection.server_reflection_info(ReceiverStream::new(asked)).await?.into_inner();
    let services = MessageRequest::ListServices(String::new());
    let ask = ServerReflectionRequest { host: String::new(), message_request: Some(services) };
    asks.send(ask).await?;
    ensure!(next(&mut answers).await?.is_some(), "it answers");
    let refused = reflection.server_reflection_info(futures::stream::pending()).await;
    told(refused, Code::ResourceExhausted, "overloaded")?;
    let mut leases = server.leases().await?;
    let watch = v1::WatchLeasesRequest::default();
    told(leases.watch(watch).await, Code::ResourceExhausted, "overloaded")?;
    drop((asks, answers));
    server.without_streams().await?;
    leases.watch(v1::WatchLeasesRequest::default()).await?;
    Ok(())
}

#[tokio::test]
async fn one_request_too_many_is_refused_but_small_calls_wait_their_turn() -> Result<()> {
    let limits = ServerLimits { requests: 1, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let mut store = server.store().await?;
    let calls = (0..500)
        .map(|id| v1::Call { id: id as u64, call: Some(v1::call::Call::Commit(put(id, 10))) });
    let message = v1::ExchangeRequest { calls: calls.collect() };
    let (requests, outgoing) = mpsc::channel(1);
    let mut answers = store.exchange(ReceiverStream::new(outgoing)).await?.into_inner();
    requests.send(message).await?;
    let mut answered = 0;
    while answered < 500 {
        for answer in next(&mut answers).await?.context("it ended")?.answers {
            let done = matches!(answer.answer, Some(v1::answer::Answer::Commit(_)));
            ensure!(done, "{answer:?}");
            answered += 1;
        }
    }
    Ok(())
}

/// A client that sends and sends and reads nothing is held back, and keeps nobody else from anything.
#[tokio::test]
async fn a_client_that_reads_nothing_holds_up_itself_only() -> Result<()> {
    let limits = ServerLimits { requests: 8, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let mut store = server.store().await?;
    store.commit(put(1, 200 * 1024)).await?;
    let (requests, outgoing) = mpsc::channel(1);
    let mut answers = store.exchange(ReceiverStream::new(outgoing)).await?.into_inner();
    let sending = tokio::spawn(async move {
        let mut sent = 0_u64;
        for _ in 0..200 {
            let calls = (sent..sent + 100)
                .map(|id| v1::Call { id, call: Some(v1::call::Call::Get(get(1))) })
                .collect();
            sent += 100;
            let message = v1::ExchangeRequest { calls };
            let sending = requests.send(message);
            // Held back: what was sent is still answered.
            let waited = tokio::time::timeout(std::time::Duration::from_secs(1), sending).await;
            if !matches!(waited, Ok(Ok(()))) {
                return Some(sent - 100);
            }
        }
        None
    });
    let sent =
        end_of(sending).await?.context("20000 answers of 200 kB, and nobody held it back")?;
    // Another client, on a connection of its own.
    let mut other = server.store().await?;
    for id in 2..20 {
        other.commit(put(id, 10)).await?;
        other.get(get(id)).await?;
    }
    let mut answered = 0;
    while answered < sent {
        let message = next(&mut answers).await?.context("it ended")?;
        ensure!(message.answers.len() <= 8, "too much in one message: {}", message.answers.len());
        answered += message.answers.len() as u64;
    }
    ensure!(answered == sent, "{answered} of {sent}");
    Ok(())
}

/// Probes come without credentials, so they have room of their own, and not much of it.
#[tokio::test]
async fn only_so_many_watch_the_health_and_they_take_no_room_of_others() -> Result<()> {
    let limits = ServerLimits { streams: 1, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let watch = || tonic_health::pb::HealthCheckRequest::default();
    let channel = server.channel().await?;
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let mut open = Vec::new();
    let refused = loop {
        match health.watch(watch()).await {
            Ok(stream) => open.push(stream),
            Err(refused) => break Err::<(), _>(refused),
        }
        ensure!(open.len() <= 1_000, "as many as one likes");
    };
    ensure!(open.len() > 1, "{}", open.len());
    told(refused, Code::ResourceExhausted, "overloaded")?;
    // Whoever asks once is answered, and whoever is known has room.
    health.check(watch()).await?;
    let watched = v1::WatchLeasesRequest { prefix: "shop/".into(), after: None };
    server.leases().await?.watch(watched).await?;
    drop(open);
    eventually("there is room again", || {
        let mut health = health.clone();
        async move { Ok(health.watch(watch()).await.is_ok()) }
    })
    .await
}

/// With room for nothing, everybody would be told to ask again for ever.
#[tokio::test]
async fn limits_that_leave_no_room_for_anything_are_refused_by_name() {
    use std::time::Duration;
    let usual = ServerLimits::default;
    let wrong = [
        ("requests", ServerLimits { requests: 0, ..usual() }),
        ("streams", ServerLimits { streams: 0, ..usual() }),
        ("streams_per_client", ServerLimits { streams_per_client: 0, ..usual() }),
        ("waiters", ServerLimits { waiters: 0, ..usual() }),
        ("waiters_per_client", ServerLimits { waiters_per_client: 0, ..usual() }),
        ("connections", ServerLimits { connections: 0, ..usual() }),
        ("message_bytes", ServerLimits { message_bytes: 0, ..usual() }),
        ("wait_max", ServerLimits { wait_max: Duration::ZERO, ..usual() }),
        ("request_timeout", ServerLimits { request_timeout: Duration::ZERO, ..usual() }),
        ("header_timeout", ServerLimits { header_timeout: Duration::ZERO, ..usual() }),
        // More than can be counted.
        ("requests", ServerLimits { requests: usize::MAX, ..usual() }),
    ];
    for (name, limits) in wrong {
        let store = tenure::store::memory::MemoryStore::new().into_store();
        let built = tenure_server::Server::builder(store).limits(limits).build();
        let told = built.err().map(|fault| fault.to_string()).unwrap_or_default();
        assert!(told.contains(&format!("limit {name}:")), "{name}: {told:?}");
    }
}
