//! The conformance suite on a private etcd, and what is etcd's own.

mod cluster;
mod common;
mod grpc_proxy;
mod holders;
mod keep_alives;
mod keys;
mod outage;
mod overload;
mod secure;

use common::{Server, connect};

fn main() {
    tenure_conformance::harness::main(
        |url| Box::pin(async move { connect(&url).await }),
        |trials| {
            let server = Server::shared();
            trials.suite("etcd", server.fresh());
            keys::add(trials, server);
            outage::add(trials, server);
            overload::add(trials, server);
            keep_alives::add(trials, server);
            secure::add(trials);
            cluster::add(trials);
            holders::add(trials, server);
        },
    )
}
