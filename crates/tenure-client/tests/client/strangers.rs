//! Somebody listens, but not as the address says: what is wrong is told, with what to do, and not that
//! there is no server.

use std::time::Duration;

use tenure::store::memory::MemoryStore;
use tenure_client::{Options, ServerStore};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_server::Server;
use tenure_server::auth::tls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::common::{Outcome, Serving, refused};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("strangers::an_unknown_authority_is_told_with_the_option_that_names_it", unknown);
    trials.test("strangers::an_authority_that_shows_itself_is_told_what_to_show", authority);
    trials.test("strangers::http_to_a_port_with_tls_is_told_to_write_https", with_tls);
    trials.test("strangers::https_to_a_port_without_tls_is_told_to_write_http", without_tls);
    trials.test("strangers::what_is_no_server_of_tenure_is_told_as_that", foreign);
    trials.test("strangers::one_that_never_answers_is_not_told_as_absent", silent);
    trials.test("strangers::of_several_servers_each_is_told_with_what_is_wrong_with_it", several);
}

/// A server with TLS, by an authority of its own, and that authority.
async fn secure() -> Result<(String, String), Failure> {
    showing(rcgen::IsCa::NoCa).await
}

/// A server that shows a certificate of this kind, and that certificate.
async fn showing(kind: rcgen::IsCa) -> Result<(String, String), Failure> {
    let made = rcgen::KeyPair::generate().and_then(|key| {
        let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?;
        params.is_ca = kind;
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    });
    let made = made.map_err(|error| Failure::new(format!("no certificate: {error}")))?;
    let folder = tempfile::tempdir()?;
    let [certificate, key] = ["c.pem", "k.pem"].map(|name| folder.path().join(name));
    std::fs::write(&certificate, &made.0)?;
    std::fs::write(&key, &made.1)?;
    let tls = tls::server_config(&certificate, &key, None)?;
    let server = Server::builder(MemoryStore::new().into_store()).tls(tls).build();
    let server = server.map_err(|error| Failure::new(format!("no server: {error}")))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let place = listener.local_addr()?.to_string();
    tokio::spawn(server.serve(listener));
    Ok((place, made.0))
}

/// What is told about these addresses.
async fn told(url: &str) -> Result<String, Failure> {
    tells(Options::new(url)?).await
}

/// What is told to somebody who asks like this.
async fn tells(options: Options) -> Result<String, Failure> {
    let options = options.timeout(Duration::from_secs(3));
    let error = refused(ServerStore::open(options).await.map(drop))?;
    if error.code() != "unavailable" || error.to_string().contains("no server on") {
        return Err(Failure::new(format!("told {error}")));
    }
    Ok(error.to_string())
}

fn says(told: &str, parts: &[&str]) -> Outcome {
    match parts.iter().find(|part| !told.contains(**part)) {
        Some(part) => Err(Failure::new(format!("{part:?} is not in {told:?}"))),
        None => Ok(()),
    }
}

async fn unknown() -> Outcome {
    let (place, authority) = secure().await?;
    let url = format!("https://{place}");
    says(&told(&url).await?, &[&place, "not known", "--ca FILE", "TENURE_CA"])?;
    let options = Options::new(&url)?.ca(authority);
    ServerStore::open(options).await?;
    Ok(())
}

/// What `openssl req -x509` makes if it is told nothing else.
async fn authority() -> Outcome {
    let kind = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let (place, authority) = showing(kind).await?;
    let told = tells(Options::new(&format!("https://{place}"))?.ca(authority)).await?;
    says(&told, &[&place, "an authority's own", "basicConstraints=critical,CA:FALSE"])
}

async fn with_tls() -> Outcome {
    let (place, _) = secure().await?;
    let told = told(&format!("http://{place}")).await?;
    says(&told, &["speaks TLS", &format!("write https://{place}")])
}

async fn without_tls() -> Outcome {
    let server = Serving::start(MemoryStore::new().into_store());
    let told = told(&format!("https://{}", server.address)).await?;
    says(&told, &["does not speak TLS", &format!("write {}", server.url())])
}

/// Where somebody answers like this, or with nothing.
async fn listener(answer: &'static [u8]) -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let place = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if answer.is_empty() {
                    return std::future::pending().await;
                }
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(answer).await;
            });
        }
    });
    Ok(place)
}

async fn foreign() -> Outcome {
    let bad = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let place = listener(bad).await?;
    let told = told(&format!("http://{place}")).await?;
    says(&told, &[&place, "no server of Tenure", "is the port right?"])
}

async fn silent() -> Outcome {
    let place = listener(b"").await?;
    for scheme in ["http", "https"] {
        let told = told(&format!("{scheme}://{place}")).await?;
        says(&told, &[&place, "does not answer", "is the address right"])?;
    }
    Ok(())
}

async fn several() -> Outcome {
    let (place, _) = secure().await?;
    let told = told(&format!("http://127.0.0.1:1,http://{place}")).await?;
    says(&told, &["nobody listens on 127.0.0.1:1", &format!("write https://{place}")])
}
