//! A disk that is full: a small one in memory, in a namespace of a process of its own, as for the file store.

use std::path::Path;
use std::process::{Command, Output};

use tenure::store::{Put, Query};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, OrFail, ensure, ensure_eq};
use tenure_sqlite::SqliteStore;

/// The argument that makes the test binary fill the disk in the folder that follows.
pub(crate) const FILL: &str = "--fill-disk";
/// What it says when all was well.
const FILLED: &str = "filled and freed";

/// How to get a namespace with the right to mount, the simplest way first.
const WAYS: [&[&str]; 3] = [
    &["unshare", "--mount"],
    &["unshare", "--user", "--map-root-user", "--mount"],
    &["sudo", "--non-interactive", "unshare", "--mount"],
];

pub(crate) fn add(trials: &mut Trials) {
    trials.test("a_full_disk_refuses_and_works_again_once_there_is_room", small_disk);
}

fn run(way: &[&str], script: &str) -> std::io::Result<Output> {
    Command::new(way[0]).args(&way[1..]).args(["sh", "-c", script]).output()
}

async fn small_disk() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let disk = folder.path().display();
    let mount = format!("mount -t tmpfs -o size=2m tmpfs '{disk}'");
    let can = |way: &&&[&str]| run(way, &mount).is_ok_and(|out| out.status.success());
    let way = WAYS.iter().find(can);
    let way = way.ok_or("it mounts a disk: run it as root, or allow user namespaces or sudo")?;
    let program = std::env::current_exe()?;
    let then = format!("{mount} && exec '{}' {FILL} '{disk}'", program.display());
    let out = run(way, &then)?;
    let said = String::from_utf8_lossy(&out.stdout);
    ensure!(said.contains(FILLED), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// What the process on the small disk does.
pub(crate) fn fill(disk: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.or_fail().and_then(|runtime| runtime.block_on(filled(Path::new(disk)))) {
        Ok(()) => println!("{FILLED}"),
        Err(failure) => println!("{failure}"),
    }
}

async fn filled(disk: &Path) -> Result<(), Failure> {
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![0; 256 * 1024])?;
    let store = SqliteStore::open(disk.join("t.db"))?.into_store();
    let key = |n: usize| Key::new("order", n.to_string());
    let mut kept = 0;
    let full = loop {
        match store.commit(Put::new(key(kept), vec![b'x'; 24 * 1024])).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    ensure!(matches!(full, Error::Full { .. }), "{full:?}");
    ensure!(kept > 1);
    // Nothing of it was applied, what was there is there, and a second try says the same.
    ensure_eq!(store.get(&key(kept)).await?, None);
    let again = store.commit(Put::new(key(kept), vec![b'x'; 24 * 1024])).await;
    ensure!(matches!(again, Err(Error::Full { .. })), "{again:?}");
    let page = store.list(&Query::new("order")).await?;
    ensure_eq!((page.objects.len(), page.revision), (kept, kept as u64));
    std::fs::remove_file(&ballast)?;
    let written = store.commit(Put::new(key(kept), vec![b'x'; 24 * 1024])).await?;
    ensure_eq!(written.revision, Some(kept as u64 + 1));
    store.close().await;
    let store = SqliteStore::open(disk.join("t.db"))?.into_store();
    ensure_eq!(store.list_all(&Query::new("order")).await?.len(), kept + 1);
    Ok(())
}
