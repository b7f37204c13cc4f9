//! The conformance suite on a private NATS server, and what is NATS' own.

mod common;

use common::{Server, connect};

fn main() {
    tenure_conformance::harness::main(
        |url| Box::pin(async move { connect(&url).await }),
        |trials| {
            let server = Server::shared();
            trials.suite("nats", server.fresh_bucket());
        },
    )
}
