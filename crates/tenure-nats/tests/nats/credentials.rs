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

use crate::common::{OrFail, Outcome, open, put};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("connect::a_credentials_file_opens_the_door", opens);
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

/// The file of a user whose claim was signed by this account.
fn credentials(account: &KeyPair) -> Result<String, Failure> {
    let user = KeyPair::new_user();
    let claims = json!({
        "type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1,
    });
    let token = signed(account, &user, &claims)?;
    let seed = user.seed().or_fail()?;
    Ok(format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    ))
}

async fn opens() -> Outcome {
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
    let folder = tempfile::tempdir()?;
    let url = |name: &str, text: &str| -> Result<String, Failure> {
        let file = folder.path().join(name);
        std::fs::write(&file, text)?;
        Ok(format!("nats://127.0.0.1:{}/b?creds={}", server.port(0), file.display()))
    };
    open(&url("good.creds", &credentials(&account)?)?).await?.commit(put("a", "x")).await?;
    let stranger = url("bad.creds", &credentials(&KeyPair::new_account())?)?;
    let told = NatsStore::connect(&stranger).await;
    ensure!(matches!(told, Err(Error::Refused { .. })), "{told:?}");
    Ok(())
}
