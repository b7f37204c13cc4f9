//! Watching: streams and long polls miss nothing and repeat nothing.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::store::memory::MemoryStore;
use tenure_server::ServerLimits;

use super::client::Client;
use super::place::{Place, until};

super::over_both!(
    a_stream_misses_nothing_while_others_write_and_goes_on_where_it_stopped,
    a_stream_tells_what_went_away_and_why,
    a_poll_waits_for_what_happens_and_goes_on_from_there,
    a_poll_is_answered_with_nothing_when_its_wait_is_over,
    a_stream_of_something_quiet_is_told_how_far_it_has_come,
    streams_and_polls_end_when_the_server_leaves,
    prefixes_and_kinds_are_kept_apart,
    a_stream_of_leases_goes_on_where_it_stopped,
    a_poll_of_leases_goes_on_from_there,
    a_poll_of_an_election_waits_for_another_leader,
    polls_of_leases_end_when_the_server_leaves,
);

async fn put(client: Client, id: &str) -> u64 {
    let put = client.put(&format!("/v1/objects/job/{id}"), json!({"payload": id})).await;
    put.of(200).body["revision"].as_u64().unwrap()
}

fn ids(batch: &Value) -> Vec<String> {
    let events = batch["events"].as_array().unwrap().iter();
    events.map(|event| event["object"]["id"].as_str().unwrap().to_owned()).collect()
}

async fn a_stream_misses_nothing_while_others_write_and_goes_on_where_it_stopped(place: Place) {
    const WRITERS: usize = 4;
    const WRITES: usize = 25;
    let client = place.client();
    let start = put(client, "first").await;
    let writers = (0..WRITERS).map(|writer| {
        tokio::spawn(async move {
            for write in 0..WRITES {
                put(client, &format!("{writer}-{write}")).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let path = format!("/v1/watch?kind=job&after={start}");
    let (mut seen, mut revisions) = (Vec::new(), vec![start]);
    // The stream is cut again and again, and goes on behind the last batch that was read.
    while seen.len() < WRITERS * WRITES {
        let last = revisions.last().unwrap().to_string();
        let mut events = client.stream(&path, &[("last-event-id", &last)]).await;
        assert_eq!(events.expect("start").await.data["revision"].to_string(), last);
        for _ in 0..7.min(WRITERS * WRITES - seen.len()) {
            let batch = events.expect("batch").await;
            assert_eq!(batch.id, batch.data["revision"].to_string());
            revisions.push(batch.id.parse().unwrap());
            seen.extend(ids(&batch.data));
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
    let mut expected: Vec<_> = (0..WRITERS * WRITES)
        .map(|number| format!("{}-{}", number / WRITES, number % WRITES))
        .collect();
    expected.sort();
    seen.sort();
    assert_eq!(seen, expected);
    place.end().await;
}

async fn a_stream_tells_what_went_away_and_why(place: Place) {
    let client = place.client();
    let mut events = client.stream("/v1/watch?kind=job", &[]).await;
    events.expect("start").await;
    put(client, "1").await;
    let batch = events.expect("batch").await.data;
    assert_eq!((&batch["events"][0]["type"], ids(&batch)), (&json!("put"), vec!["1".to_owned()]));
    client.delete("/v1/objects/job/1").await.of(200);
    let event = events.expect("batch").await.data["events"][0].clone();
    assert_eq!(event["type"], "deleted");
    assert_eq!((&event["kind"], &event["id"]), (&json!("job"), &json!("1")));
    assert_eq!(event["cause"], "deleted");
    assert_eq!(event["last"]["payload"], "1");
    client.put("/v1/objects/job/2", json!({"payload": "2", "ttl_ms": 100})).await.of(200);
    events.expect("batch").await;
    let event = events.expect("batch").await.data["events"][0].clone();
    assert_eq!((&event["cause"], &event["id"]), (&json!("expired"), &json!("2")));
}

async fn a_poll_waits_for_what_happens_and_goes_on_from_there(place: Place) {
    let client = place.client();
    let start = put(client, "0").await;
    let path = format!("/v1/watch?kind=job&after={start}&wait_ms=15000");
    let poll = tokio::spawn(async move { client.get(&path).await });
    until("the poll waits", || waiting(client, 1)).await;
    let first = put(client, "1").await;
    let told = poll.await.unwrap().of(200).body;
    assert_eq!((told["revision"].as_u64(), ids(&told)), (Some(first), vec!["1".to_owned()]));
    // Several that happened in between come together.
    put(client, "2").await;
    let last = put(client, "3").await;
    let told = client.get(&format!("/v1/watch?kind=job&after={first}")).await.of(200).body;
    assert_eq!(ids(&told).first().map(String::as_str), Some("2"));
    assert!(told["revision"].as_u64().unwrap() <= last);
    until("the wait is over", || waiting(client, 0)).await;
}

/// Whether so many wait.
async fn waiting(client: Client, count: usize) -> bool {
    let text = client.get("/metrics").await.of(200).text;
    text.lines().any(|line| line == format!("tenure_server_waiters {count}"))
}

async fn a_poll_is_answered_with_nothing_when_its_wait_is_over(place: Place) {
    let client = place.client();
    let revision = put(client, "1").await;
    let nothing = json!({"revision": revision, "events": []});
    let path = format!("/v1/watch?kind=job&after={revision}&wait_ms=20");
    assert_eq!(client.get(&path).await.of(200).body, nothing);
    assert_eq!(client.get("/v1/watch?kind=job&wait_ms=0").await.of(200).body, nothing);
}

async fn a_stream_of_something_quiet_is_told_how_far_it_has_come(place: Place) {
    let client = place.client();
    let start = put(client, "1").await;
    for path in ["/v1/watch?kind=job", "/v1/leases/watch"] {
        let mut events = client.stream(path, &[]).await;
        events.expect("start").await;
        let other = client.put("/v1/objects/other/a", json!({"payload": path})).await.of(200);
        let other = other.body["revision"].as_u64();
        let mark = events.told().await.unwrap();
        assert_eq!((mark.name.as_str(), mark.id.parse().ok()), ("", other), "{mark:?}");
        // So is a poll, at once.
        let separator = if path.contains('?') { '&' } else { '?' };
        let poll = format!("{path}{separator}after={start}&wait_ms=20");
        let told = client.get(&poll).await.of(200).body;
        assert_eq!(told, json!({"revision": other, "events": []}));
    }
}

async fn streams_and_polls_end_when_the_server_leaves(place: Place) {
    let client = place.client();
    let mut events = client.stream("/v1/watch", &[]).await;
    events.expect("start").await;
    let poll = tokio::spawn(async move { client.get("/v1/watch?wait_ms=15000").await });
    until("the poll waits", || waiting(client, 1)).await;
    let ending = tokio::spawn(place.end());
    events.expect("leaving").await;
    assert!(events.next().await.is_none());
    assert_eq!(poll.await.unwrap().of(200).body["events"], json!([]));
    ending.await.unwrap();
}

async fn prefixes_and_kinds_are_kept_apart(place: Place) {
    let client = place.client();
    let start = put(client, "a").await;
    client.put("/v1/objects/other/a", json!({"payload": ""})).await.of(200);
    put(client, "b1").await;
    let path = format!("/v1/watch?kind=job&prefix=b&after={start}");
    assert_eq!(ids(&client.get(&path).await.of(200).body), ["b1"]);
    let error = client.get("/v1/watch?after=soon").await.error(400, "invalid");
    assert!(error["reason"].as_str().unwrap().contains("after"), "{error}");
    let bad = [("last-event-id", "x")];
    let error = client.ask(http::Method::GET, "/v1/watch", &bad, String::new()).await;
    assert_eq!(error.error(400, "invalid")["what"], "last-event-id");
}

#[tokio::test]
async fn a_client_gets_so_many_streams_and_waits_and_has_them_again_when_it_closes_them() {
    let limits = ServerLimits { streams_per_client: 1, waiters: 1, ..ServerLimits::default() };
    let place = Place::over(MemoryStore::new().into_store(), limits).await;
    let client = place.client();
    let mut events = client.stream("/v1/watch", &[]).await;
    events.expect("start").await;
    let refused = || async move {
        let headers = [("accept", "text/event-stream")];
        client.ask(http::Method::GET, "/v1/watch", &headers, String::new()).await
    };
    let answer = refused().await;
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.error(429, "overloaded")["retry_after_ms"], 1000);

    let poll = tokio::spawn(async move { client.get("/v1/watch?wait_ms=15000").await });
    until("the poll waits", || waiting(client, 1)).await;
    client.get("/v1/watch?wait_ms=15000").await.error(429, "overloaded");
    // Closing the connection gives the wait up.
    poll.abort();
    until("the wait is given up", || waiting(client, 0)).await;

    drop(events);
    let open = || async move {
        let text = client.get("/metrics").await.of(200).text;
        text.lines().any(|line| line == "tenure_server_streams 0")
    };
    until("the stream is closed", open).await;
    tokio::time::timeout(Duration::from_secs(5), client.stream("/v1/watch", &[])).await.unwrap();
}

async fn a_stream_of_leases_goes_on_where_it_stopped(place: Place) {
    let client = place.client();
    let acquire = async |key: &str| {
        let asked = json!({"scope": format!("a.b/{key}"), "owner": "me#1"});
        client.post("/v1/leases/acquire", asked).await.of(200).body["grant"].clone()
    };
    let path = "/v1/leases/watch?prefix=a.b";
    let mut events = client.stream(path, &[]).await;
    // Whoever breaks off before anything has happened goes on from there, too.
    let start = events.expect("start").await.id;
    drop(events);
    let first = acquire("1").await;
    let mut events = client.stream(path, &[("last-event-id", &start)]).await;
    events.expect("start").await;
    let held = events.expect("held").await;
    assert_eq!(
        (held.data["scope"].as_str(), held.id),
        (Some("a.b/1"), first["revision"].to_string())
    );
    drop(events);
    // What happens in between is told when the client comes back, and nothing twice. `after` is where it
    // once began.
    client.post("/v1/leases/release", json!({"grant": first})).await.of(200);
    acquire("2").await;
    let path = format!("{path}&after={start}");
    let id = first["revision"].to_string();
    let mut events = client.stream(&path, &[("last-event-id", &id)]).await;
    assert_eq!(events.expect("start").await.id, id);
    assert_eq!(events.expect("ended").await.data["scope"], "a.b/1");
    assert_eq!(events.expect("held").await.data["scope"], "a.b/2");
    let wrong =
        client.ask(http::Method::GET, &path, &[("last-event-id", "x")], String::new()).await;
    assert_eq!(wrong.error(400, "invalid")["what"], "last-event-id");
    // Two leases of one commit: only the last of them says that all of it was told.
    let mut events = client.stream("/v1/leases/watch?prefix=c", &[]).await;
    events.expect("start").await;
    let coordinator = tenure::lease::Coordinator::new(place.store.clone()).unwrap();
    let scopes = ["c/1", "c/2"].map(|scope| scope.parse().unwrap());
    let both = coordinator.acquire_all(&scopes, &tenure::lease::Terms::new()).await.unwrap();
    let (one, two) = (events.expect("held").await, events.expect("held").await);
    assert!(one.id.is_empty() && !two.id.is_empty(), "{one:?} {two:?}");
    both.release().await.unwrap();
}

async fn a_poll_of_leases_goes_on_from_there(place: Place) {
    let client = place.client();
    let acquire = async |scope: &str| {
        let asked = json!({"scope": scope, "owner": "me#1"});
        client.post("/v1/leases/acquire", asked).await.of(200).body["grant"].clone()
    };
    let poll = async |after: u64, wait: u64| {
        let path = format!("/v1/leases/watch?prefix=a/&after={after}&wait_ms={wait}");
        client.get(&path).await.of(200).body
    };
    let start = client.get("/v1/leases/watch?prefix=a/&wait_ms=0").await.of(200).body;
    assert_eq!(start["events"], json!([]));
    let start = start["revision"].as_u64().unwrap();
    let path = format!("/v1/leases/watch?prefix=a/&after={start}&wait_ms=15000");
    let waits = tokio::spawn(async move { client.get(&path).await.of(200).body });
    until("the poll waits", || waiting(client, 1)).await;
    acquire("b/1").await;
    let grant = acquire("a/1").await;
    let told = waits.await.unwrap();
    assert_eq!(
        (&told["revision"], &told["events"][0]["type"]),
        (&grant["revision"], &json!("held"))
    );
    assert_eq!(told["events"][0]["lease"]["scope"], "a/1");
    // What happened in between is told by the next, and nothing twice.
    client.post("/v1/leases/release", json!({"grant": grant})).await.of(200);
    let told = poll(told["revision"].as_u64().unwrap(), 15_000).await;
    let ended = &told["events"][0];
    assert_eq!((&ended["type"], &ended["scope"]), (&json!("ended"), &json!("a/1")));
    assert_eq!((&ended["cause"], &ended["last"]["holder"]), (&json!("deleted"), &json!("me#1")));
    let last = told["revision"].as_u64().unwrap();
    assert_eq!(poll(last, 20).await["events"], json!([]));
    assert!(poll(last, 0).await["revision"].as_u64().unwrap() >= last);
}

async fn a_poll_of_an_election_waits_for_another_leader(place: Place) {
    let client = place.client();
    let path = |more: String| format!("/v1/elections/observe?scope=app/leader{more}");
    let observe = async |more: String| client.get(&path(more)).await.of(200).body;
    // Who leads now, to whoever does not say what it knows.
    assert_eq!(observe("&wait_ms=15000".into()).await, json!({"leader": null, "revision": 0}));
    assert_eq!(observe("&after=0&wait_ms=20".into()).await["leader"], Value::Null);
    let first = path("&after=0&wait_ms=15000".into());
    let waits = tokio::spawn(async move { client.get(&first).await.of(200).body });
    until("the poll waits", || waiting(client, 1)).await;
    let asked = json!({"scope": "app/leader", "owner": "one#1"});
    let grant = client.post("/v1/leases/acquire", asked).await.of(200).body["grant"].clone();
    let told = waits.await.unwrap();
    assert_eq!(told["leader"]["holder"], "one#1");
    assert_eq!(
        (&told["revision"], &told["leader"]["revision"]),
        (&grant["revision"], &grant["revision"])
    );
    let same = observe(format!("&after={}&wait_ms=20", told["revision"])).await;
    assert_eq!(
        (&same["leader"]["holder"], &same["revision"]),
        (&json!("one#1"), &told["revision"])
    );
    let second = path(format!("&after={}&wait_ms=15000", told["revision"]));
    let waits = tokio::spawn(async move { client.get(&second).await.of(200).body });
    until("the poll waits", || waiting(client, 1)).await;
    client.post("/v1/leases/release", json!({"grant": grant})).await.of(200);
    assert_eq!(waits.await.unwrap(), json!({"leader": null, "revision": 0}));
}

async fn polls_of_leases_end_when_the_server_leaves(place: Place) {
    let client = place.client();
    let paths =
        ["/v1/leases/watch?wait_ms=15000", "/v1/elections/observe?scope=a/b&after=0&wait_ms=15000"];
    let polls = paths.map(|path| tokio::spawn(async move { client.get(path).await }));
    until("both wait", || waiting(client, 2)).await;
    place.end().await;
    for poll in polls {
        poll.await.unwrap().of(200);
    }
}
