//! Where the file is: behind a link, or nowhere that a store could be.

use std::time::Duration;

use tenure::Key;
use tenure::store::{Put, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_sqlite::SqliteStore;

pub(crate) fn add(trials: &mut Trials) {
    trials.test("a_link_to_the_file_is_as_good_as_the_file", link);
    trials.test("what_is_no_file_is_refused", no_file);
}

async fn link() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, link) = (folder.path().join("real.db"), folder.path().join("link.db"));
    std::os::unix::fs::symlink("real.db", &link)?;
    // Once before there is a file, and once after.
    for round in 1..=2 {
        let here = SqliteStore::open(&link)?.into_store();
        let there = SqliteStore::open(&path)?.into_store();
        let mut watch = here.watch(&WatchRequest::kind("k")).await?;
        there.commit(Put::new(Key::new("k", "1"), round.to_string())).await?;
        let told = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let told = told.map_err(|_| "nobody was told")?.ok_or("the watch ended")??;
        ensure_eq!(told.revision, round);
        here.close().await;
        there.close().await;
    }
    // They wait for their turn at the same door.
    let beside: Vec<_> = std::fs::read_dir(folder.path())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()?;
    ensure!(beside.iter().all(|name| !name.starts_with("link.db-")), "{beside:?}");
    Ok(())
}

async fn no_file() -> Result<(), Failure> {
    for path in [":memory:", ""] {
        let Err(error) = SqliteStore::open(path) else {
            return Err(format!("{path:?} was opened").into());
        };
        ensure!(error.to_string().contains("file"), "{path:?}: {error}");
        ensure_eq!(error.code(), "refused", "{path:?}: {error}");
    }
    Ok(())
}
