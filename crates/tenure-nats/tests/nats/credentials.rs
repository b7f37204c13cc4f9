//! Credentials files, as servers with an operator hand them out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tenure::Error;
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};
use tenure_nats::NatsStore;
use tenure_testkit::{Nats, NatsSettings};

use crate::common::{OrFail, Outcome, connections, eventually, open, put};
use crate::outage::Relay;

pub(crate) fn add(trials: &mut Trials) {
    trials.test("connect::a_credentials_file_opens_the_door", opens);
    trials.test("connect::credentials_that_were_replaced_are_taken", replaced);
}

/// A claim about somebody, signed by somebody else.
fn signed(by: &KeyPair, about: &KeyPair, claims: &Value) -> Result<String, Failure> {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = encode(&json!({
        "jti": "test", "iat": 1_700_000_000, "iss": by.public_key(), "sub": about.public_key(),
        "name": "test", "nats": claims,
    }));
    let text = format!("{header}.{body}");
    let signature = by.sign(text.as_bytes()).or_fail()?;
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// The file of this user, whose claim was signed by this account.
fn credentials(account: &KeyPair, user: &KeyPair) -> Result<String, Failure> {
    let claims = json!({
        "type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1,
    });
    let token = signed(account, user, &claims)?;
    let seed = user.seed().or_fail()?;
    Ok(format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    ))
}

/// A server whose operator knows one account.
async fn guarded() -> Result<(Nats, KeyPair), Failure> {
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let root = signed(&operator, &operator, &json!({ "type": "operator", "version": 2 }))?;
    let claims = json!({
        "type": "account", "version": 2,
        "limits": {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1,
            "consumer": -1,
        },
    });
    // JetStream does not start without a system account.
    let system = KeyPair::new_account();
    let plain = signed(&operator, &system, &json!({ "type": "account", "version": 2 }))?;
    let known = signed(&operator, &account, &claims)?;
    let (system, account_id) = (system.public_key(), account.public_key());
    let extra = format!(
        "operator: {root}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{ {system}: {plain}, {account_id}: {known} }}\n"
    );
    let server = Nats::start_with(NatsSettings { extra, ..NatsSettings::default() }).or_fail()?;
    Ok((server, account))
}

async fn opens() -> Outcome {
    let (server, account) = guarded().await?;
    let folder = tempfile::tempdir()?;
    let url = |name: &str, by: &KeyPair| -> Result<String, Failure> {
        let file = folder.path().join(name);
        std::fs::write(&file, credentials(by, &KeyPair::new_user())?)?;
        Ok(format!("nats://127.0.0.1:{}/b?creds={}", server.port(0), file.display()))
    };
    open(&url("good.creds", &account)?).await?.commit(put("a", "x")).await?;
    let stranger = url("bad.creds", &KeyPair::new_account())?;
    let told = NatsStore::connect(&stranger).await;
    ensure!(matches!(told, Err(Error::Refused { .. })), "{told:?}");
    Ok(())
}

/// As whom the connections of stores came, as the server says.
async fn users(server: &Nats) -> Result<Vec<String>, Failure> {
    let all = connections(server).await?;
    Ok(all.iter().map(|one| one["authorized_user"].to_string()).collect())
}

/// Credentials end before programs do. Whoever issues them writes new ones in their place.
async fn replaced() -> Outcome {
    let (server, account) = guarded().await?;
    let (before, after) = (KeyPair::new_user(), KeyPair::new_user());
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("user.creds");
    let relay = Relay::to(server.port(0)).await?;
    std::fs::write(&file, credentials(&account, &before)?)?;
    let store =
        open(&format!("nats://127.0.0.1:{}/b?creds={}", relay.port, file.display())).await?;
    store.commit(put("a", "x")).await?;
    let all_are = async |user: &KeyPair| -> Result<bool, Failure> {
        let (users, key) = (users(&server).await?, user.public_key());
        Ok(!users.is_empty() && users.iter().all(|user| user.contains(&key)))
    };
    ensure!(all_are(&before).await?, "{:?}", users(&server).await?);
    std::fs::write(&file, credentials(&account, &after)?)?;
    relay.cut().await;
    relay.mend();
    let back = || async { Ok(store.commit(put("a", "y")).await.is_ok()) };
    eventually("the store is back", back).await?;
    eventually("it comes as the new user", || all_are(&after)).await?;
    // One that cannot be read just now is the one that was read before.
    std::fs::write(&file, "nothing of use")?;
    relay.cut().await;
    relay.mend();
    let back = || async { Ok(store.commit(put("a", "z")).await.is_ok()) };
    eventually("the store is back", back).await
}
