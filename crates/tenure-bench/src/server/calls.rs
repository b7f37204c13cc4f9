//! Cycles by single gRPC calls, on a connection for each client or on fewer: what a program in any
//! language does.

use std::sync::Arc;
use std::time::Duration;

use tenure_proto::v1;
use tenure_proto::v1::leases_client::LeasesClient;
use tonic::transport::Channel;

use crate::measure::rate;

pub(crate) async fn connect(url: &str) -> anyhow::Result<LeasesClient<Channel>> {
    let endpoint = Channel::from_shared(url.to_owned())?.tcp_nodelay(true);
    Ok(LeasesClient::new(endpoint.connect().await?))
}

/// Asks for a scope under a name of its own.
pub(crate) fn request(scope: String, owner: String, wait_ms: u64) -> v1::AcquireRequest {
    let terms = v1::Terms { owner, ttl_ms: 30_000, wait_ms, ..v1::Terms::default() };
    v1::AcquireRequest { scope, terms: Some(terms) }
}

pub(crate) async fn cycle_rate(
    url: &str,
    connections: usize,
    clients: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    let mut connected = Vec::new();
    for _ in 0..connections {
        connected.push(connect(url).await?);
    }
    let (connected, tag) = (Arc::new(connected), format!("{tag}-{connections}"));
    rate(clients, time, move |client, turn| {
        let mut leases = connected[client % connected.len()].clone();
        let scope = format!("bench.calls/{tag}-{client}");
        let owner = format!("client-{client}#{turn}");
        async move {
            let grant = leases.acquire(request(scope, owner, 0)).await?.into_inner().grant;
            leases.release(v1::ReleaseRequest { grant, outcome: None }).await?;
            Ok(())
        }
    })
    .await
}
