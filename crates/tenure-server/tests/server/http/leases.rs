//! Leases, slots and elections on behalf of owners who are elsewhere.

use serde_json::{Value, json};
use tenure::store::memory::MemoryStore;
use tenure_server::ServerLimits;

use super::client::{Answer, Client};
use super::place::{Place, until};

super::over_both!(
    a_lease_is_acquired_renewed_and_released_at_any_replica,
    the_same_owner_gets_what_it_has_and_others_are_told_who_holds_it,
    whoever_waits_is_woken_by_a_release,
    a_wait_ends_when_it_is_over,
    closing_the_connection_gives_up_the_place_in_line,
    a_lease_is_handed_over_to_somebody_who_waits,
    the_holder_tells_something_else_and_is_revoked,
    leases_are_listed_and_watched,
    what_is_left_is_listed_and_reaped_once,
    slots_are_taken_up_to_their_count,
    whoever_leads_is_seen_by_all,
    waits_end_when_the_server_leaves,
);

async fn acquire(client: Client, scope: &'static str, owner: &'static str, more: Value) -> Answer {
    let mut body = json!({"scope": scope, "owner": owner, "ttl_ms": 30000});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    client.post("/v1/leases/acquire", body).await
}

async fn acquired(client: Client, scope: &'static str, owner: &'static str) -> Value {
    acquire(client, scope, owner, json!({})).await.of(200).body["grant"].clone()
}

async fn release(client: Client, grant: &Value) -> Answer {
    client.post("/v1/leases/release", json!({"grant": grant})).await
}

async fn show(client: Client, scope: &str) -> Value {
    client.get(&format!("/v1/leases/show?scope={scope}")).await.of(200).body
}

/// Resolves when so many wait for the scope.
async fn waiters(client: Client, scope: &str, count: usize) {
    until(&format!("{count} wait"), || async {
        show(client, scope).await["waiters"].as_array().unwrap().len() == count
    })
    .await;
}

async fn a_lease_is_acquired_renewed_and_released_at_any_replica(place: Place) {
    let other = Place::over(place.store.clone(), ServerLimits::default()).await;
    let (here, there) = (place.client(), other.client());
    let earlier = acquired(there, "jobs.nightly/close", "w#0").await;
    release(here, &earlier).await.of(200);
    let more = json!({"metadata": {"at": "home"}});
    let answer = acquire(here, "jobs.nightly/close", "w#1", more).await.of(200).body;
    let grant = &answer["grant"];
    assert_eq!((&grant["scope"], &grant["owner"]), (&json!("jobs.nightly/close"), &json!("w#1")));
    assert!((1..=30_000).contains(&answer["remaining_ms"].as_u64().unwrap()), "{answer}");
    let holder = &show(there, "jobs.nightly/close").await["holder"];
    assert_eq!((&holder["holder"], &holder["token"]), (&json!("w#1"), &grant["token"]));
    assert_eq!((&holder["metadata"], &holder["ttl_ms"]), (&json!({"at": "home"}), &json!(30000)));
    assert!(holder["expires_in_ms"].is_u64() && holder["acquired_at_ms"].is_i64());

    let renewed = there.post("/v1/leases/renew", json!({"grants": [grant, earlier]})).await.of(200);
    let renewed = &renewed.body["renewed"];
    assert_eq!(renewed[0]["ttl_ms"], 30000);
    assert!(renewed[0]["remaining_ms"].as_u64().unwrap() > 0 && renewed[0]["revision"].is_u64());
    assert_eq!(renewed[1]["error"]["code"], "lost");

    assert_eq!(release(there, grant).await.of(200).body, json!({}));
    assert_eq!(show(here, "jobs.nightly/close").await, json!({"waiters": []}));
    release(here, grant).await.error(410, "lost");
    let next = acquired(here, "jobs.nightly/close", "w#2").await;
    assert!(next["token"].as_u64() > grant["token"].as_u64());
    place.end().await;
    other.end().await;
}

async fn the_same_owner_gets_what_it_has_and_others_are_told_who_holds_it(place: Place) {
    let client = place.client();
    let first = acquired(client, "jobs/a", "w#1").await;
    let again = acquired(client, "jobs/a", "w#1").await;
    assert_eq!((&again["token"], &again["nonce"]), (&first["token"], &first["nonce"]));
    let error = acquire(client, "jobs/a", "w#2", json!({})).await.error(423, "held");
    assert_eq!((&error["scope"], &error["holder"]), (&json!("jobs/a"), &json!("w#1")));
    assert_eq!(error["token"], first["token"]);
    assert!(error["expires_in_ms"].as_u64().unwrap() > 0);
    // A bare name is a new holder each time.
    acquire(client, "jobs/a", "w", json!({})).await.error(423, "held");
    let named = acquired(client, "jobs/b", "w").await;
    assert!(named["owner"].as_str().unwrap().starts_with("w#"));

    let outcome = json!({"grant": named, "ok": "fine", "fail": "not"});
    let error = client.post("/v1/leases/release", outcome).await.error(400, "invalid");
    assert_eq!(error["what"], "fail");
    let outcome = json!({"grant": named, "ok": "fine"});
    client.post("/v1/leases/release", outcome).await.of(200);
    let outcome = json!({"grant": first, "fail": "broken"});
    client.post("/v1/leases/release", outcome).await.of(200);
}

async fn whoever_waits_is_woken_by_a_release(place: Place) {
    let client = place.client();
    let first = acquired(client, "jobs/a", "w#1").await;
    let waiting = tokio::spawn(acquire(client, "jobs/a", "w#2", json!({"wait_forever": true})));
    waiters(client, "jobs/a", 1).await;
    let waiter = &show(client, "jobs/a").await["waiters"][0];
    assert_eq!(waiter["owner"], "w#2");
    assert!(waiter["place"].is_u64() && waiter["since_ms"].is_i64());
    release(client, &first).await.of(200);
    let second = waiting.await.unwrap().of(200).body["grant"].clone();
    assert_eq!(second["owner"], "w#2");
    assert!(second["token"].as_u64() > first["token"].as_u64());
}

async fn a_wait_ends_when_it_is_over(place: Place) {
    let client = place.client();
    acquired(client, "jobs/a", "w#1").await;
    let waited = acquire(client, "jobs/a", "w#2", json!({"wait_ms": 100})).await;
    assert_eq!(waited.error(423, "held")["holder"], "w#1");
    waiters(client, "jobs/a", 0).await;
}

async fn closing_the_connection_gives_up_the_place_in_line(place: Place) {
    let client = place.client();
    let first = acquired(client, "jobs/a", "w#1").await;
    let wait = json!({"wait_ms": 60000});
    let given_up = tokio::spawn(acquire(client, "jobs/a", "w#2", wait.clone()));
    waiters(client, "jobs/a", 1).await;
    let patient = tokio::spawn(acquire(client, "jobs/a", "w#3", wait));
    waiters(client, "jobs/a", 2).await;
    given_up.abort();
    waiters(client, "jobs/a", 1).await;
    assert_eq!(show(client, "jobs/a").await["waiters"][0]["owner"], "w#3");
    release(client, &first).await.of(200);
    assert_eq!(patient.await.unwrap().of(200).body["grant"]["owner"], "w#3");
}

async fn a_lease_is_handed_over_to_somebody_who_waits(place: Place) {
    let client = place.client();
    let grant = acquired(client, "jobs/a", "w#1").await;
    let nobody = json!({"grant": grant, "successor": "nobody"});
    let refused = client.post("/v1/leases/hand-over", nobody).await;
    assert!((400..500).contains(&refused.status), "{refused:?}");
    let wait = json!({"wait_ms": 60000});
    let early = tokio::spawn(acquire(client, "jobs/a", "early", wait.clone()));
    waiters(client, "jobs/a", 1).await;
    let chosen = tokio::spawn(acquire(client, "jobs/a", "chosen", wait));
    waiters(client, "jobs/a", 2).await;
    let passed = json!({"grant": grant, "successor": "chosen"});
    client.post("/v1/leases/hand-over", passed).await.of(200);
    let next = chosen.await.unwrap().of(200).body["grant"].clone();
    assert!(next["owner"].as_str().unwrap().starts_with("chosen#"));
    assert!(next["token"].as_u64() > grant["token"].as_u64());
    release(client, &grant).await.error(410, "lost");
    release(client, &next).await.of(200);
    early.await.unwrap().of(200);
}

async fn the_holder_tells_something_else_and_is_revoked(place: Place) {
    let client = place.client();
    let grant = acquired(client, "jobs/a", "w#1").await;
    let told = json!({"grant": grant, "metadata": {"at": "work"}});
    let renewed = client.post("/v1/leases/proclaim", told.clone()).await.of(200).body;
    assert!(renewed["revision"].as_u64() > grant["revision"].as_u64());
    assert!(renewed["remaining_ms"].as_u64().unwrap() > 0 && renewed["ttl_ms"] == 30000);
    assert_eq!(show(client, "jobs/a").await["holder"]["metadata"], json!({"at": "work"}));

    let revoke = json!({"scope": "jobs/a", "reason": "maintenance"});
    let revoked = |body: Value| async move {
        client.post("/v1/leases/revoke", body).await.of(200).body["revoked"].clone()
    };
    let other = json!({"scope": "jobs/a", "expect_token": grant["token"].as_u64().unwrap() + 1});
    let lost = client.post("/v1/leases/revoke", other).await;
    assert_eq!(lost.error(410, "lost")["current_token"], grant["token"]);
    assert_eq!(revoked(revoke.clone()).await, true);
    assert_eq!(revoked(json!({"scope": "jobs/a"})).await, false);
    let renewed = client.post("/v1/leases/renew", json!({"grants": [grant]})).await.of(200).body;
    assert_eq!(renewed["renewed"][0]["error"]["code"], "lost");
    client.post("/v1/leases/proclaim", told).await.error(410, "lost");
}

async fn leases_are_listed_and_watched(place: Place) {
    let client = place.client();
    let mut events = client.stream("/v1/leases/watch?prefix=jobs", &[]).await;
    events.expect("start").await;
    let grant = acquired(client, "jobs/a", "w#1").await;
    acquired(client, "other/x", "w#1").await;
    acquired(client, "jobs.sub/b", "w#1").await;
    let held = events.expect("held").await.data;
    assert_eq!((&held["scope"], &held["holder"]), (&json!("jobs/a"), &json!("w#1")));
    assert_eq!(events.expect("held").await.data["scope"], "jobs.sub/b");

    let scopes = |path: &'static str| async move {
        let leases = client.get(path).await.of(200).body["leases"].clone();
        let leases = leases.as_array().unwrap().clone();
        let scopes = leases.iter().map(|lease| lease["scope"].as_str().unwrap().to_owned());
        scopes.collect::<Vec<_>>()
    };
    assert_eq!(scopes("/v1/leases?namespace=jobs").await, ["jobs/a"]);
    assert_eq!(scopes("/v1/leases?namespace=jobs&children=true").await, ["jobs/a", "jobs.sub/b"]);
    assert_eq!(scopes("/v1/leases").await.len(), 3);

    release(client, &grant).await.of(200);
    let ended = events.expect("ended").await.data;
    assert_eq!((&ended["scope"], &ended["cause"]), (&json!("jobs/a"), &json!("deleted")));
    assert_eq!(ended["last"]["token"], grant["token"]);
    acquire(client, "jobs/short", "w#1", json!({"ttl_ms": 200})).await.of(200);
    events.expect("held").await;
    assert_eq!(events.expect("ended").await.data["cause"], "expired");

    let path = format!("/v1/leases/watch?prefix=jobs/a&after={}", grant["revision"]);
    let mut later = client.stream(&path, &[]).await;
    later.expect("start").await;
    assert_eq!(later.expect("ended").await.data["scope"], "jobs/a");
}

async fn what_is_left_is_listed_and_reaped_once(place: Place) {
    let client = place.client();
    let left = || async move {
        let path = "/v1/leases/orphans?namespace=jobs";
        client.get(path).await.of(200).body["orphans"].as_array().unwrap().clone()
    };
    let brief = json!({"ttl_ms": 1000, "reapable": true, "metadata": {"host": "h7"}});
    let token =
        acquire(client, "jobs/a", "w#1", brief).await.of(200).body["grant"]["token"].clone();
    until("it is left", || async { left().await.len() == 1 }).await;
    let gone = left().await.remove(0);
    assert_eq!((&gone["scope"], &gone["holder"]), (&json!("jobs/a"), &json!("w#1")));
    assert_eq!((&gone["token"], &gone["metadata"]), (&token, &json!({"host": "h7"})));
    let put = json!({"kind": "tally", "id": "1", "payload": "a", "expect_absent": true});
    let reap = json!({"scope": gone["scope"], "nonce": gone["nonce"], "revision": gone["revision"],
        "commit": {"writes": [{"put": put}]}});
    let mut twice = Vec::new();
    for _ in 0..2 {
        let reaped = client.post("/v1/leases/reap", reap.clone()).await.of(200).body;
        twice.push(reaped["reaped"].as_bool().unwrap());
    }
    assert_eq!(twice, [true, false]);
    assert_eq!(client.get("/v1/objects/tally/1").await.of(200).body["version"], 1);
    assert!(left().await.is_empty());
}

async fn slots_are_taken_up_to_their_count(place: Place) {
    let client = place.client();
    let take = |owner: &'static str, wait_ms: u64| async move {
        let body =
            json!({"group": "search.indexer", "count": 2, "owner": owner, "wait_ms": wait_ms});
        client.post("/v1/slots/acquire", body).await
    };
    let shown =
        || async move { client.get("/v1/slots/show?group=search.indexer").await.of(200).body };
    assert_eq!(shown().await, json!({"holders": [], "waiters": []}));
    let first = take("a#1", 0).await.of(200).body;
    let second = take("b#1", 0).await.of(200).body;
    let mut taken = [first["index"].as_u64().unwrap(), second["index"].as_u64().unwrap()];
    taken.sort_unstable();
    assert_eq!(taken, [0, 1]);
    assert!(first["remaining_ms"].as_u64().unwrap() > 0);
    take("c#1", 0).await.error(423, "held");
    let all = shown().await;
    assert_eq!((&all["count"], all["holders"].as_array().unwrap().len()), (&json!(2), 2));
    assert_eq!(all["holders"][0]["index"], 0);
    assert!(all["holders"][0]["lease"]["holder"].as_str().unwrap().ends_with("#1"));

    let waiting = tokio::spawn(take("c#1", 60_000));
    until("somebody waits", || async { shown().await["waiters"][0]["owner"] == "c#1" }).await;
    let renewed = json!({"grants": [first["grant"], second["grant"]]});
    let renewed = client.post("/v1/leases/renew", renewed).await.of(200).body;
    assert!(
        renewed["renewed"][0]["revision"].is_u64() && renewed["renewed"][1]["revision"].is_u64()
    );
    release(client, &first["grant"]).await.of(200);
    assert_eq!(waiting.await.unwrap().of(200).body["index"], first["index"]);

    let resize = json!({"group": "search.indexer", "count": 3});
    assert_eq!(client.post("/v1/slots/resize", resize).await.of(200).body, json!({}));
    assert_eq!(shown().await["count"], 3);
    let version = shown().await["version"].as_u64().unwrap();
    let resize = json!({"group": "search.indexer", "count": 9, "expect_version": version - 1});
    client.post("/v1/slots/resize", resize).await.error(409, "conflict");
    assert_eq!(shown().await["count"], 3);
    let fourth = json!({"group": "search.indexer", "count": 3, "owner": "d#1"});
    assert_eq!(client.post("/v1/slots/acquire", fourth).await.of(200).body["index"], 2);
    client.get("/v1/slots/show?group=a%2Fb").await.error(400, "invalid");
}

async fn whoever_leads_is_seen_by_all(place: Place) {
    let client = place.client();
    let leader =
        || async move { client.get("/v1/elections/leader?scope=app/leader").await.of(200).body };
    assert_eq!(leader().await, json!({}));
    let mut events = client.stream("/v1/elections/observe?scope=app/leader", &[]).await;
    assert_eq!(events.expect("leader").await.data, json!({"leader": null}));
    let grant = acquired(client, "app/leader", "one#1").await;
    assert_eq!(events.expect("leader").await.data["leader"]["holder"], "one#1");
    assert_eq!(leader().await["leader"]["token"], grant["token"]);
    release(client, &grant).await.of(200);
    assert_eq!(events.expect("leader").await.data, json!({"leader": null}));
    acquired(client, "app/leader", "two#1").await;
    assert_eq!(events.expect("leader").await.data["leader"]["holder"], "two#1");
    client.get("/v1/elections/leader").await.error(400, "invalid");
    client.get("/v1/elections/leader?scope=nothing").await.error(400, "invalid");
    let ending = tokio::spawn(place.end());
    events.expect("leaving").await;
    ending.await.unwrap();
}

async fn waits_end_when_the_server_leaves(place: Place) {
    let client = place.client();
    let store = place.store.clone();
    acquired(client, "jobs/a", "w#1").await;
    let waiting = tokio::spawn(acquire(client, "jobs/a", "w#2", json!({"wait_ms": 60000})));
    waiters(client, "jobs/a", 1).await;
    let _folder = place.end().await;
    let answer = waiting.await.unwrap();
    assert_eq!(answer.header("retry-after"), "1");
    let error = answer.error(503, "unavailable");
    assert!(error["reason"].as_str().unwrap().contains("shutting down"), "{error}");
    // Its place in line is gone before the server is.
    let next = Place::over(store, ServerLimits::default()).await;
    assert_eq!(show(next.client(), "jobs/a").await["waiters"], json!([]));
    assert_eq!(show(next.client(), "jobs/a").await["holder"]["holder"], "w#1");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_by_its_name() {
    let place = Place::memory().await;
    let client = place.client();
    let told = |path: &'static str, body: Value| async move {
        let error = client.post(path, body).await.error(400, "invalid");
        format!("{}: {}", error["what"].as_str().unwrap(), error["reason"].as_str().unwrap())
    };
    let grant = acquired(client, "jobs/a", "w#1").await;
    let mut strange = grant.clone();
    strange["owner"] = json!("w");
    let mut nowhere = grant.clone();
    nowhere["scope"] = json!("nowhere");
    for (path, body, expected) in [
        ("/v1/leases/acquire", json!({"scope": "jobs/a"}), "missing field `owner`"),
        ("/v1/leases/acquire", json!({"scope": "jobs", "owner": "w"}), "jobs"),
        ("/v1/leases/acquire", json!({"scope": "a/b", "owner": ""}), "owner"),
        ("/v1/leases/acquire", json!({"scope": "a/b", "owner": "w", "ttl": 3}), "ttl"),
        ("/v1/leases/acquire", json!({"scope": "a/b", "owner": "w", "ttl_ms": 1}), "life of 1ms"),
        ("/v1/leases/acquire", json!({"scope": "a/b", "owner": "w", "wait_ms": "1"}), "wait_ms"),
        ("/v1/leases/release", json!({"grant": strange}), "owner"),
        ("/v1/leases/release", json!({"grant": nowhere}), "nowhere"),
        ("/v1/leases/release", json!({}), "missing field `grant`"),
        ("/v1/leases/hand-over", json!({"grant": grant}), "missing field `successor`"),
        ("/v1/slots/acquire", json!({"group": "g", "count": 0, "owner": "w"}), "count"),
    ] {
        let text = told(path, body.clone()).await;
        assert!(text.contains(expected), "{path} {body}: {text}");
    }
    client.get("/v1/leases?namespace=a%2Fb").await.error(400, "invalid");
    // Of many that are renewed, one that makes no sense does not take the others down with it.
    let all = json!({"grants": [strange, grant, nowhere]});
    let renewed = client.post("/v1/leases/renew", all).await.of(200).body["renewed"].clone();
    assert!(renewed[1]["remaining_ms"].as_u64().is_some_and(|left| left > 0), "{renewed}");
    for (at, named) in [(0, "owner"), (2, "nowhere")] {
        let error = &renewed[at]["error"];
        assert_eq!(error["code"], "invalid", "{renewed}");
        assert!(error["what"].as_str().unwrap().contains(named), "{renewed}");
    }
}

#[tokio::test]
async fn only_so_many_wait() {
    let limits = ServerLimits { waiters_per_client: 1, ..ServerLimits::default() };
    let place = Place::over(MemoryStore::new().into_store(), limits).await;
    let client = place.client();
    let first = acquired(client, "jobs/a", "w#1").await;
    let wait = json!({"wait_ms": 60000});
    let waiting = tokio::spawn(acquire(client, "jobs/a", "w#2", wait.clone()));
    waiters(client, "jobs/a", 1).await;
    let refused = acquire(client, "jobs/b", "w#3", wait).await;
    assert_eq!(refused.header("retry-after"), "1");
    refused.error(429, "overloaded");
    release(client, &first).await.of(200);
    waiting.await.unwrap().of(200);
}

#[tokio::test]
async fn a_wait_is_no_longer_than_the_server_allows() {
    let wait_max = std::time::Duration::from_millis(100);
    let limits = ServerLimits { wait_max, ..ServerLimits::default() };
    let place = Place::over(MemoryStore::new().into_store(), limits).await;
    let client = place.client();
    acquired(client, "jobs/a", "w#1").await;
    for wait in [json!({"wait_forever": true}), json!({"wait_ms": 60000})] {
        let error = acquire(client, "jobs/a", "w#2", wait).await.error(423, "held");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("held by w#1") && message.contains("100ms"), "{message}");
        assert!(message.contains("ask again") && !message.contains("longer"), "{message}");
        assert_eq!((&error["scope"], &error["holder"]), (&json!("jobs/a"), &json!("w#1")));
    }
    // Whoever asks for less can ask for more.
    let error = acquire(client, "jobs/a", "w#2", json!({"wait_ms": 20})).await.error(423, "held");
    assert!(error["message"].as_str().unwrap().contains("longer wait"), "{error}");
    let nothing = client.get("/v1/watch?kind=x&wait_ms=60000").await.of(200).body;
    assert_eq!(nothing["events"], json!([]));
}
