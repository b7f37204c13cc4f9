//! The SQLite store: the whole suite, a loop of killed processes, and what is SQLite's own.

mod broken;
mod examples;
mod fair;
mod known;
mod migration;
mod owners;
mod paths;
mod small_disk;
mod sql;
mod table;
mod time;

use tenure::store::Store;
use tenure_conformance::{Opener, Subject, crash, harness, holders};
use tenure_sqlite::SqliteStore;

async fn open(path: String) -> tenure::Result<Store> {
    Ok(SqliteStore::open(path)?.into_store())
}

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some(fair::HAMMER) => return fair::hammer(&args.next().unwrap_or_default()),
        Some(small_disk::FILL) => return small_disk::fill(&args.next().unwrap_or_default()),
        _ => {}
    }
    harness::main_with_sql(
        |path| Box::pin(open(path)),
        |path| Box::pin(table::open(path)),
        |trials| {
            // Made here and not before: a worker process has no use for one.
            let folder = tempfile::tempdir().expect("a folder for the test");
            let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
            let (suite, killed) = (path("suite.db"), path("killed.db"));
            trials.suite("sqlite", suite);
            let worker = Some(trials.spec_worker(killed.clone()));
            let opener: Opener = std::sync::Arc::new(move || Box::pin(open(killed.clone())));
            let subject = Subject { open: opener, worker, clock: None };
            trials.test("survives_kills", move || async move {
                crash::kill_rounds(&subject, harness::rounds(30, 200), 0x5EED).await
            });
            holders::add(trials, "sqlite", path);
            migration::add(trials);
            owners::add(trials);
            broken::add(trials);
            paths::add(trials);
            small_disk::add(trials);
            known::add(trials);
            time::add(trials);
            sql::add(trials);
            examples::add(trials);
            fair::add(trials);
            trials.keep(folder);
        },
    )
}
