//! Who asks, over HTTP: refusals in the one format, tenants apart, streams that end with their token.

use std::path::Path;

use serde_json::json;
use tenure::random::SystemRandom;
use tenure::store::memory::MemoryStore;
use tenure_server::ServerLimits;
use tenure_server::auth::{AuthSettings, Authenticator, tokens};

use super::place::{Place, until};

/// A token, and the entry that lists it.
fn token(name: &str, tenant: &str, permission: &str) -> (String, String) {
    let (token, sum) = tokens::mint(&SystemRandom);
    let tenant = match tenant {
        "" => String::new(),
        tenant => format!("tenant = {tenant:?}\n"),
    };
    let entry = format!(
        "[[token]]\nname = {name:?}\nsha256 = {sum:?}\n{tenant}permissions = [{permission}]\n"
    );
    (token, entry)
}

async fn guarded(list: &Path) -> Place {
    let settings = AuthSettings { token_file: Some(list.to_path_buf()), ..AuthSettings::default() };
    let authenticator = Authenticator::new(settings).unwrap();
    let store = MemoryStore::new().into_store();
    Place::guarded(store, ServerLimits::default(), authenticator).await
}

#[tokio::test]
async fn whoever_is_refused_is_told_so_in_json_and_probes_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (reader, entry) = token("reader", "", "\"objects:read:order/*\"");
    std::fs::write(&list, entry).unwrap();
    let place = guarded(&list).await;
    let client = place.client();
    for path in ["/v1/objects/order/1", "/v1/nothing", "/openapi.json", "/metrics"] {
        let answer = client.get(path).await;
        assert_eq!(answer.header("www-authenticate"), "Bearer", "{path}");
        answer.error(401, "unauthenticated");
    }
    client.get("/healthz").await.of(200);
    client.get("/readyz").await.of(200);
    client.with("tnr_wrong").get("/v1/objects/order/1").await.error(401, "unauthenticated");

    let reader = client.with(&reader);
    reader.get("/v1/objects/order/1").await.error(404, "not_found");
    reader.get("/openapi.json").await.of(200);
    let denied = reader.put("/v1/objects/order/1", json!({"payload": ""})).await;
    let message = denied.error(403, "denied")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("objects:write") && message.contains("order/1"), "{message}");
    reader.get("/metrics").await.error(403, "denied");
    reader.get("/v1/leases").await.error(403, "denied");
    let asked = json!({"scope": "a/b", "owner": "w"});
    reader.post("/v1/leases/acquire", asked).await.error(403, "denied");
}

#[tokio::test]
async fn tenants_do_not_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let all = "\"objects:*:*\", \"leases:*:*\"";
    let (red, first) = token("red", "red", all);
    let (blue, second) = token("blue", "blue", all);
    std::fs::write(&list, format!("{first}{second}")).unwrap();
    let place = guarded(&list).await;
    let (red, blue) = (place.client().with(&red), place.client().with(&blue));
    red.put("/v1/objects/order/1", json!({"payload": "red"})).await.of(200);
    blue.get("/v1/objects/order/1").await.error(404, "not_found");
    assert_eq!(blue.get("/v1/objects/order").await.of(200).body["objects"], json!([]));
    let got = red.get("/v1/objects/order/1").await.of(200).body;
    assert_eq!((&got["id"], &got["payload"]), (&json!("1"), &json!("red")));
    let asked = json!({"scope": "jobs/a", "owner": "w#1"});
    for client in [red, blue] {
        let grant = client.post("/v1/leases/acquire", asked.clone()).await.of(200).body;
        assert_eq!(grant["grant"]["scope"], "jobs/a");
        let leases = client.get("/v1/leases").await.of(200).body["leases"].clone();
        assert_eq!(leases.as_array().map(Vec::len), Some(1), "{leases}");
    }
}

/// A grant says in which line others wait for its lease. It comes from outside, so it may say anything.
#[tokio::test]
async fn a_grant_does_not_reach_into_a_line_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (mine, first) = token("mine", "", "\"leases:hold:mine.*\"");
    let (theirs, second) = token("theirs", "", "\"leases:hold:theirs.*\"");
    std::fs::write(&list, format!("{first}{second}")).unwrap();
    let place = guarded(&list).await;
    let (mine, theirs) = (place.client().with(&mine), place.client().with(&theirs));
    let asked = |scope: &str, owner: &str| json!({"scope": scope, "owner": owner});
    theirs.post("/v1/leases/acquire", asked("theirs/a", "holder#1")).await.of(200);
    let waiting = tokio::spawn(async move {
        let asked = json!({"scope": "theirs/a", "owner": "next#1", "wait_forever": true});
        theirs.post("/v1/leases/acquire", asked).await
    });
    let waiters = async || {
        let shown = theirs.get("/v1/leases/show?scope=theirs/a").await.of(200).body;
        shown["waiters"].as_array().map_or(0, Vec::len)
    };
    until("somebody waits", || async { waiters().await == 1 }).await;

    let acquired = mine.post("/v1/leases/acquire", asked("mine/a", "w#1")).await.of(200).body;
    let mut grant = acquired["grant"].clone();
    for line in ["theirs/a", "theirs"] {
        grant["queue"] = json!(line);
        let handed = json!({"grant": grant, "successor": "next"});
        let told = mine.post("/v1/leases/hand-over", handed).await.error(403, "denied");
        assert!(told["message"].as_str().unwrap().contains("theirs/"), "{told}");
    }
    assert_eq!(waiters().await, 1, "it lost its place in line");
    let held = mine.get("/v1/leases/show?scope=mine/a").await.of(200).body;
    assert_eq!(held["holder"]["holder"], "w#1");
    waiting.abort();
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_not_listed_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (gone, first) = token("gone", "", "\"objects:*:*\"");
    let (stays, second) = token("stays", "", "\"objects:*:*\"");
    std::fs::write(&list, format!("{first}{second}")).unwrap();
    let place = guarded(&list).await;
    let (gone, stays) = (place.client().with(&gone), place.client().with(&stays));
    let mut events = gone.stream("/v1/watch?kind=order", &[]).await;
    events.expect("start").await;
    let mut quiet = gone.stream("/v1/watch?kind=nothing", &[]).await;
    quiet.expect("start").await;
    stays.put("/v1/objects/order/1", json!({"payload": "a"})).await.of(200);
    events.expect("batch").await;
    std::fs::write(&list, second).unwrap();
    until("the token is refused", || async { gone.get("/v1/capabilities").await.status == 401 })
        .await;
    stays.put("/v1/objects/order/1", json!({"payload": "b"})).await.of(200);
    let told = events.expect("error").await.data;
    assert_eq!(told["error"]["code"], "unauthenticated");
    assert!(events.next().await.is_none());
    assert_eq!(quiet.expect("error").await.data["error"]["code"], "unauthenticated");
    assert!(quiet.next().await.is_none());
}

#[tokio::test]
async fn a_stream_ends_when_its_token_may_not_read_that_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (less, all) = token("less", "", "\"objects:*:order/*\", \"objects:read:secret/*\"");
    std::fs::write(&list, &all).unwrap();
    let place = guarded(&list).await;
    let less = place.client().with(&less);
    let mut secret = less.stream("/v1/watch?kind=secret", &[]).await;
    secret.expect("start").await;
    let mut kept = less.stream("/v1/watch?kind=order", &[]).await;
    kept.expect("start").await;
    std::fs::write(&list, all.replace(", \"objects:read:secret/*\"", "")).unwrap();
    assert_eq!(secret.expect("error").await.data["error"]["code"], "denied");
    assert!(secret.next().await.is_none());
    less.put("/v1/objects/order/1", json!({"payload": "a"})).await.of(200);
    kept.expect("batch").await;
}

/// They count what all tenants do, by the names of their kinds.
#[tokio::test]
async fn metrics_are_not_for_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (all, first) = token("acme-admin", "acme", "\"*\"");
    let (observer, second) = token("acme-observer", "acme", "\"server:observe\"");
    let (operator, third) = token("operator", "", "\"server:observe\"");
    std::fs::write(&list, format!("{first}{second}{third}")).unwrap();
    let place = guarded(&list).await;
    for tenant in [all, observer] {
        let client = place.client().with(&tenant);
        let message = client.get("/metrics").await.error(403, "denied")["message"].to_string();
        assert!(message.contains("tenant") && message.contains("acme"), "{message}");
    }
    place.client().with(&operator).get("/metrics").await.of(200);
}

/// A prefix goes by letters and a permission by names: `billing` begins `billingx`, too.
#[tokio::test]
async fn whoever_may_not_watch_a_prefix_is_told_which_ones_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (below, first) = token("below", "", "\"leases:read:billing.*\"");
    let (inside, second) = token("inside", "", "\"leases:read:billing/*\"");
    std::fs::write(&list, format!("{first}{second}")).unwrap();
    let place = guarded(&list).await;
    let told = async |token: &str, prefix: &str| {
        let path = format!("/v1/leases/watch?prefix={prefix}&wait_ms=0");
        let answer = place.client().with(token).get(&path).await;
        answer.error(403, "denied")["message"].as_str().unwrap().to_owned()
    };
    let message = told(&below, "billing").await;
    assert!(message.contains("billing/ or billing."), "{message}");
    let message = told(&inside, "billing").await;
    assert!(message.contains("billing/") && !message.contains("billing. "), "{message}");
    let message = told(&inside, "other").await;
    assert!(!message.contains("other/") && message.contains("permissions"), "{message}");
    for prefix in ["billing/", "billing."] {
        let path = format!("/v1/leases/watch?prefix={prefix}&wait_ms=0");
        place.client().with(&below).get(&path).await.of(200);
    }
}
