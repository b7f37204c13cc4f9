//! Requests have a connection of their own, with every login, and do without it where it cannot be had.

use std::time::Duration;

use serde_json::Value;
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};
use tenure_testkit::{Nats, NatsSettings};
use tokio::net::{TcpListener, TcpStream};

use nkeys::KeyPair;

use crate::common::{OrFail, Outcome, connections, eventually, open, put};
use crate::credentials::{credentials, guarded};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("wire::requests_have_a_connection_of_their_own", || plain("", ""));
    trials.test("wire::so_they_do_with_a_password", || {
        plain("authorization { user: me, password: \"p@ss\" }", "me:p%40ss@")
    });
    trials.test("wire::so_they_do_with_a_token", || {
        plain("authorization { token: s3cr3t }", "s3cr3t@")
    });
    trials.test("wire::so_they_do_with_credentials", signed);
    trials.test("wire::so_they_do_encrypted_and_certified", certified);
    trials.test("wire::without_it_they_go_with_everything_else", without);
}

/// What came over the connection for requests; `None` if there is none.
async fn requested(server: &Nats) -> Result<Option<u64>, Failure> {
    let is_ours = |one: &&Value| one["name"].as_str().is_some_and(|n| n.ends_with("b requests"));
    let all = connections(server).await?;
    Ok(all.iter().find(is_ours).and_then(|one| one["in_msgs"].as_u64()))
}

/// Every write is one message there.
async fn is_used(server: &Nats, url: &str) -> Outcome {
    const WRITES: u64 = 20;
    let store = open(url).await?;
    let is_there = || async { Ok(requested(server).await?.is_some()) };
    eventually("there is a connection for requests", is_there).await?;
    let before = requested(server).await?.unwrap_or_default();
    store.commit(put("a", "first")).await?;
    for n in 1..WRITES {
        store.commit(put("a", &n.to_string())).await?;
    }
    let after = requested(server).await?.unwrap_or_default();
    // The first one looks at what is there.
    ensure!((WRITES..=WRITES + 1).contains(&(after - before)), "{before} before, {after} after");
    Ok(())
}

async fn start(extra: String) -> Result<Nats, Failure> {
    Nats::start_with(NatsSettings { extra, ..NatsSettings::default() }).or_fail()
}

async fn plain(settings: &str, login: &str) -> Outcome {
    let server = start(settings.to_owned()).await?;
    is_used(&server, &format!("nats://{login}127.0.0.1:{}/b", server.port(0))).await
}

async fn signed() -> Outcome {
    let (server, account) = guarded().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("user.creds");
    std::fs::write(&file, credentials(&account, &KeyPair::new_user())?)?;
    let url = format!("nats://127.0.0.1:{}/b?creds={}", server.port(0), file.display());
    is_used(&server, &url).await
}

async fn certified() -> Outcome {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).or_fail()?;
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    // Each shows the other the same one, and trusts it.
    let settings = format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {certificate:?}, \
         verify: true }}"
    );
    let server = start(settings).await?;
    let (certificate, key) = (certificate.display(), key.display());
    let shown = format!("tls=true&ca={certificate}&cert={certificate}&key={key}");
    is_used(&server, &format!("nats://127.0.0.1:{}/b?{shown}", server.port(0))).await
}

/// A way to the server that lets one connection through and no other.
async fn without() -> Outcome {
    let server = start(String::new()).await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let (port, beyond) = (listener.local_addr()?.port(), server.port(0));
    let (refused, mut turned_away) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut far = TcpStream::connect(("127.0.0.1", beyond)).await?;
            tokio::io::copy_bidirectional(&mut near, &mut far).await
        });
        loop {
            drop(listener.accept().await?);
            refused.send_modify(|count| *count += 1);
        }
        #[expect(unreachable_code, reason = "it says what the question marks return")]
        Ok::<(), std::io::Error>(())
    });
    let store = open(&format!("nats://127.0.0.1:{port}/b")).await?;
    for n in 0..20 {
        store.commit(put("a", &n.to_string())).await?;
    }
    // It was wanted all the while.
    turned_away.wait_for(|count| *count > 1).await.or_fail()?;
    // Whoever waits for an answer gets it, also if the store is closed meanwhile.
    server.pause(0).or_fail()?;
    let resuming = async {
        // Closing has all the time to break off what was sent before.
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.resume(0)
    };
    let (written, (), resumed) =
        futures::join!(store.commit(put("a", "last")), store.close(), resuming);
    resumed.or_fail()?;
    written?;
    Ok(())
}
