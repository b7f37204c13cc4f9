//! TLS with certificates on both sides, and a user whose role reaches one prefix.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tenure::Error;
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_etcd::{EtcdStore, Options};
use tenure_testkit::{Etcd, EtcdOptions, ServerTls};

use crate::common::{OrFail, Outcome, connect, key, put};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("etcd::certificates_and_logins_are_used_and_renewed", secured);
    trials.test("etcd::certificates_that_were_replaced_are_taken", replaced);
}

/// An authority, and one certificate for server and clients alike.
fn certificates(folder: &Path) -> Result<ServerTls, Failure> {
    let mut authority = CertificateParams::new(Vec::new()).or_fail()?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(authority, KeyPair::generate().or_fail()?).or_fail()?;
    let key = KeyPair::generate().or_fail()?;
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut params = CertificateParams::new(names).or_fail()?;
    // Given the name of nobody: a certificate's name would otherwise be taken for the user.
    params.distinguished_name = rcgen::DistinguishedName::new();
    let certificate = params.signed_by(&key, &authority).or_fail()?;
    let write = |name: &str, text: String| -> Result<PathBuf, Failure> {
        let file = folder.join(name);
        std::fs::write(&file, text).or_fail()?;
        Ok(file)
    };
    Ok(ServerTls {
        ca: write("ca.pem", authority.pem())?,
        certificate: write("cert.pem", certificate.pem())?,
        key: write("key.pem", key.serialize_pem())?,
    })
}

async fn secured() -> Outcome {
    let folder = tempfile::tempdir().or_fail()?;
    let tls = certificates(folder.path())?;
    let options = EtcdOptions { tls: Some(tls.clone()), ..EtcdOptions::default() };
    let mut server = Etcd::start_with(1, options).or_fail()?;
    for command in [
        "user add root:root",
        "user grant-role root root",
        "role add app",
        "role grant-permission app readwrite app/ app0",
        "user add me:p@ss",
        "user grant-role me app",
        "auth enable",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        server.ctl(0, &words).or_fail()?;
    }
    let address = server.address(0);
    let files = format!(
        "ca={}&cert={}&key={}",
        tls.ca.display(),
        tls.certificate.display(),
        tls.key.display()
    );
    let url = format!("etcd://me:p%40ss@{address}/app?{files}");
    let store = connect(&url).await?;
    store.commit(put("a", "1").ttl(Duration::from_secs(60))).await?;

    let refused = |what: &str, url: String| {
        let what = what.to_owned();
        async move {
            let options = Options::parse(&url)?.timeout(Duration::from_secs(1));
            match EtcdStore::connect_with(options).await {
                Err(Error::Refused { .. } | Error::Unavailable { .. }) => Ok(()),
                Err(error) => Err(Failure::new(format!("{what}: {error}"))),
                Ok(_) => Err(Failure::new(format!("{what}: let in"))),
            }
        }
    };
    refused("a wrong password", format!("etcd://me:wrong@{address}/app?{files}")).await?;
    refused("somebody else's prefix", format!("etcd://me:p%40ss@{address}/other?{files}")).await?;
    refused("no TLS", format!("etcd://me:p%40ss@{address}/app")).await?;
    refused("an unknown authority", format!("etcds://me:p%40ss@{address}/app")).await?;
    let ca_only = format!("etcd://me:p%40ss@{address}/app?ca={}", tls.ca.display());
    refused("no certificate of its own", ca_only).await?;

    // A restarted server knows no token any more; the store logs in again by itself.
    server.kill(0).or_fail()?;
    server.start_again(0).or_fail()?;
    store.commit(put("a", "2").ttl(Duration::from_secs(60))).await?;
    let read = store.get(&key("a")).await?.ok_or("gone")?;
    if read.payload != "2" {
        return Err(Failure::new(format!("read {:?}", read.payload)));
    }
    Ok(())
}

/// Certificates end before programs do, and new ones are written in their place.
async fn replaced() -> Outcome {
    let folder = tempfile::tempdir().or_fail()?;
    let tls = certificates(folder.path())?;
    let options = EtcdOptions { tls: Some(tls.clone()), ..EtcdOptions::default() };
    let mut server = Etcd::start_with(1, options).or_fail()?;
    let ServerTls { ca, certificate, key } = &tls;
    let (ca, certificate, key) = (ca.display(), certificate.display(), key.display());
    let address = server.address(0);
    let url = format!("etcd://{address}/app?ca={ca}&cert={certificate}&key={key}");
    let store = connect(&url).await?;
    store.commit(put("a", "1")).await?;
    // By another authority, so that the old ones are worth nothing on either side.
    certificates(folder.path())?;
    server.kill(0).or_fail()?;
    server.start_again(0).or_fail()?;
    store.commit(put("a", "2")).await?;
    Ok(())
}
