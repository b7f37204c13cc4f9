//! Ways in: logins, TLS, and errors that name the next step and never a password.

use std::time::Duration;

use tenure::{Error, store::Expect};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::{Nats, NatsSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::{OrFail, Outcome, Server, key, open, put};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("connect::mistakes_are_explained", move || mistakes(server));
    trials.test("connect::a_password_is_asked_for", password);
    trials.test("connect::a_token_is_asked_for", token);
    trials.test("connect::tls_is_spoken", tls);
    trials.test("connect::a_client_certificate_is_shown", client_certificate);
    trials.test("connect::a_server_that_is_too_old_is_refused", too_old);
    trials.test("connect::a_server_without_jetstream_is_told", without_jetstream);
    trials.test("connect::several_objects_at_once_are_refused", move || several(server));
}

const SECRET: &str = "hunter2-secret";

async fn refusal(url: &str) -> Result<Error, Failure> {
    let options = Options::new()
        .connect_timeout(Duration::from_secs(3))
        .reply_timeout(Duration::from_secs(2));
    let error = NatsStore::connect_with(url, options).await.err();
    let error = error.ok_or_else(|| format!("connected to {url}"))?;
    ensure!(!format!("{error:?}").contains(SECRET), "the password is in {error:?}");
    Ok(error)
}

async fn mistakes(server: Server) -> Outcome {
    let port = server.0.port(0);
    let cases = [
        (format!("nats://me:{SECRET}@127.0.0.1:1/x"), "is the server running"),
        (format!("nats://me:{SECRET}@no-such-host.invalid/x"), "is the server running"),
        (format!("nats://me:{SECRET}@127.0.0.1:{port}/a.b"), "letters, digits"),
        (format!("nats://me:{SECRET}@127.0.0.1:{port}/x?colour=red"), "there are replicas"),
        (
            format!("nats://127.0.0.1:{port}/x?creds=/no/such/file"),
            "credentials file /no/such/file",
        ),
        (format!("nats://127.0.0.1:{port}/x?tls=true"), "TLS"),
        (format!("nats://127.0.0.1:{port}/x?monitor=https://h"), "http://host:8222"),
        (format!("nats://127.0.0.1:{port}/x?monitor=http://127.0.0.1:1"), "does not tell"),
        (format!("nats://127.0.0.1:{port}/alone?replicas=3"), "cannot be made"),
    ];
    for (url, expected) in cases {
        let error = refusal(&url).await?;
        let told = error.to_string().to_lowercase();
        ensure!(told.contains(&expected.to_lowercase()), "{expected}: {error}");
    }
    Ok(())
}

async fn guarded(extra: &str) -> Result<Nats, Failure> {
    Nats::start_with(NatsSettings { extra: extra.into(), ..NatsSettings::default() }).or_fail()
}

async fn password() -> Outcome {
    let server = guarded("authorization { user: me, password: \"p@ss:word\" }").await?;
    let port = server.port(0);
    let store = open(&format!("nats://me:p%40ss%3Aword@127.0.0.1:{port}/b")).await?;
    store.commit(put("a", "x")).await?;
    for login in [format!("me:{SECRET}@"), format!("{SECRET}@"), String::new()] {
        let error = refusal(&format!("nats://{login}127.0.0.1:{port}/b")).await?;
        ensure!(matches!(error, Error::Refused { .. }), "{error:?}");
        ensure!(error.to_string().contains("check user and password"), "{error}");
    }
    Ok(())
}

async fn token() -> Outcome {
    let server = guarded("authorization { token: s3cr3t }").await?;
    let port = server.port(0);
    let store = open(&format!("nats://s3cr3t@127.0.0.1:{port}/b")).await?;
    store.commit(put("a", "x")).await?;
    let error = refusal(&format!("nats://{SECRET}@127.0.0.1:{port}/b")).await?;
    ensure!(matches!(error, Error::Refused { .. }), "{error:?}");
    Ok(())
}

async fn tls() -> Outcome {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".into()]);
    let made = made.or_fail()?;
    let (certificate, key_file) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key_file, made.signing_key.serialize_pem())?;
    let settings = format!("tls {{ cert_file: {certificate:?}, key_file: {key_file:?} }}");
    let server = guarded(&settings).await?;
    let url = format!("nats://127.0.0.1:{}/b", server.port(0));
    let trusting = format!("{url}?tls=true&ca={}", certificate.display());
    open(&trusting).await?.commit(put("a", "x")).await?;
    let error = refusal(&format!("{url}?tls=true")).await?;
    ensure!(error.to_string().contains("certificate"), "nobody vouches for it: {error}");
    Ok(())
}

/// Server and store show each other the same certificate, and trust it.
async fn client_certificate() -> Outcome {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).or_fail()?;
    let (certificate, key_file) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key_file, made.signing_key.serialize_pem())?;
    let settings = format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key_file:?}, ca_file: {certificate:?}, \
         verify: true }}"
    );
    let server = guarded(&settings).await?;
    let (certificate, key_file) = (certificate.display(), key_file.display());
    let url = format!("nats://127.0.0.1:{}/b?tls=true&ca={certificate}", server.port(0));
    open(&format!("{url}&cert={certificate}&key={key_file}")).await?.commit(put("a", "x")).await?;
    let told = refusal(&url).await?.to_string();
    ensure!(told.to_lowercase().contains("certificate"), "it showed none: {told}");
    Ok(())
}

/// No server that old is to be had where ours comes from, so its greeting is spoken for it.
async fn too_old() -> Outcome {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let info = format!(
                "INFO {{\"server_id\":\"X\",\"server_name\":\"x\",\"version\":\"2.9.25\",\
                 \"proto\":1,\"host\":\"127.0.0.1\",\"port\":{port},\"headers\":true,\
                 \"max_payload\":1048576,\"jetstream\":true,\"client_id\":1,\"go\":\"go\"}}\r\n"
            );
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = connection.write_all(info.as_bytes()).await;
                while connection.read(&mut buffer).await.is_ok_and(|n| n > 0) {
                    let _ = connection.write_all(b"PONG\r\n").await;
                }
            });
        }
    });
    let error = refusal(&format!("nats://127.0.0.1:{port}/b")).await?;
    ensure!(matches!(error, Error::Refused { .. }), "{error:?}");
    for expected in ["2.9.25", "2.11 or later", "upgrade"] {
        ensure!(error.to_string().contains(expected), "{expected}: {error}");
    }
    Ok(())
}

async fn without_jetstream() -> Outcome {
    // A user whose account has no JetStream, on a server that has.
    let accounts = "accounts { A { users: [{ user: a, password: a }] }, \
                    B { jetstream: enabled, users: [{ user: b, password: b }] } }";
    let server = guarded(accounts).await?;
    let error = refusal(&format!("nats://a:a@127.0.0.1:{}/b", server.port(0))).await?;
    ensure!(error.to_string().to_lowercase().contains("jetstream"), "{error}");
    open(&format!("nats://b:b@127.0.0.1:{}/b", server.port(0))).await?;
    Ok(())
}

async fn several(server: Server) -> Outcome {
    let store = open(&server.fresh_bucket()).await?;
    let both = tenure::store::Commit::from(put("a", "x")).check(key("b"), Expect::Absent);
    let error = store.commit(both).await.err().ok_or("two objects in one commit")?;
    let told = error.to_string();
    for expected in ["nats", "multi-object commits", "memory, file, sqlite, postgres, etcd"] {
        ensure!(told.contains(expected), "{expected}: {told}");
    }
    Ok(())
}
