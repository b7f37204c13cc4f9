//! The conformance suite on a private Postgres, and what is Postgres' own.

mod clock;
mod common;
mod connect;
mod elsewhere;
mod flights;
mod groups;
mod holders;
mod known;
mod midway;
mod migration;
mod outage;
mod replay;
mod sql;
mod table;

use common::{HAMMER, Server, connect};

fn main() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(HAMMER) {
        let (url, large) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
        outage::hammer(&url, &large);
        return;
    }
    tenure_conformance::harness::main_with_sql(
        |url| Box::pin(async move { connect(&url).await }),
        |url| Box::pin(table::open(url)),
        |trials| {
            let server = Server::shared();
            match server.fresh_database() {
                Ok(url) => trials.suite("postgres", url),
                Err(failure) => trials.test("postgres::opens", || async { Err(failure) }),
            }
            migration::add(trials, server);
            connect::add(trials, server);
            elsewhere::add(trials, server);
            groups::add(trials, server);
            known::add(trials, server);
            midway::add(trials, server);
            flights::add(trials, server);
            outage::add(trials, server);
            replay::add(trials, server);
            sql::add(trials, server);
            holders::add(trials, server);
            clock::add(trials);
        },
    )
}
