//! The conformance suite on a private Postgres, and what is Postgres' own.

use tenure_postgres::PostgresStore;
use tenure_testkit::Postgres;

fn main() {
    tenure_conformance::harness::main(
        |url| Box::pin(async move { Ok(PostgresStore::connect(&url).await?.into_store()) }),
        |trials| {
            let server = Postgres::start().unwrap_or_else(|error| panic!("{error:#}"));
            let server: &'static Postgres = Box::leak(Box::new(server));
            let url = server.fresh_database().unwrap_or_else(|error| panic!("{error:#}"));
            trials.suite("postgres", url);
        },
    )
}
