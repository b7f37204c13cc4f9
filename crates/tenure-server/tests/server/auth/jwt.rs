//! Signed tokens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use tenure::clock::ManualClock;
use tenure_server::auth::{AuthSettings, Authenticator, JwtSettings, Peer};
use tonic::Code;

use super::rig::{Client, Rig, logged, write};

const SECRET: &str = "a secret of more than thirty-two bytes";

fn settings() -> JwtSettings {
    JwtSettings {
        issuer: "https://id.test".into(),
        audience: "tenure".into(),
        hs256_secret_file: None,
        jwks_file: None,
        jwks_url: None,
        tenant_claim: None,
    }
}

fn claims(subject: &str) -> Value {
    json!({
        "iss": "https://id.test", "aud": ["other", "tenure"], "sub": subject,
        "exp": get_current_timestamp() + 600, "permissions": ["objects:*:order/*"],
    })
}

/// Claims, but for one.
fn but(subject: &str, claim: &str, value: Value) -> Value {
    let mut claims = claims(subject);
    match (value, claims.as_object_mut().unwrap()) {
        (Value::Null, all) => drop(all.remove(claim)),
        (value, all) => drop(all.insert(claim.into(), value)),
    }
    claims
}

/// A key pair of somebody who signs.
struct Signer {
    kid: String,
    algorithm: Algorithm,
    key: EncodingKey,
    pair: KeyPair,
}

impl Signer {
    fn rsa(kid: &str) -> Self {
        let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        let key = EncodingKey::from_rsa_pem(pair.serialize_pem().as_bytes()).unwrap();
        Self { kid: kid.into(), algorithm: Algorithm::RS256, key, pair }
    }

    fn ec(kid: &str) -> Self {
        let pair = KeyPair::generate().unwrap();
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
        Self { kid: kid.into(), algorithm: Algorithm::ES256, key, pair }
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.clone()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }

    fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.kid.clone());
        serde_json::to_value(jwk).unwrap()
    }
}

fn jwks(signers: &[&Signer]) -> String {
    json!({ "keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>() }).to_string()
}

fn hs256(claims: &Value, secret: &[u8]) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret)).unwrap()
}

/// Why it does not get in.
async fn refused(client: &Client, token: &str) -> String {
    let told = client.as_with(token).get("order", "1").await.unwrap_err();
    assert_eq!(told.code(), Code::Unauthenticated, "{told:?}");
    assert!(!told.message().contains(token) && logged(&[token]).is_empty());
    told.message().to_owned()
}

#[tokio::test]
async fn claims_are_checked_and_say_who_it_is_and_what_it_may_do() {
    let rig = Rig::start(None, |dir, it| {
        write(dir.join("secret"), &format!("{SECRET}\n"));
        it.jwt = Some(JwtSettings { hs256_secret_file: Some(dir.join("secret")), ..settings() });
    })
    .await;
    let nobody = rig.client(None).await;
    let sign = |claims: &Value| hs256(claims, SECRET.as_bytes());
    let good = nobody.as_with(&sign(&claims("jwt-good")));
    good.put(&[("order", "1")]).await.unwrap();
    let told = good.get("secret", "1").await.unwrap_err();
    assert_eq!(told.code(), Code::PermissionDenied);
    assert_eq!(logged(&["subject=\"jwt-good\"", "action=\"objects:read\"", "secret/1"]).len(), 1);
    let words = but("jwt-words", "permissions", Value::Null);
    let mut words = words.as_object().unwrap().clone();
    words.insert("scope".into(), "openid objects:read:order/* profile".into());
    let words = nobody.as_with(&sign(&Value::Object(words)));
    assert!(words.get("order", "1").await.unwrap());
    assert_eq!(words.put(&[("order", "1")]).await.unwrap_err().code(), Code::PermissionDenied);

    let now = get_current_timestamp();
    // Within a minute, clocks may disagree.
    for (claim, at) in [("exp", now - 30), ("nbf", now + 30)] {
        let token = sign(&but("jwt-leeway", claim, at.into()));
        assert!(nobody.as_with(&token).get("order", "1").await.is_ok(), "{claim}");
    }
    let wrong = [
        (but("a", "exp", (now - 90).into()), "expired"),
        (but("a", "exp", Value::Null), "no claim exp"),
        (but("a", "exp", "soon".into()), "no claim exp"),
        (but("a", "nbf", (now + 90).into()), "not valid yet"),
        (but("a", "iss", "https://evil.test".into()), "another issuer"),
        (but("a", "iss", Value::Null), "no claim iss"),
        (but("a", "aud", "other".into()), "another audience"),
        (but("a", "aud", Value::Null), "no claim aud"),
        (but("a", "sub", Value::Null), "no claim sub"),
        (but("a", "sub", "".into()), "name"),
        (but("a", "tenant", "a~b".into()), "a~b"),
        (but("a", "tenant", 7.into()), "no text"),
        (but("a", "permissions", json!(["leases:steal:*"])), "leases:steal:*"),
        (but("a", "permissions", "*".into()), "no array"),
    ];
    for (claims, reason) in &wrong {
        let told = refused(&nobody, &sign(claims)).await;
        assert!(told.contains(reason), "{told} {claims}");
    }
    let told = refused(&nobody, &hs256(&claims("a"), b"another secret of thirty-two bytes")).await;
    assert!(told.contains("not signed by"), "{told}");
    refused(&nobody, "a.b.c").await;
    assert_eq!(rig.authenticator.failures(), wrong.len() as u64 + 2);
    assert!(logged(&[SECRET]).is_empty() && !format!("{:?}", rig.authenticator).contains(SECRET));
}

#[tokio::test]
async fn a_key_is_good_for_its_own_algorithm_only() {
    let (rsa, ec) = (Signer::rsa("r"), Signer::ec("e"));
    let rig = Rig::start(None, |dir, it| {
        write(dir.join("jwks.json"), &jwks(&[&rsa, &ec]));
        it.jwt = Some(JwtSettings { jwks_file: Some(dir.join("jwks.json")), ..settings() });
    })
    .await;
    let nobody = rig.client(None).await;
    for signer in [&rsa, &ec] {
        let token = signer.sign(&claims("jwt-public"));
        assert!(nobody.as_with(&token).get("order", "1").await.is_ok());
        // With one character of the claims changed.
        let (head, tail) = token.split_at(token.find('.').unwrap() + 5);
        let other = if tail.starts_with('A') { 'B' } else { 'A' };
        refused(&nobody, &format!("{head}{other}{}", &tail[1..])).await;
    }
    // Public keys are known to everybody: they must not do as a secret.
    let public = rsa.pair.public_key_pem();
    for secret in
        [public.as_bytes(), rsa.pair.public_key_raw(), rsa.jwk()["n"].as_str().unwrap().as_bytes()]
    {
        let key = EncodingKey::from_secret(secret);
        let header = Header { kid: Some("r".into()), ..Header::new(Algorithm::HS256) };
        refused(&nobody, &encode(&header, &claims("a"), &key).unwrap()).await;
    }
    // Signed by one and named after the other, and not signed at all.
    refused(&nobody, &Signer { kid: "r".into(), ..ec }.sign(&claims("a"))).await;
    use base64::Engine as _;
    let part = |value: Value| base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    for alg in ["none", "None", "NONE", "RS256"] {
        let header = json!({ "alg": alg, "typ": "JWT", "kid": "r" });
        refused(&nobody, &format!("{}.{}.", part(header), part(claims("a")))).await;
    }
    let stranger = Signer::rsa("r");
    assert!(refused(&nobody, &stranger.sign(&claims("a"))).await.contains("not signed by"));
}

#[tokio::test]
async fn keys_from_a_url_are_kept_while_it_is_down_and_fetched_again_for_a_new_one() {
    let (old, new) = (Signer::rsa("old"), Signer::ec("new"));
    // What the URL says; nothing is an error.
    let document = Arc::new(Mutex::new(None));
    let (said, asked) = (Arc::clone(&document), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&asked);
    let keys = move || async move {
        *count.lock().unwrap() += 1;
        said.lock().unwrap().clone().ok_or(http::StatusCode::INTERNAL_SERVER_ERROR)
    };
    let say = |text: Option<String>| *document.lock().unwrap() = text;
    let asked = || *asked.lock().unwrap();
    let routes = axum::Router::new().route("/keys", axum::routing::get(keys));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let clock = ManualClock::new();
    let shared = Arc::new(clock.clone());
    let settings = JwtSettings { jwks_url: Some(url), ..settings() };
    let rig = Rig::start_with(
        None,
        |_, it| it.jwt = Some(settings),
        |it| Authenticator::with_clock(it, shared),
    )
    .await;
    let client = rig.client(Some(&old.sign(&claims("jwt-old")))).await;

    // Nothing there yet: nobody is refused for that, it is no fault of theirs.
    assert_eq!(client.get("order", "1").await.unwrap_err().code(), Code::Unavailable);
    say(Some(jwks(&[&old])));
    clock.advance(Duration::from_secs(2));
    client.get("order", "1").await.unwrap();
    let rotated = client.as_with(&new.sign(&claims("jwt-new")));
    let unknown = || async { rotated.get("order", "1").await.unwrap_err().code() };
    assert_eq!(unknown().await, Code::Unauthenticated);

    // The new key is there, but the URL is left alone for a while.
    say(Some(jwks(&[&old, &new])));
    let before = asked();
    for _ in 0..5 {
        assert_eq!(unknown().await, Code::Unauthenticated);
    }
    assert_eq!(asked(), before);
    clock.advance(Duration::from_secs(30));
    rotated.get("order", "1").await.unwrap();
    assert_eq!(asked(), before + 1);

    // Down for long: what was known stays good.
    say(None);
    clock.advance(Duration::from_secs(3600));
    client.get("order", "1").await.unwrap();
    assert!(asked() > before + 1);
    // Up again, and one key was taken out.
    say(Some(jwks(&[&new])));
    clock.advance(Duration::from_secs(3600));
    rotated.get("order", "1").await.unwrap();
    assert_eq!(client.get("order", "1").await.unwrap_err().code(), Code::Unauthenticated);
}

/// A URL that takes connections and says nothing costs those whose keys are known no time.
#[tokio::test]
async fn nobody_waits_again_and_again_for_a_url_that_is_known_to_be_down() {
    let signer = Signer::ec("a");
    let document = Arc::new(Mutex::new(Some(jwks(&[&signer]))));
    let hangs = Arc::new(AtomicBool::new(false));
    let (said, silent) = (Arc::clone(&document), Arc::clone(&hangs));
    let keys = move || async move {
        if silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        said.lock().unwrap().clone().ok_or(http::StatusCode::INTERNAL_SERVER_ERROR)
    };
    let routes = axum::Router::new().route("/keys", axum::routing::get(keys));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let clock = ManualClock::new();
    let jwt = Some(JwtSettings { jwks_url: Some(url), ..settings() });
    let settings = AuthSettings { jwt, ..AuthSettings::default() };
    let door = Authenticator::with_clock(settings, Arc::new(clock.clone())).unwrap();
    let peer = Peer { address: ([127, 0, 0, 1], 1).into(), certificate: None };
    let mut headers = http::HeaderMap::new();
    let token = format!("Bearer {}", signer.sign(&claims("jwt-steady")));
    headers.insert(http::header::AUTHORIZATION, token.parse().unwrap());
    door.caller(&headers, &peer).await.unwrap();

    // The first to need newer keys waits for them, and learns that there are none to be had.
    *document.lock().unwrap() = None;
    clock.advance(Duration::from_secs(3600));
    door.caller(&headers, &peer).await.unwrap();
    hangs.store(true, Ordering::Relaxed);
    for seconds in [31, 20] {
        clock.advance(Duration::from_secs(seconds));
        let known = door.caller(&headers, &peer).now_or_never();
        assert!(known.expect("it waits for the URL").is_ok());
    }
}

#[tokio::test]
async fn where_a_tenant_claim_is_set_nobody_comes_without_a_tenant() {
    let rig = Rig::start(None, |dir, it| {
        write(dir.join("secret"), SECRET);
        it.jwt = Some(JwtSettings {
            hs256_secret_file: Some(dir.join("secret")),
            tenant_claim: Some("org".into()),
            ..settings()
        });
    })
    .await;
    let nobody = rig.client(None).await;
    let sign = |claims: &Value| hs256(claims, SECRET.as_bytes());
    assert!(refused(&nobody, &sign(&claims("a"))).await.contains("no claim org"));
    let tenant = nobody.as_with(&sign(&but("jwt-tenant", "org", "acme".into())));
    tenant.get("order", "1").await.unwrap();
    assert_eq!(tenant.get("secret", "1").await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(logged(&["subject=\"jwt-tenant\"", "tenant=\"acme\"", "denied"]).len(), 1);
}

#[test]
fn settings_that_would_let_the_wrong_ones_in_are_refused() {
    let two = JwtSettings {
        jwks_file: Some("a".into()),
        jwks_url: Some("https://id.test".into()),
        ..settings()
    };
    let plain = JwtSettings { jwks_url: Some("http://id.test/keys".into()), ..settings() };
    let nameless =
        JwtSettings { audience: String::new(), jwks_file: Some("a".into()), ..settings() };
    for (jwt, word) in
        [(settings(), "set one of"), (two, "set one of"), (plain, "https"), (nameless, "audience")]
    {
        let settings = tenure_server::auth::AuthSettings { jwt: Some(jwt), ..Default::default() };
        let told = Authenticator::new(settings).unwrap_err().to_string();
        assert!(told.contains(word), "{told}");
    }
}
