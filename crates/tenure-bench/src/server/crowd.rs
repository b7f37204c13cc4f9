//! Many open sessions, and many waiters for one scope: memory of the server, and how soon a waiter
//! hears of a release.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tenure::clock::{Clock as _, SystemClock};
use tenure_proto::v1;
use tenure_proto::v1::leases_client::LeasesClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::calls::{connect, request};
use super::process::Served;
use crate::measure::{heading, human};

/// Connections that a crowd shares.
const CONNECTIONS: usize = 16;
/// Releases of which each wakes the next waiter.
const RELEASES: usize = 1_000;
/// Longer than the benchmark takes.
const WAIT_MS: u64 = 600_000;

pub(crate) async fn run(served: &Served, count: usize) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(&served.url()).await?);
    }
    let before = served.resident()?;
    let sessions = sessions(&connections, count).await?;
    let with_sessions = served.resident()?;
    let (waking, with_waiters) = waiters(served, &connections, count).await?;
    let at = |part: usize| waking.get(waking.len() * part / 100).copied().unwrap_or_default();
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    let each = |bytes: f64| human(bytes / count as f64);
    heading(
        &format!(
            "{} open sessions and as many waiters for one scope, on one server",
            human(count as f64)
        ),
        &[
            "server before",
            "per session with its lease",
            "per waiter",
            "woken after a release, p50",
            "p99",
        ],
    );
    println!(
        "| {:.0} MB | {} bytes | {} bytes | {:.1} ms | {:.1} ms |",
        before / 1e6,
        each(with_sessions - before),
        each(with_waiters - with_sessions),
        millis(at(50)),
        millis(at(99)),
    );
    drop(sessions);
    Ok(())
}

type Session = (mpsc::Sender<v1::SessionRequest>, tonic::Streaming<v1::SessionResponse>);

/// Sessions, each with a lease attached.
async fn sessions(
    connections: &[LeasesClient<Channel>],
    count: usize,
) -> anyhow::Result<Vec<Session>> {
    let open = |n: usize| {
        let mut leases = connections[n % connections.len()].clone();
        async move {
            let scope = format!("bench.sessions/{n}");
            let grant =
                leases.acquire(request(scope, format!("s-{n}"), 0)).await?.into_inner().grant;
            let (messages, outgoing) = mpsc::channel(1);
            let attach = grant.into_iter().collect();
            messages.send(v1::SessionRequest { attach, detach: Vec::new() }).await?;
            let mut answers = leases.session(ReceiverStream::new(outgoing)).await?.into_inner();
            answers.message().await?;
            anyhow::Ok((messages, answers))
        }
    };
    let mut opened = futures::stream::iter((0..count).map(open)).buffer_unordered(64);
    let mut sessions = Vec::with_capacity(count);
    while let Some(session) = opened.next().await {
        sessions.push(session?);
    }
    Ok(sessions)
}

/// How long each of many waiters took to hear of the release that was for it, in order, and what the
/// server occupied while all were waiting.
async fn waiters(
    served: &Served,
    connections: &[LeasesClient<Channel>],
    count: usize,
) -> anyhow::Result<(Vec<Duration>, f64)> {
    let scope = || "bench.crowd/one".to_owned();
    let mut leases = connections[0].clone();
    let mut grant = leases.acquire(request(scope(), "first".into(), 0)).await?.into_inner().grant;
    let mut waiting = FuturesUnordered::new();
    for n in 0..count {
        let mut leases = connections[n % connections.len()].clone();
        waiting.push(tokio::spawn(async move {
            leases.acquire(request(scope(), format!("w-{n}"), WAIT_MS)).await
        }));
    }
    let line = v1::ShowRequest { scope: scope() };
    while leases.show(line.clone()).await?.into_inner().waiters.len() < count {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let resident = served.resident()?;
    let mut waking = Vec::with_capacity(RELEASES);
    for _ in 0..RELEASES.min(count) {
        let released = SystemClock.uptime();
        leases.release(v1::ReleaseRequest { grant, outcome: None }).await?;
        let woken = waiting.next().await.ok_or_else(|| anyhow::anyhow!("nobody waits"))??;
        waking.push(SystemClock.uptime() - released);
        grant = woken?.into_inner().grant;
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    waking.sort();
    Ok((waking, resident))
}
