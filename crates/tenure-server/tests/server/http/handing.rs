//! Asking a holder to hand over, through the server's own calls: over HTTP and over gRPC.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::lease::{Coordinator, Lease, Scope, Terms};
use tenure::random::SystemRandom;
use tenure::store::memory::MemoryStore;
use tenure_proto::v1;
use tenure_proto::v1::leases_client::LeasesClient;
use tenure_proto::v1::slots_client::SlotsClient;
use tenure_server::ServerLimits;
use tenure_server::auth::{AuthSettings, Authenticator, tokens};
use tokio::task::JoinHandle;
use tonic::Request;
use tonic::transport::Endpoint;

use super::client::Client;
use super::place::{Place, until};
use crate::auth::rig::{capture, logged};

const SCOPE: &str = "billing.eu/close";
const ASK: &str = "/v1/leases/ask-to-hand-over";

fn entry(name: &str, permissions: &[&str]) -> (String, String) {
    let (token, sum) = tokens::mint(&SystemRandom);
    let line =
        format!("[[token]]\nname = {name:?}\nsha256 = {sum:?}\npermissions = {permissions:?}\n");
    (token, line)
}

/// A server that asks who comes, and the tokens of somebody who may hold and of somebody who may revoke.
async fn guarded(worker: &str, boss: &str) -> (Place, String, String) {
    capture();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (worker, first) = entry(worker, &["leases:hold:billing.*"]);
    let (boss, second) = entry(boss, &["leases:revoke:billing.*"]);
    std::fs::write(&list, format!("{first}{second}")).unwrap();
    let settings = AuthSettings { token_file: Some(list), ..AuthSettings::default() };
    let authenticator = Authenticator::new(settings).unwrap();
    let store = MemoryStore::new().into_store();
    (Place::guarded(store, ServerLimits::default(), authenticator).await, worker, boss)
}

fn named(place: &Place, name: &str) -> Coordinator {
    Coordinator::builder(place.store.clone()).name(name).start().unwrap()
}

/// Somebody who waits in line for as long as it takes.
async fn waits(place: &Place, name: &str) -> JoinHandle<tenure::Result<Lease>> {
    let (next, scope) = (named(place, name), SCOPE.parse::<Scope>().unwrap());
    let terms = Terms::new().wait_forever();
    let waiting = tokio::spawn({
        let (next, scope) = (next.clone(), scope.clone());
        async move { next.acquire(&scope, &terms).await }
    });
    until("it waits", || async { !next.status(&scope).await.unwrap().waiters.is_empty() }).await;
    waiting
}

fn asking(client: Client, path: &'static str, body: Value) -> JoinHandle<super::client::Answer> {
    tokio::spawn(async move { client.post(path, body).await })
}

/// A holder that does as it is asked.
async fn follows(lease: Lease) -> String {
    let request = lease.asked_to_hand_over().await;
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    request.by
}

#[tokio::test]
async fn whoever_may_revoke_asks_over_http_and_the_holder_sees_who_it_is() {
    let (place, worker, boss) = guarded("asking-worker", "asking-boss").await;
    let (worker, boss) = (place.client().with(&worker), place.client().with(&boss));
    let scope: Scope = SCOPE.parse().unwrap();
    let ask = |more: Value| {
        let mut body = json!({"scope": SCOPE, "wait_ms": 15_000});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // Nobody holds it, and then nobody waits for it.
    boss.post(ASK, ask(json!({}))).await.error(404, "not_found");
    let lease = named(&place, "holder").acquire(&scope, &Terms::new()).await.unwrap();
    boss.post(ASK, ask(json!({}))).await.error(400, "invalid");
    let next = waits(&place, "next").await;
    // One holder cannot send another away.
    let error = worker.post(ASK, ask(json!({}))).await.error(403, "denied");
    assert!(error["message"].as_str().unwrap().contains("leases:revoke"), "{error}");
    boss.post(ASK, ask(json!({"expect_token": lease.token() + 1}))).await.error(410, "lost");
    // One that does not listen goes on, and what to do about it is said.
    let error = boss.post(ASK, ask(json!({"wait_ms": 200}))).await.error(423, "held");
    assert!(error["message"].as_str().unwrap().contains("revoke"), "{error}");
    assert_eq!(error["scope"], SCOPE);

    let asked = ask(json!({"successor": "next", "expect_token": lease.token()}));
    let asked = asking(boss, ASK, asked);
    let by = follows(lease).await;
    assert!(by.starts_with("asking-boss#"), "{by}");
    let now = asked.await.unwrap().of(200).body["lease"].clone();
    assert!(now["holder"].as_str().unwrap().starts_with("next#"), "{now}");
    let lease = next.await.unwrap().unwrap();
    assert_eq!(now["token"], lease.token());
    lease.release().await.unwrap();
    let lines = logged(&["subject=\"asking-boss\"", "action=\"leases:revoke\"", SCOPE]);
    let asked = lines.iter().filter(|line| line.contains(": asked to hand over")).count();
    assert_eq!(asked, 2, "{lines:?}");
    assert_eq!(logged(&["asking-worker", "denied", "leases:revoke"]).len(), 1);
}

#[tokio::test]
async fn whoever_may_revoke_asks_over_grpc_for_a_lease_and_for_a_slot() {
    let (place, _, boss) = guarded("calling-worker", "calling-boss").await;
    let endpoint = Endpoint::from_shared(format!("http://{}", place.address)).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let as_boss = |mut request: Request<()>| {
        let token = format!("Bearer {boss}").parse().unwrap();
        request.metadata_mut().insert("authorization", token);
        Ok::<_, tonic::Status>(request)
    };
    let terms = Some(v1::HandOverTerms { wait_ms: 15_000, ..v1::HandOverTerms::default() });

    let scope: Scope = SCOPE.parse().unwrap();
    let lease = named(&place, "holder").acquire(&scope, &Terms::new()).await.unwrap();
    let next = waits(&place, "next").await;
    let mut leases = LeasesClient::with_interceptor(channel.clone(), as_boss);
    let request = v1::AskToHandOverRequest { scope: SCOPE.into(), terms: terms.clone() };
    let (now, by) = tokio::join!(leases.ask_to_hand_over(request), follows(lease));
    let now = now.unwrap().into_inner().lease.unwrap();
    assert!(now.holder.starts_with("next#") && by.starts_with("calling-boss#"), "{now:?} {by}");
    next.await.unwrap().unwrap().release().await.unwrap();

    let group = "billing.workers".parse().unwrap();
    let slots = named(&place, "first").slots(&group);
    let slot = slots.acquire(1, &Terms::new()).await.unwrap();
    let second = named(&place, "second").slots(&group);
    let next = tokio::spawn({
        let second = second.clone();
        async move { second.acquire(1, &Terms::new().wait_forever()).await }
    });
    until("it waits", || async { !second.waiters().await.unwrap().is_empty() }).await;
    let mut slots = SlotsClient::with_interceptor(channel, as_boss);
    let group = "billing.workers".to_owned();
    let request = v1::AskSlotToHandOverRequest { group, index: 0, terms };
    let (now, _) = tokio::join!(slots.ask_to_hand_over(request), follows(slot.into_lease()));
    assert!(now.unwrap().into_inner().lease.unwrap().holder.starts_with("second#"));
    next.await.unwrap().unwrap().into_lease().release().await.unwrap();
    let slot = "resource=\"billing.workers/slot-0\"";
    assert_eq!(logged(&["calling-boss", "asked to hand over", slot]).len(), 1);
}

#[tokio::test]
async fn a_slot_is_asked_for_over_http() {
    let (place, worker, boss) = guarded("slot-worker", "slot-boss").await;
    let path = "/v1/slots/ask-to-hand-over";
    let group = "billing.pool".parse().unwrap();
    let slot = named(&place, "first").slots(&group).acquire(1, &Terms::new()).await.unwrap();
    let second = named(&place, "second").slots(&group);
    let next = tokio::spawn({
        let second = second.clone();
        async move { second.acquire(1, &Terms::new().wait_forever()).await }
    });
    until("it waits", || async { !second.waiters().await.unwrap().is_empty() }).await;
    let body = json!({"group": "billing.pool", "index": 0, "wait_ms": 15_000});
    place.client().with(&worker).post(path, body.clone()).await.error(403, "denied");
    let asked = asking(place.client().with(&boss), path, body);
    follows(slot.into_lease()).await;
    let now = asked.await.unwrap().of(200).body["lease"].clone();
    assert!(now["holder"].as_str().unwrap().starts_with("second#"), "{now}");
    next.await.unwrap().unwrap().into_lease().release().await.unwrap();
}

#[tokio::test]
async fn asking_takes_room_among_the_waits_and_is_no_longer_than_the_server_allows() {
    let wait_max = Duration::from_millis(300);
    let limits = ServerLimits { wait_max, waiters: 1, ..ServerLimits::default() };
    let place = Place::over(MemoryStore::new().into_store(), limits).await;
    let client = place.client();
    let scope: Scope = SCOPE.parse().unwrap();
    let _lease = named(&place, "holder").acquire(&scope, &Terms::new()).await.unwrap();
    let _next = waits(&place, "next").await;
    let body = json!({"scope": SCOPE, "wait_ms": 60_000});
    let both = tokio::join!(client.post(ASK, body.clone()), client.post(ASK, body));
    let mut both = [both.0, both.1];
    both.sort_by_key(|answer| answer.status);
    let [held, refused] = both;
    assert_eq!(refused.header("retry-after"), "1");
    refused.error(429, "overloaded");
    let message = held.error(423, "held")["message"].to_string();
    assert!(message.contains("300ms") && !message.contains("longer"), "{message}");
}

#[tokio::test]
async fn a_server_that_leaves_does_not_say_that_nothing_was_asked() {
    let place = Place::memory().await;
    let client = place.client();
    let scope: Scope = SCOPE.parse().unwrap();
    let lease = named(&place, "holder").acquire(&scope, &Terms::new()).await.unwrap();
    let _next = waits(&place, "next").await;
    let asked = asking(client, ASK, json!({"scope": SCOPE, "wait_ms": 15_000}));
    lease.asked_to_hand_over().await;
    place.end().await;
    let error = asked.await.unwrap().error(504, "unknown");
    assert!(error["message"].as_str().unwrap().contains("look who holds it"), "{error}");
}
