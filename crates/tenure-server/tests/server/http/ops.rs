//! What operators look at.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock::SystemClock;
use tenure::lease::{Coordinator, Terms};
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_server::ServerLimits;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::place::{Place, until};

#[tokio::test]
async fn the_document_lists_every_route_and_every_route_is_there() {
    let place = Place::memory().await;
    let client = place.client();
    let document = client.get("/openapi.json").await.of(200).body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let mut listed = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            listed.insert(format!("{} {path}", method.to_uppercase()));
            assert!(operation["responses"].is_object(), "{method} {path}");
        }
    }
    let expected: BTreeSet<String> = ROUTES.iter().map(ToString::to_string).collect();
    assert_eq!(listed, expected);
    for route in ROUTES {
        let (method, path) = route.split_once(' ').unwrap();
        let path = path.replace(['{', '}'], "");
        let stream = [("accept", "application/json")];
        let path = format!("{path}?wait_ms=0").replace("watch?", "watch?kind=x&");
        let answer = client.ask(method.parse().unwrap(), &path, &stream, String::new());
        let Ok(answer) = tokio::time::timeout(Duration::from_secs(2), answer).await else {
            continue; // A stream: it is there.
        };
        assert_ne!(answer.status, 405, "{route}");
        assert_ne!(answer.body["error"]["what"], "route", "{route}");
    }
    // Every reference leads somewhere.
    let text = document.to_string();
    for reference in text.split("\"#/").skip(1) {
        let pointer = format!("/{}", reference.split('"').next().unwrap());
        assert!(document.pointer(&pointer).is_some(), "{pointer} is nowhere");
    }
}

/// What the document says of answers that have an error in the middle, and of their types.
#[tokio::test]
async fn the_document_tells_what_answers_look_like() {
    let place = Place::memory().await;
    let client = place.client();
    let document = client.get("/openapi.json").await.of(200).body;
    let touch = json!({"touches": [{"kind": "a", "id": "b", "revision": 1, "ttl_ms": 60_000}]});
    let touched = client.post("/v1/touch", touch).await.of(200).body["touched"][0].clone();
    let grant = json!({"scope": "a/b", "token": 1, "nonce": "n", "revision": 1, "ttl_ms": 60_000,
        "owner": "w#1"});
    let renewed = client.post("/v1/leases/renew", json!({"grants": [grant]})).await.of(200).body;
    for (schema, answer) in [("Touched", &touched), ("RenewOutcome", &renewed["renewed"][0])] {
        assert!(answer["error"]["code"].is_string(), "{answer}");
        let ways = &document["components"]["schemas"][schema]["oneOf"];
        let refers = |way: &Value| way["$ref"] == "#/components/schemas/ErrorBody";
        assert!(ways.as_array().unwrap().iter().any(refers), "{schema}: {ways}");
    }
    for path in ["/metrics", "/readyz", "/openapi.json", "/v1/capabilities"] {
        let answer = client.get(path).await.of(200);
        let told = &document["paths"][path]["get"]["responses"]["200"]["content"];
        let kind = answer.header("content-type").split(';').next().unwrap();
        assert!(told.get(kind).is_some(), "{path}: {kind} is not in {told}");
    }
}

const ROUTES: &[&str] = &[
    "DELETE /v1/objects/{kind}/{id}",
    "GET /healthz",
    "GET /metrics",
    "GET /openapi.json",
    "GET /readyz",
    "GET /v1/capabilities",
    "GET /v1/elections/leader",
    "GET /v1/elections/observe",
    "GET /v1/leases",
    "GET /v1/leases/orphans",
    "GET /v1/leases/show",
    "GET /v1/leases/watch",
    "GET /v1/objects/{kind}",
    "GET /v1/objects/{kind}/{id}",
    "GET /v1/slots/show",
    "GET /v1/watch",
    "POST /v1/commit",
    "POST /v1/leases/acquire",
    "POST /v1/leases/ask-to-hand-over",
    "POST /v1/leases/hand-over",
    "POST /v1/leases/proclaim",
    "POST /v1/leases/reap",
    "POST /v1/leases/release",
    "POST /v1/leases/renew",
    "POST /v1/leases/revoke",
    "POST /v1/slots/acquire",
    "POST /v1/slots/ask-to-hand-over",
    "POST /v1/slots/resize",
    "POST /v1/touch",
    "PUT /v1/objects/{kind}/{id}",
];

#[tokio::test]
async fn metrics_are_in_the_format_and_count_what_happened() {
    let place = Place::memory().await;
    let client = place.client();
    client.put("/v1/objects/order/1", json!({"payload": "a"})).await.of(200);
    client.get("/v1/objects/order/2").await.of(404);
    for path in ["/no/such/1", "/no/such/2"] {
        client.get(path).await.of(404);
    }
    let grpc = [("content-type", "application/grpc")];
    let body = String::from("\0\0\0\0\0");
    client.ask(http::Method::POST, "/tenure.v1.Store/Get", &grpc, body).await.of(200);
    let answer = client.get("/metrics").await.of(200);
    assert!(answer.header("content-type").starts_with("application/openmetrics-text"));
    let number = |series: &str| -> f64 {
        let line = answer.text.lines().find(|line| line.starts_with(series));
        let line = line.unwrap_or_else(|| panic!("no {series} in\n{}", answer.text));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let object = "/v1/objects/{kind}/{*id}";
    let series = |method: &str, route: &str, code: u16, grpc: &str| {
        number(&format!(
            "tenure_server_requests_total{{method=\"{method}\",route=\"{route}\",code=\"{code}\",grpc_status=\"{grpc}\"}}"
        ))
    };
    assert_eq!(series("PUT", object, 200, ""), 1.0);
    assert_eq!(series("GET", object, 404, ""), 1.0);
    assert_eq!(series("GET", "(none)", 404, ""), 2.0);
    assert_eq!(series("POST", "/tenure.v1.Store/Get", 200, "3"), 1.0);
    assert_eq!(number(&format!("tenure_server_request_seconds_count{{route=\"{object}\"}}")), 2.0);
    assert!(number("tenure_server_connections ") >= 1.0);
    assert_eq!(number("tenure_server_build_info{"), 1.0);
    let commits =
        "tenure_store_call_seconds_count{backend=\"memory\",operation=\"commit\",outcome=\"ok\"}";
    assert_eq!(number(commits), 1.0);
    number("tenure_lease_acquired_total ");
    assert!(!answer.text.contains("/no/such"));
    // Each line is a comment, or a series and a number.
    for line in answer.text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
}

#[tokio::test]
async fn a_server_whose_store_does_not_answer_lives_but_is_not_ready() {
    let plan = FaultPlan::scripted();
    let memory = MemoryStore::new().into_store();
    let faulty = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let place = Place::over(Store::new(faulty), ServerLimits::default()).await;
    let client = place.client();
    let ready = client.get("/readyz").await.of(200).body;
    assert_eq!((&ready["ready"], &ready["store"]["reachable"]), (&json!(true), &json!(true)));
    assert_eq!(ready["store"]["backend"], "memory");
    assert_eq!(ready.get("leading"), None);
    assert_eq!(health(&place).await, 1);

    plan.next(Operation::Get, Fault::CrashBefore);
    let state = || async move { client.get("/readyz").await };
    until("it is not ready", || async { state().await.status == 503 }).await;
    let told = state().await;
    assert_eq!(told.body["store"]["reachable"], false);
    assert!(told.body["store"]["error"].as_str().unwrap().contains("injected"), "{told:?}");
    assert!(told.body["store"]["since_ms"].as_i64() > ready["store"]["since_ms"].as_i64());
    client.get("/healthz").await.of(200);
    until("gRPC says so", || async { health(&place).await == 2 }).await;
    let answer = client.get("/v1/objects/order/1").await;
    assert_eq!(answer.header("retry-after"), "1");
    answer.error(503, "unavailable");

    plan.restart();
    until("it is ready again", || async { state().await.status == 200 }).await;
    until("gRPC says so", || async { health(&place).await == 1 }).await;
}

/// What the gRPC health service says: 1 for serving, 2 for not serving.
async fn health(place: &Place) -> i32 {
    let request = HealthCheckRequest { service: "tenure.v1.Store".into() };
    health_client(place).await.check(request).await.unwrap().into_inner().status
}

async fn health_client(place: &Place) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", place.address)).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn readiness_names_this_replica_and_whoever_leads() {
    let place = Place::memory().await;
    let client = place.client();
    let coordinator = Coordinator::builder(place.store.clone()).name("r1").start().unwrap();
    let scope = "tenure.server/main".parse().unwrap();
    let lease = coordinator.acquire(&scope, &Terms::new()).await.unwrap();
    let leading = || async move { client.get("/readyz").await.of(200).body["leading"].clone() };
    until("the leader is named", || async { leading().await != Value::Null }).await;
    assert!(leading().await["name"].as_str().unwrap().starts_with("r1#"));
    assert!(leading().await["since_ms"].as_i64().unwrap() > 0);
    let replica = client.get("/readyz").await.of(200).body["replica"].clone();
    assert!(replica["name"].as_str().unwrap().contains('#') && replica["since_ms"].is_i64());
    lease.release().await.unwrap();
    until("nobody is named", || async { leading().await == Value::Null }).await;
}

#[tokio::test]
async fn whoever_watches_the_health_of_a_server_is_told_when_it_leaves() {
    let place = Place::memory().await;
    let request = HealthCheckRequest { service: String::new() };
    let mut told = health_client(&place).await.watch(request).await.unwrap().into_inner();
    until("it serves", || async { health(&place).await == 1 }).await;
    place.shutdown.begin();
    let mut last = 0;
    while let Some(message) = told.message().await.expect("it ends in order") {
        last = message.status;
    }
    assert_eq!(last, 2);
    place.end().await;
}
