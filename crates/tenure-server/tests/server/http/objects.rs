//! Objects: every route, its success and its refusals.

use http::Method;
use serde_json::json;
use tenure::lease::{Coordinator, Terms};

use super::place::Place;

super::over_both!(
    an_object_goes_in_and_comes_out_as_it_was,
    what_is_not_text_travels_in_base64,
    conditions_are_met_or_refused,
    headers_are_conditions_too,
    a_page_follows_another,
    a_commit_applies_as_a_whole_or_not_at_all,
    touches_stand_alone,
    a_fence_holds_while_its_lease_does,
    capabilities_are_those_of_the_store,
);

async fn an_object_goes_in_and_comes_out_as_it_was(place: Place) {
    let client = place.client();
    let path = "/v1/objects/order/a/b%20c%2Fd";
    let body =
        json!({"payload": "héllo\n", "name": "n", "labels": {"app": "web"}, "ttl_ms": 60000});
    let put = client.put(path, body.clone()).await.of(200);
    assert_eq!(
        (put.body["outcome"].as_str(), put.body["version"].as_u64()),
        (Some("put"), Some(1))
    );
    assert_eq!(put.header("etag"), "\"1\"");
    assert_eq!(client.put(path, body).await.of(200).body["outcome"], "unchanged");

    let got = client.get(path).await.of(200);
    assert_eq!(got.header("etag"), "\"1\"");
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(got.body["id"], "a/b c/d");
    assert_eq!((&got.body["kind"], &got.body["name"]), (&json!("order"), &json!("n")));
    assert_eq!(got.body["payload"], "héllo\n");
    assert_eq!(got.body["labels"], json!({"app": "web"}));
    assert_eq!(got.body["ttl_ms"], 60000);
    assert!((1..=60000).contains(&got.body["expires_in_ms"].as_u64().unwrap()));
    for field in ["revision", "created_revision", "token", "created_at_ms", "updated_at_ms"] {
        assert_eq!(got.body[field], put.body[field], "{field}");
    }

    let deleted = client.delete(path).await.of(200);
    assert_eq!(deleted.body["outcome"], "deleted");
    assert!(deleted.body["revision"].as_u64() > put.body["revision"].as_u64());
    assert_eq!(client.delete(path).await.of(200).body, json!({"outcome": "absent"}));
    let error = client.get(path).await.error(404, "not_found");
    assert_eq!(error["key"], json!({"kind": "order", "id": "a/b c/d"}));
    place.end().await;
}

async fn what_is_not_text_travels_in_base64(place: Place) {
    let client = place.client();
    client.put("/v1/objects/blob/1", json!({"payload_base64": "/wAB"})).await.of(200);
    let got = client.get("/v1/objects/blob/1").await.of(200);
    assert_eq!(got.body["payload_base64"], "/wAB");
    assert_eq!(got.body.get("payload"), None);
    client.put("/v1/objects/blob/2", json!({"payload_base64": "aGk="})).await.of(200);
    assert_eq!(client.get("/v1/objects/blob/2").await.of(200).body["payload"], "hi");

    for body in [json!({}), json!({"payload": "a", "payload_base64": "aGk="})] {
        let error = client.put("/v1/objects/blob/3", body).await.error(400, "invalid");
        assert_eq!(error["what"], "payload");
    }
    let bad = json!({"payload_base64": "?"});
    let error = client.put("/v1/objects/blob/3", bad).await.error(400, "invalid");
    assert_eq!(error["what"], "payload_base64");
}

async fn conditions_are_met_or_refused(place: Place) {
    let client = place.client();
    let path = "/v1/objects/order/7";
    let put = |body: serde_json::Value| async move { client.put(path, body).await };
    put(json!({"payload": "a", "expect_version": 1})).await.error(404, "not_found");
    let first = put(json!({"payload": "a", "expect_absent": true})).await.of(200);
    let error = put(json!({"payload": "b", "expect_absent": true})).await;
    assert_eq!(error.error(409, "already_exists")["current"]["version"], 1);
    put(json!({"payload": "b", "expect_version": 1})).await.of(200);
    let error = put(json!({"payload": "c", "expect_version": 1})).await.error(409, "conflict");
    assert_eq!(
        (&error["expected"], &error["current"]["version"]),
        (&json!({"version": 1}), &json!(2))
    );
    let stale = first.body["revision"].clone();
    put(json!({"payload": "c", "expect_revision": stale})).await.error(409, "conflict");
    put(json!({"payload": "c", "expect_token": first.body["token"]})).await.of(200);
    put(json!({"payload": "d", "expect_exists": true})).await.of(200);

    let both = put(json!({"payload": "e", "expect_exists": true, "expect_version": 4})).await;
    assert_eq!(both.error(400, "invalid")["what"], "expect");
    let never = put(json!({"payload": "e", "expect_exists": false})).await;
    assert_eq!(never.error(400, "invalid")["what"], "expect_exists");

    client.put("/v1/objects/order/8", json!({"payload": "", "name": "mine"})).await.of(200);
    let error = put(json!({"payload": "e", "name": "mine"})).await.error(409, "name_taken");
    assert_eq!((&error["name"], &error["id"]), (&json!("mine"), &json!("8")));

    client.delete("/v1/objects/order/7?expect_version=1").await.error(409, "conflict");
    client.delete("/v1/objects/order/9?expect_version=1").await.error(404, "not_found");
    client.delete("/v1/objects/order/7?expect_version=4").await.of(200);
}

async fn headers_are_conditions_too(place: Place) {
    let client = place.client();
    let path = "/v1/objects/order/7";
    let put = |payload: &str, headers: &[(&str, &str)]| {
        let (body, headers) = (json!({"payload": payload}).to_string(), headers.to_vec());
        let headers: Vec<(String, String)> =
            headers.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        async move {
            let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            client.ask(Method::PUT, path, &headers, body).await
        }
    };
    let first = put("a", &[("if-none-match", "*")]).await.of(200);
    put("b", &[("if-none-match", "*")]).await.error(409, "already_exists");
    let second = put("b", &[("if-match", first.header("etag"))]).await.of(200);
    assert_eq!(second.header("etag"), "\"2\"");
    put("c", &[("if-match", first.header("etag"))]).await.error(409, "conflict");
    put("c", &[("if-match", "*")]).await.of(200);
    for tag in ["3", "W/\"3\"", "\"x\"", "\"1\", \"3\""] {
        assert_eq!(put("d", &[("if-match", tag)]).await.error(400, "invalid")["what"], "if-match");
    }
    put("d", &[("if-none-match", "\"3\"")]).await.error(400, "invalid");
    put("d", &[("if-none-match", "*"), ("if-match", "*")]).await.error(400, "invalid");
    let body = json!({"payload": "d", "expect_version": 3}).to_string();
    let twice = client.ask(Method::PUT, path, &[("if-match", "\"3\"")], body).await;
    assert_eq!(twice.error(400, "invalid")["what"], "expect");

    let stale = [("if-match", "\"1\"")];
    client.ask(Method::DELETE, path, &stale, String::new()).await.error(409, "conflict");
    let fresh = [("if-match", "\"3\"")];
    client.ask(Method::DELETE, path, &fresh, String::new()).await.of(200);
}

async fn a_page_follows_another(place: Place) {
    let client = place.client();
    for id in ["a1", "a2", "a3", "b1"] {
        let tier = if id == "a2" { "test" } else { "live" };
        let body = json!({"payload": id, "name": format!("n-{id}"), "labels": {"tier": tier}});
        client.put(&format!("/v1/objects/order/{id}"), body).await.of(200);
    }
    let ids = |page: &serde_json::Value| -> Vec<String> {
        let objects = page["objects"].as_array().unwrap().iter();
        objects.map(|object| object["id"].as_str().unwrap().to_owned()).collect()
    };
    let page = client.get("/v1/objects/order?prefix=a&limit=2").await.of(200).body;
    assert_eq!(ids(&page), ["a1", "a2"]);
    assert!(page["revision"].as_u64().unwrap() >= 4);
    let next = page["next"].as_str().unwrap();
    let path = format!("/v1/objects/order?prefix=a&limit=2&after={next}");
    let page = client.get(&path).await.of(200).body;
    assert_eq!((ids(&page), page.get("next")), (vec!["a3".to_owned()], None));

    let page = client.get("/v1/objects/order?name=n-b1").await.of(200).body;
    assert_eq!(ids(&page), ["b1"]);
    let page = client.get("/v1/objects/order?selector=tier%21%3Dtest").await.of(200).body;
    assert_eq!(ids(&page), ["a1", "a3", "b1"]);
    assert_eq!(client.get("/v1/objects/nothing").await.of(200).body["objects"], json!([]));

    client.get("/v1/objects/order?selector=%3D%3D").await.error(400, "invalid");
    client.get("/v1/objects/order?limit=1000000").await.error(413, "limit_exceeded");
    let error = client.get("/v1/objects/order?prefx=a").await.error(400, "invalid");
    assert!(error["reason"].as_str().unwrap().contains("prefx"), "{error}");
    let error = client.get("/v1/objects/order?limit=many").await.error(400, "invalid");
    assert!(error["reason"].as_str().unwrap().contains("limit"), "{error}");
}

async fn a_commit_applies_as_a_whole_or_not_at_all(place: Place) {
    let client = place.client();
    client.put("/v1/objects/order/1", json!({"payload": "a"})).await.of(200);
    let commit = |version: u64| {
        json!({
            "checks": [{"kind": "order", "id": "1", "expect_version": version}],
            "writes": [
                {"put": {"kind": "order", "id": "2", "payload": "b", "expect_absent": true}},
                {"delete": {"kind": "order", "id": "3"}},
            ],
        })
    };
    let refused = client.post("/v1/commit", commit(9)).await.error(409, "conflict");
    assert_eq!(refused["key"]["id"], "1");
    client.get("/v1/objects/order/2").await.error(404, "not_found");
    let done = client.post("/v1/commit", commit(1)).await.of(200).body;
    assert_eq!(done["writes"][0]["outcome"], "put");
    assert_eq!(done["writes"][0]["revision"], done["revision"]);
    assert_eq!(done["writes"][1], json!({"outcome": "absent"}));
    let nothing = json!({"writes": [{"put": {"kind": "order", "id": "2", "payload": "b"}}]});
    let done = client.post("/v1/commit", nothing).await.of(200).body;
    assert_eq!((done.get("revision"), &done["writes"][0]["outcome"]), (None, &json!("unchanged")));

    for bad in [
        json!({"writes": [{"patch": {}}]}),
        json!({"writes": [{"put": {"kind": "order", "payload": "b"}}]}),
        json!({"writes": [{"put": {"kind": "order", "id": "2", "payload": "b", "extra": 1}}]}),
    ] {
        let error = client.post("/v1/commit", bad).await.error(400, "invalid");
        assert!(error["what"].as_str().unwrap().starts_with("writes[0]"), "{error}");
    }
}

async fn touches_stand_alone(place: Place) {
    let client = place.client();
    let put = json!({"payload": "a", "ttl_ms": 50000});
    let put = client.put("/v1/objects/beat/1", put).await.of(200).body;
    let touches = json!({"touches": [
        {"kind": "beat", "id": "1", "revision": put["revision"], "ttl_ms": 90000},
        {"kind": "beat", "id": "2", "revision": 1, "ttl_ms": 90000},
    ]});
    let touched = client.post("/v1/touch", touches).await.of(200).body;
    assert_eq!(touched["touched"][0], json!({"revision": put["revision"], "ttl_ms": 90000}));
    assert_eq!(touched["touched"][1]["error"]["code"], "not_found");
    let left = client.get("/v1/objects/beat/1").await.of(200).body;
    assert!(left["expires_in_ms"].as_u64().unwrap() > 50_000, "{left}");
    let error = client.post("/v1/touch", json!({"touches": [{"kind": "beat"}]})).await;
    assert_eq!(error.error(400, "invalid")["what"], "touches[0]");
}

async fn a_fence_holds_while_its_lease_does(place: Place) {
    let client = place.client();
    let coordinator = Coordinator::new(place.store.clone()).unwrap();
    let scope = "jobs/close".parse().unwrap();
    let lease = coordinator.acquire(&scope, &Terms::new()).await.unwrap();
    let fence = json!({"scope": "jobs/close", "token": lease.token()});
    let fenced = json!({"payload": "closed", "fence": fence});
    client.put("/v1/objects/books/1", fenced).await.of(200);
    lease.release().await.unwrap();
    let late = json!({"payload": "late", "fence": fence});
    client.put("/v1/objects/books/1", late).await.error(410, "lost");
    let write = json!({"put": {"kind": "books", "id": "1", "payload": "late"}});
    let late = json!({"writes": [write], "fences": [fence]});
    let error = client.post("/v1/commit", late).await.error(410, "lost");
    assert_eq!(error["token"], fence["token"]);
    assert_eq!(client.get("/v1/objects/books/1").await.of(200).body["payload"], "closed");
}

async fn capabilities_are_those_of_the_store(place: Place) {
    let caps = place.client().get("/v1/capabilities").await.of(200).body;
    let own = place.store.capabilities();
    assert_eq!(caps["backend"], own.backend);
    assert_eq!(caps["limits"]["payload_bytes"], own.limits.payload_bytes);
    assert_eq!(caps["multi_object_commits"], true);
    assert!(caps["version"].is_string() && caps["expiry_clock"].is_string());
}
