//! Errors that name the next step, and never a password.

use std::time::Duration;

use tenure::Error;
use tenure_conformance::ensure;
use tenure_conformance::harness::Trials;
use tenure_postgres::{Options, PostgresStore};

use crate::common::{OrFail, Outcome, Server};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("connect::mistakes_are_explained", move || mistakes(server));
    trials.test("connect::a_unix_socket_works", move || socket(server));
    trials.test("connect::connections_are_encrypted_and_checked_as_asked", encrypted);
    trials.test("connect::certificates_that_were_replaced_are_taken", replaced);
}

async fn mistakes(server: Server) -> Outcome {
    const SECRET: &str = "hunter2-secret";
    let port = server.0.port();
    let cases = [
        (
            format!("postgres://postgres:{SECRET}@127.0.0.1:{port}/postgres"),
            "check user and password",
        ),
        (
            format!("postgres://nobody:{SECRET}@127.0.0.1:{port}/postgres"),
            "check user and password",
        ),
        (format!("postgres://postgres:{SECRET}@127.0.0.1:1/postgres"), "is the server running"),
        (format!("postgres://postgres:{SECRET}@no-such-host.invalid/x"), "is the server running"),
        (server.0.url_of("no_such_database"), "create the database first"),
        (format!("postgres://u:{SECRET}@h/x?sslmode=sometimes"), "verify-full"),
        (format!("{}?sslmode=require", server.0.url()), "turn on ssl"),
        (format!("postgres://u:{SECRET}@h:port/x"), "postgres://user:password@host:port/database"),
    ];
    for (url, expected) in cases {
        let options = Options::new().connect_timeout(Duration::from_secs(3));
        let error = PostgresStore::connect_with(&url, options).await.err();
        let error = error.ok_or_else(|| format!("connected to {url}"))?;
        ensure!(error.to_string().contains(expected), "{expected}: {error}");
        ensure!(!format!("{error:?}").contains(SECRET), "the password is in {error:?}");
        let kind = matches!(
            error,
            Error::Refused { .. } | Error::Unavailable { .. } | Error::Invalid { .. }
        );
        ensure!(kind, "{error:?}");
    }
    Ok(())
}

/// A certificate for this name, of its own authority: that authority's, the server's, its key.
fn certificate(name: &str) -> Result<[String; 3], rcgen::Error> {
    let authority_key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new())?;
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&authority_key)?;
    let issuer = rcgen::Issuer::new(parameters, authority_key);
    let key = rcgen::KeyPair::generate()?;
    let server = rcgen::CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &issuer)?;
    Ok([authority.pem(), server.pem(), key.serialize_pem()])
}

async fn encrypted() -> Outcome {
    let server = tenure_testkit::Postgres::start().or_fail()?;
    let folder = tempfile::tempdir()?;
    let [authority, certificate_of, key] = certificate("db.example").or_fail()?;
    let [stranger, ..] = certificate("db.example").or_fail()?;
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map(|()| path.display().to_string())
    };
    let (ours, theirs) = (file("ours.pem", &authority)?, file("theirs.pem", &stranger)?);
    server.encrypt(&certificate_of, &key).or_fail()?;
    let url = server.url();
    // Where the certificate has the name of another host, the address of this one can be given apart.
    let named = url.replace("127.0.0.1", "db.example") + "?hostaddr=127.0.0.1&";
    let good = [
        format!("{url}?sslmode=require"),
        url.clone(),
        format!("{url}?sslmode=verify-ca&sslrootcert={ours}"),
        format!("{named}sslmode=verify-full&sslrootcert={ours}"),
    ];
    for url in good {
        let store = PostgresStore::connect(&url).await?.into_store();
        store.commit(crate::common::put("a", &url)).await?;
        store.close().await;
    }
    let bad = [
        (format!("{url}?sslmode=disable"), "pg_hba.conf"),
        (format!("{url}?sslmode=verify-full&sslrootcert={ours}"), "not valid for name"),
        (format!("{named}sslmode=verify-full&sslrootcert={theirs}"), "certificate"),
        (format!("{url}?sslmode=require&sslrootcert={theirs}"), "certificate"),
    ];
    for (url, expected) in bad {
        let error = PostgresStore::connect(&url).await.err().ok_or("connected")?;
        ensure!(error.to_string().contains(expected), "{expected}: {error}");
    }
    Ok(())
}

/// Certificates end before programs do. Whoever issues them writes new ones in their place.
async fn replaced() -> Outcome {
    let server = tenure_testkit::Postgres::start().or_fail()?;
    let folder = tempfile::tempdir()?;
    let trusted = folder.path().join("trusted.pem");
    let issue = || -> Outcome {
        // By another authority each time, so that what was trusted before is worth nothing.
        let [authority, certificate_of, key] = certificate("db.example").or_fail()?;
        std::fs::write(&trusted, authority)?;
        server.encrypt(&certificate_of, &key).or_fail()
    };
    issue()?;
    let url = format!("{}?sslmode=verify-ca&sslrootcert={}", server.url(), trusted.display());
    let store = PostgresStore::connect(&url).await?.into_store();
    store.commit(crate::common::put("a", "1")).await?;
    issue()?;
    let ours = "select pg_terminate_backend(pid) from pg_stat_activity \
                where application_name like 'tenure%'";
    server.psql("postgres", ours).or_fail()?;
    crate::common::eventually("a commit over the new certificate", || async {
        Ok(store.commit(crate::common::put("a", "2")).await.is_ok())
    })
    .await
}

async fn socket(server: Server) -> Outcome {
    server.0.psql("postgres", "create database by_socket").or_fail()?;
    let folder = server.0.socket_folder().display();
    let url = format!("host={folder} port={} user=postgres dbname=by_socket", server.0.port());
    let store = PostgresStore::connect(&url).await?.into_store();
    store.commit(crate::common::put("a", "x")).await?;
    Ok(())
}
