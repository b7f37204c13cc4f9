//! What is wrong with a request is said in one format, also where no handler is reached.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tenure::clock::SystemClock;
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_server::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::place::{PATIENCE, Place, until};

#[tokio::test]
async fn what_is_wrong_with_a_body_is_said_by_the_name_of_the_field() {
    let place = Place::memory().await;
    let client = place.client();
    let put = |body: &'static str| async move {
        let answer = client.ask(Method::PUT, "/v1/objects/order/1", &[], body.into()).await;
        let error = answer.error(400, "invalid");
        (error["what"].as_str().unwrap().to_owned(), error["reason"].as_str().unwrap().to_owned())
    };
    for (body, what, reason) in [
        ("", "body", "EOF"),
        ("{", "body", "EOF"),
        ("[]", "body", "expected"),
        (r#"{"payload": 7}"#, "payload", "expected a string"),
        (r#"{"payload": "", "ttl_ms": "7"}"#, "ttl_ms", "expected u64"),
        (r#"{"payload": "", "ttl_ms": -7}"#, "ttl_ms", "expected u64"),
        (r#"{"payload": "", "labels": {"a": 1}}"#, "labels.a", "expected a string"),
        (r#"{"payload": "", "fence": {"scope": "a/b"}}"#, "fence", "missing field `token`"),
        (r#"{"payload": "", "expect_verion": 1}"#, "expect_verion", "unknown field"),
        (r#"{"payload": ""} more"#, "body", "trailing"),
    ] {
        let (told, why) = put(body).await;
        assert_eq!(told, what, "{body}");
        assert!(why.contains(reason), "{body}: {why}");
    }
    client.get("/v1/objects/order/1").await.error(404, "not_found");
    client.get("/v1/objects/order/%ff").await.error(400, "invalid");
}

#[tokio::test]
async fn a_route_or_method_that_is_not_there_points_to_those_that_are() {
    let place = Place::memory().await;
    let client = place.client();
    let error = client.get("/v1/nothing").await.error(404, "invalid");
    assert_eq!(error["what"], "route");
    assert!(error["reason"].as_str().unwrap().contains("/openapi.json"));
    let answer = client.post("/v1/objects/order/1", json!({})).await;
    assert!(answer.header("allow").contains("PUT"), "{answer:?}");
    assert_eq!(answer.error(405, "invalid")["what"], "method");
    client.delete("/healthz").await.error(405, "invalid");
    client.put("/metrics", json!({})).await.error(405, "invalid");
    // Whoever speaks gRPC is told in gRPC.
    let grpc = [("content-type", "application/grpc")];
    let answer = client.ask(Method::POST, "/nobody.v1.Knows/This", &grpc, String::new()).await;
    assert_eq!((answer.of(200).header("grpc-status")), "12");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_the_largest_is_not() {
    let limits = ServerLimits { message_bytes: 10_000, ..ServerLimits::default() };
    let place = Place::over(MemoryStore::new().into_store(), limits).await;
    let client = place.client();
    let body = |size: usize| {
        let frame = json!({"payload": ""}).to_string().len();
        json!({"payload": "x".repeat(size - frame)})
    };
    client.put("/v1/objects/order/1", body(10_000)).await.of(200);
    for size in [10_001, 3_000_000] {
        let answer = client.put("/v1/objects/order/1", body(size)).await;
        let error = answer.error(413, "limit_exceeded");
        assert_eq!((&error["limit"], &error["max"]), (&json!("message_bytes"), &json!(10_000)));
        assert_eq!(error["got"], size);
    }
}

#[tokio::test]
async fn a_server_without_room_says_when_to_ask_again() {
    let plan = FaultPlan::scripted();
    let memory = MemoryStore::new().into_store();
    let slow = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let limits = ServerLimits { requests: 1, ..ServerLimits::default() };
    let place = Place::over(Store::new(slow), limits).await;
    let client = place.client();
    plan.next(Operation::List, Fault::Delay(Duration::from_secs(60)));
    let taken = tokio::spawn(async move { client.get("/v1/objects/order").await });
    until("it works on as much as it can", || async move {
        client.get("/v1/objects/order/1").await.status == 429
    })
    .await;
    let answer = client.get("/v1/objects/order/1").await;
    assert_eq!(answer.header("retry-after"), "1");
    answer.error(429, "overloaded");
    client.get("/healthz").await.of(200);
    taken.abort();
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_answered_in_time() {
    let plan = FaultPlan::scripted();
    let memory = MemoryStore::new().into_store();
    let slow = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let request_timeout = Duration::from_millis(200);
    let limits = ServerLimits { request_timeout, ..ServerLimits::default() };
    let place = Place::over(Store::new(slow), limits).await;
    let client = place.client();
    let late = Fault::Delay(Duration::from_secs(60));
    plan.next(Operation::List, late);
    let answer = client.get("/v1/objects/order").await;
    assert_eq!(answer.header("retry-after"), "1");
    answer.error(503, "unavailable");
    // A write may have happened all the same, and the answer says so.
    plan.next(Operation::Commit, late);
    client.put("/v1/objects/order/1", json!({"payload": ""})).await.error(504, "unknown");
    // A body that never arrives takes up nothing for long.
    let mut stream = tokio::net::TcpStream::connect(place.address).await.unwrap();
    let head = "PUT /v1/objects/order/1 HTTP/1.1\r\nhost: tenure\r\ncontent-length: 10\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut told = vec![0; 1024];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut told)).await.unwrap().unwrap();
    let told = String::from_utf8_lossy(&told[..read]);
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("did not arrive"), "{told}");
}

#[tokio::test]
async fn a_connection_that_is_kept_for_the_next_renewal_stays_open() {
    let place = Place::memory().await;
    let mut stream = tokio::net::TcpStream::connect(place.address).await.unwrap();
    // A third of the usual life of a lease, and a little more.
    for pause in [Duration::ZERO, Duration::from_secs(11)] {
        tokio::time::sleep(pause).await;
        let request = b"GET /healthz HTTP/1.1\r\nhost: tenure\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut told = vec![0; 1024];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut told)).await.unwrap().unwrap();
        let told = String::from_utf8_lossy(&told[..read]);
        assert!(told.starts_with("HTTP/1.1 200"), "after {pause:?}: {told:?}");
    }
}
