//! The conformance suite on a private NATS server, and what is NATS' own.

mod back;
mod buckets;
mod cluster;
mod common;
mod connect;
mod credentials;
mod ends;
mod holders;
mod outage;
mod requests;
mod traps;

use common::{Server, open};

fn main() {
    tenure_conformance::harness::main(
        |url| Box::pin(async move { open(&url).await }),
        |trials| {
            let server = Server::shared();
            trials.suite("nats", server.fresh_bucket());
            traps::add(trials, server);
            ends::add(trials, server);
            requests::add(trials, server);
            buckets::add(trials, server);
            connect::add(trials, server);
            credentials::add(trials);
            outage::add(trials);
            back::add(trials, server);
            cluster::add(trials);
            holders::add(trials);
        },
    )
}
