//! What is taken away from somebody who stays is gone on open streams and for those who wait, too.

use std::time::Duration;

use tenure::lease::LEASE;
use tenure_proto::v1;
use tenure_proto::v1::elections_client::ElectionsClient;
use tenure_proto::v1::leases_client::LeasesClient;
use tonic::{Code, Status, Streaming};

use super::rig::{Client, Rig, logged, token, until};

const SOON: Duration = Duration::from_secs(30);

async fn watch(client: &Client, kind: &str, prefix: &str) -> Streaming<v1::WatchResponse> {
    let (kind, prefix) = (Some(kind.into()), prefix.into());
    let request = client.with(v1::WatchRequest { kind, prefix, after: None });
    let mut watch = client.store.clone().watch(request).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    watch
}

async fn end<T: std::fmt::Debug>(mut stream: Streaming<T>) -> Status {
    let ending = async {
        loop {
            if let Err(told) = stream.message().await.map(|message| message.expect("an error")) {
                return told;
            }
        }
    };
    tokio::time::timeout(SOON, ending).await.expect("it ends")
}

#[tokio::test]
async fn a_stream_ends_when_its_caller_may_not_read_that_any_more() {
    let (narrowed, all) = token(
        "narrowed",
        &["objects:read:order/*", "objects:read:secret/*", "leases:hold:billing.*"],
    );
    let (other, second) = token("narrowed-not", &["*"]);
    let rig = Rig::start(Some(&format!("{all}{second}")), |_, _| {}).await;
    let client = rig.client(Some(&narrowed)).await;
    let other = client.as_with(&other);
    let mut kept = watch(&client, "order", "").await;
    let secret = watch(&client, "secret", "").await;
    // Of these it is shown a part.
    let records = watch(&client, LEASE, "").await;
    let mut leases = LeasesClient::new(client.channel.clone());
    let request = v1::WatchLeasesRequest { prefix: "billing.".into(), after: None };
    let held = leases.watch(client.with(request)).await.unwrap().into_inner();
    let scope = || String::from("billing.eu/close");
    let mut elections = ElectionsClient::new(client.channel.clone());
    let observe = client.with(v1::ObserveRequest { scope: scope() });
    let leader = elections.observe(observe).await.unwrap().into_inner();
    let asks = |owner: &str, wait_ms| {
        let terms = v1::Terms { owner: owner.into(), wait_ms, ..v1::Terms::default() };
        v1::AcquireRequest { scope: scope(), terms: Some(terms) }
    };
    leases.acquire(other.with(asks("o#1", 0))).await.unwrap();
    let waiting = tokio::spawn({
        let (mut leases, request) = (leases.clone(), client.with(asks("w#1", 60_000)));
        async move { leases.acquire(request).await }
    });
    until("somebody waits", || async {
        let request = other.with(v1::ShowRequest { scope: scope() });
        !leases.clone().show(request).await.unwrap().into_inner().waiters.is_empty()
    })
    .await;

    let less = all.replace(", \"objects:read:secret/*\", \"leases:hold:billing.*\"", "");
    assert_ne!(less, all);
    rig.list(&format!("{less}{second}"));
    for told in [end(secret).await, end(records).await, end(held).await, end(leader).await] {
        assert_eq!(told.code(), Code::PermissionDenied, "{told:?}");
    }
    let told = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(told.code(), Code::PermissionDenied, "{told:?}");
    assert!(!logged(&["audit", "denied", "subject=\"narrowed\"", "secret/*"]).is_empty());
    // What it may still read goes on.
    other.put(&[("order", "1")]).await.unwrap();
    let next = tokio::time::timeout(SOON, kept.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(next.events.len(), 1);
}
