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
        (format!("postgres://u:{SECRET}@h/x?sslmode=require"), "TLS"),
        (format!("postgres://u:{SECRET}@h/x?sslmode=verify-full"), "sslmode"),
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

async fn socket(server: Server) -> Outcome {
    server.0.psql("postgres", "create database by_socket").or_fail()?;
    let folder = server.0.socket_folder().display();
    let url = format!("host={folder} port={} user=postgres dbname=by_socket", server.0.port());
    let store = PostgresStore::connect(&url).await?.into_store();
    store.commit(crate::common::put("a", "x")).await?;
    Ok(())
}
