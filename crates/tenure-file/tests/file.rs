//! The whole suite on the file store, killed and frozen holders, then kills at random moments.

use std::path::Path;
use std::sync::Arc;

use tenure::clock::ManualClock;
use tenure_conformance::crash::kill_rounds;
use tenure_conformance::{Subject, harness, holders};
use tenure_file::FileStore;

fn main() {
    harness::main(
        |spec| Box::pin(async move { Ok(FileStore::open(spec)?.into_store()) }),
        |trials| {
            // Started afresh: the harness ends the process, so the last run could not tidy up.
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("file-store");
            let _ = std::fs::remove_dir_all(&folder);
            let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
            trials.suite("file", path("shared"));
            trials.suite_fresh("file-manual", manual);
            holders::add(trials, "file", path);
            let (spec, worker) = (path("kills"), trials.spec_worker(path("kills")));
            trials.test("file::kills", move || async move {
                let open = Arc::new(move || {
                    let spec = spec.clone();
                    let opened = async move { Ok(FileStore::open(spec)?.into_store()) };
                    Box::pin(opened) as futures::future::BoxFuture<'static, _>
                });
                let subject = Subject { worker: Some(worker), ..Subject::new(open) };
                kill_rounds(&subject, harness::rounds(30, 200), 7).await
            });
        },
    )
}

/// A store of its own, on a clock that moves only when told.
fn manual() -> Subject {
    let clock = ManualClock::new();
    let folder = Arc::new(tempfile::tempdir());
    let own = clock.clone();
    let open = Arc::new(move || {
        let (folder, clock) = (Arc::clone(&folder), own.clone());
        let opened = async move {
            let folder = folder.as_ref().as_ref();
            let folder = folder.map_err(|e| tenure::Error::unavailable("file", e))?;
            let options = FileStore::options().clock(Arc::new(clock));
            Ok(options.open(folder.path())?.into_store())
        };
        Box::pin(opened) as futures::future::BoxFuture<'static, _>
    });
    Subject { clock: Some(clock), ..Subject::new(open) }
}
