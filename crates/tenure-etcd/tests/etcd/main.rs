//! The conformance suite on a private etcd, and what is etcd's own.

mod common;

use common::{Server, connect};

fn main() {
    tenure_conformance::harness::main(
        |url| Box::pin(async move { connect(&url).await }),
        |trials| {
            let server = Server::shared();
            trials.suite("etcd", server.fresh());
        },
    )
}
