//! Sessions: all leases of a client, kept alive by one message.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prost::Message as _;
use tenure::store::memory::MemoryStore;
use tenure_proto::v1;
use tenure_proto::v1::leases_client::LeasesClient;
use tenure_testkit::Proxy;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::serving::{
    Leases, SOON, Serving, acquire, asking, channel, end_of, holder, in_line, next, on_each,
    release, terms, waiting,
};

/// The client's end of a session.
struct Session {
    requests: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
}

impl Session {
    async fn open(leases: &Leases) -> Result<Self> {
        let (requests, outgoing) = mpsc::channel(4);
        let answers = leases.clone().session(ReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Self { requests, answers })
    }

    /// Attaches and detaches, which renews all.
    async fn say(
        &mut self,
        attach: &[v1::LeaseGrant],
        detach: &[&str],
    ) -> Result<v1::SessionResponse> {
        let detach = detach.iter().map(|scope| (*scope).to_owned()).collect();
        let request = v1::SessionRequest { attach: attach.to_vec(), detach };
        self.requests.send(request).await.context("the session is gone")?;
        self.heard().await
    }

    /// Renews all.
    async fn beat(&mut self) -> Result<v1::SessionResponse> {
        self.say(&[], &[]).await
    }

    async fn heard(&mut self) -> Result<v1::SessionResponse> {
        next(&mut self.answers).await?.context("the session ended")
    }

    /// Closes it and waits until the server has done what that asks for.
    async fn close(self) -> Result<(), Status> {
        let Self { requests, mut answers } = self;
        drop(requests);
        while next(&mut answers).await?.is_some() {}
        Ok(())
    }
}

/// Terms of a life so short that a test outlives it, and long enough for a machine that is busy.
fn short(owner: &str) -> v1::Terms {
    v1::Terms { ttl_ms: 3_000, ..terms(owner) }
}

fn scope(n: usize) -> String {
    format!("shop/{n}")
}

async fn some(leases: &Leases, count: usize) -> Result<Vec<v1::LeaseGrant>> {
    let mut grants = Vec::new();
    for n in 0..count {
        grants.push(acquire(leases, &scope(n), short("a#1")).await?);
    }
    Ok(grants)
}

/// Renews all for longer than any of them would live by itself.
async fn beat_through_a_life(session: &mut Session, leases: &Leases) -> Result<()> {
    // One more, which nobody renews.
    let observer = "observer/of-a-life";
    acquire(leases, observer, short("a#1")).await?;
    let mut beats = None;
    while holder(leases, observer).await?.is_some() {
        let answer = session.beat().await?;
        let left = answer.remaining_ms.context("a life")?;
        let expected = beats.map_or(answer.answered, |beats| beats + 1);
        ensure!(answer.answered == expected && answer.lost.is_empty() && left > 0, "{answer:?}");
        beats = Some(answer.answered);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answer = session.beat().await?;
    ensure!(answer.lost.is_empty(), "not kept for longer than their lives: {answer:?}");
    Ok(())
}

async fn held(leases: &Leases, count: usize) -> Result<usize> {
    let mut held = 0;
    for n in 0..count {
        held += usize::from(holder(leases, &scope(n)).await?.is_some());
    }
    Ok(held)
}

#[tokio::test]
async fn one_message_renews_all_and_a_clean_close_frees_all_at_once() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let (here, there) = (a.leases().await?, b.leases().await?);
        let mut grants = some(&here, 20).await?;
        // The one that will be detached has to outlive what comes after that.
        release(&here, &grants[3]).await?;
        grants[3] = acquire(&here, &scope(3), terms("a#1")).await?;
        let mut session = Session::open(&here).await?;
        let answer = session.say(&grants, &[]).await?;
        ensure!(answer.answered == 1 && answer.lost.is_empty(), "{answer:?}");
        beat_through_a_life(&mut session, &there).await?;
        let waiter = asking(&there, &scope(7), waiting("b#1"));
        in_line(&there, &scope(7), 1).await?;
        session.say(&[], &[&scope(3)]).await?;
        session.close().await?;
        let next = end_of(waiter).await??;
        ensure!(next.token > grants[7].token);
        // All but the one that was detached, which was not released, and the one that has another.
        ensure!(holder(&there, &scope(3)).await?.as_deref() == Some("a#1"));
        ensure!(held(&there, 20).await? == 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_broken_connection_frees_nothing_and_another_replica_goes_on() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let proxy = Proxy::start(a.address.port())?;
        let broken = LeasesClient::new(channel(proxy.port()).await?);
        let there = b.leases().await?;
        let grants = some(&there, 5).await?;
        let mut session = Session::open(&broken).await?;
        session.say(&grants, &[]).await?;
        proxy.shut();
        let gone = tokio::time::timeout(SOON, session.answers.message()).await?;
        ensure!(gone.is_err(), "the connection is cut: {gone:?}");
        a.without_streams().await?;
        ensure!(held(&there, 5).await? == 5, "freed though nobody said so");
        let mut moved = Session::open(&there).await?;
        let answer = moved.say(&grants, &[]).await?;
        ensure!(answer.lost.is_empty(), "{answer:?}");
        beat_through_a_life(&mut moved, &there).await?;
        moved.close().await?;
        ensure!(held(&there, 5).await? == 0);
        Ok(())
    })
    .await
}

/// Opens a session by hand, says one thing, and cancels the call when that is answered.
async fn cancelled(address: SocketAddr, message: &v1::SessionRequest) -> Result<()> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (client, connection) = h2::client::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("http://{address}/tenure.v1.Leases/Session"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (answer, mut sending) = client.ready().await?.send_request(request, false)?;
    let encoded = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(encoded.len())?.to_be_bytes());
    frame.extend_from_slice(&encoded);
    sending.send_data(frame.into(), false)?;
    let mut answers = answer.await?.into_body();
    answers.data().await.context("no answer")??;
    sending.send_reset(h2::Reason::CANCEL);
    drop((answers, sending));
    // It ends when the last call on it has.
    tokio::time::timeout(SOON, connection).await???;
    Ok(())
}

/// Whoever cancels the call, or whose deadline passed, has not said that it is done.
#[tokio::test]
async fn a_cancelled_session_frees_nothing() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let leases = server.leases().await?;
        let mut grants = Vec::new();
        for n in 0..5 {
            grants.push(acquire(&leases, &scope(n), terms("a#1")).await?);
        }
        let message = v1::SessionRequest { attach: grants, detach: Vec::new() };
        cancelled(server.address, &message).await?;
        server.without_streams().await?;
        ensure!(held(&leases, 5).await? == 5, "freed though nobody said so");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_client_that_dies_frees_nothing() -> Result<()> {
    let store = MemoryStore::new().into_store();
    let server = Serving::start(&store).await?;
    let leases = server.leases().await?;
    let grant = acquire(&leases, &scope(0), terms("a#1")).await?;
    let port = server.address.port();
    // A runtime that ends in the middle of things takes sockets and tasks along, as a process does.
    let died = std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let session = runtime.block_on(async {
            let mut session = Session::open(&LeasesClient::new(channel(port).await?)).await?;
            session.say(&[grant], &[]).await?;
            anyhow::Ok(session)
        })?;
        drop(runtime);
        drop(session);
        Ok(())
    });
    tokio::task::spawn_blocking(move || died.join()).await?.expect("a thread")?;
    server.without_streams().await?;
    ensure!(held(&leases, 1).await? == 1, "freed though nobody said so");
    Ok(())
}

#[tokio::test]
async fn what_is_lost_is_told_with_the_reason_and_the_others_stay() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        let mut grants = Vec::new();
        for n in 0..4 {
            grants.push(acquire(&leases, &scope(n), terms("a#1")).await?);
        }
        let mut session = Session::open(&leases).await?;
        // What makes no sense does not take the others down with it.
        let odd = v1::LeaseGrant { scope: "odd".into(), ..grants[0].clone() };
        let hasty = v1::LeaseGrant { scope: scope(9), ttl_ms: 0, ..grants[0].clone() };
        let with_odd = [&grants[..], &[odd, hasty]].concat();
        let answer = session.say(&with_odd, &[]).await?;
        let mut refused: Vec<_> = answer.lost.iter().map(|lost| &*lost.scope).collect();
        refused.sort_unstable();
        ensure!(refused == ["odd", "shop/9"], "{answer:?}");
        ensure!(answer.remaining_ms.is_some_and(|left| left > 0), "{answer:?}");
        let reason = "maintenance".into();
        let revoke = v1::RevokeRequest { scope: scope(1), reason, expect_token: None };
        leases.revoke(revoke).await?;
        release(&leases, &grants[2]).await?;
        let other = acquire(&leases, &scope(2), terms("b#1")).await?;
        let answer = session.beat().await?;
        ensure!(answer.lost.len() == 2 && answer.remaining_ms.is_some(), "{answer:?}");
        for lost in &answer.lost {
            let error = lost.error.as_ref().context("a reason")?;
            ensure!(error.code == "lost", "{error:?}");
            let new = (lost.scope == scope(2)).then_some(other.token);
            ensure!(error.current_token == new, "{error:?}");
        }
        ensure!(session.beat().await?.lost.is_empty(), "told once");
        session.close().await?;
        ensure!(holder(&leases, &scope(2)).await?.as_deref() == Some("b#1"), "not ours to free");
        ensure!(held(&leases, 4).await? == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_empty_session_has_no_life_to_count_on_and_too_many_leases_are_refused() -> Result<()> {
    let store = MemoryStore::new().into_store();
    let server = Serving::start(&store).await?;
    let leases = server.leases().await?;
    let mut session = Session::open(&leases).await?;
    ensure!(session.beat().await?.remaining_ms.is_none());
    let grant = acquire(&leases, &scope(0), terms("a#1")).await?;
    let made_up =
        (0..10_000).map(|n| v1::LeaseGrant { scope: format!("made/{n}"), ..grant.clone() });
    let all: Vec<_> = std::iter::once(grant.clone()).chain(made_up).collect();
    let answer = session.say(&all, &[]).await?;
    ensure!(answer.remaining_ms.is_some_and(|left| left > 0), "{:?}", answer.remaining_ms);
    ensure!(answer.lost.len() == 10_000, "{} of 10000", answer.lost.len());
    let over = answer.lost.iter().filter_map(|lost| lost.error.as_ref());
    let over: Vec<_> = over.filter(|error| error.code == "limit_exceeded").collect();
    ensure!(over.len() == 1 && over[0].limit == "leases of a session", "{over:?}");
    ensure!(session.beat().await?.lost.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_server_that_leaves_says_so_and_a_session_that_moves_loses_nothing() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let (here, there) = (a.leases().await?, b.leases().await?);
        let grants = some(&here, 10).await?;
        let mut session = Session::open(&here).await?;
        session.say(&grants, &[]).await?;
        a.shutdown.begin();
        ensure!(session.heard().await?.leaving);
        // What was attached is kept until the client has moved.
        let answer = session.beat().await?;
        ensure!(answer.lost.is_empty() && !answer.leaving, "{answer:?}");
        let mut moved = Session::open(&there).await?;
        ensure!(moved.say(&grants, &[]).await?.lost.is_empty());
        session.close().await?;
        a.ended().await?;
        ensure!(held(&there, 10).await? == 10, "closing there must not free them here");
        beat_through_a_life(&mut moved, &there).await?;
        moved.close().await?;
        ensure!(held(&there, 10).await? == 0);
        Ok(())
    })
    .await
}
