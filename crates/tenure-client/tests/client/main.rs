//! The conformance suite through a running server, and what is the wire's own.

mod common;
mod declared;
mod near;
mod replicas;
mod scene;
mod services;
mod stores;
mod strangers;
mod wire;

use common::{Serving, connect};
use tenure::store::memory::MemoryStore;
use tenure_conformance::harness;

fn main() {
    harness::main(
        |url| Box::pin(async move { connect(&url).await }),
        |trials| {
            let folder = tempfile::tempdir().expect("a folder for the test");
            let file = folder.path().join("suite.db");
            let open = || tenure_sqlite::SqliteStore::open(&file).map(|store| store.into_store());
            let sqlite = Serving::start(open().expect("a store in a new file"));
            trials.suite("server_on_sqlite", sqlite.url());
            let memory = Serving::start(MemoryStore::new().into_store());
            trials.suite("server_on_memory", memory.url());
            replicas::add(trials);
            declared::add(trials);
            wire::add(trials);
            near::add(trials);
            stores::add(trials);
            strangers::add(trials);
            trials.keep((sqlite, memory, folder));
        },
    )
}
