//! A disk that is full: a small one in memory, in a namespace of a process of its own, so that whoever may
//! have such a namespace can run this, and nothing stays mounted.

use std::path::Path;
use std::process::Command;

use crate::FileStore;
use tenure::store::{Put, Query};
use tenure::{Error, Key};

/// Tells the inner process where its disk is.
const DISK: &str = "TENURE_TEST_SMALL_DISK";

/// How to get a namespace with the right to mount, the simplest way first.
const WAYS: [&[&str]; 3] = [
    &["unshare", "--mount"],
    &["unshare", "--user", "--map-root-user", "--mount"],
    &["sudo", "--non-interactive", "--preserve-env=TENURE_TEST_SMALL_DISK", "unshare", "--mount"],
];

fn key(id: &str) -> Key {
    Key::new("order", id)
}

fn run(way: &[&str], command: &[&str], disk: &Path) -> std::io::Result<std::process::Output> {
    Command::new(way[0]).args(&way[1..]).args(command).env(DISK, disk).output()
}

#[test]
fn a_full_disk_refuses_and_works_again_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=384k tmpfs '{}'", folder.path().display());
    let can = |way: &&&[&str]| {
        run(way, &["sh", "-c", &mount], folder.path()).is_ok_and(|out| out.status.success())
    };
    let Some(way) = WAYS.iter().find(can) else {
        panic!("this test mounts a small disk: run it as root, or allow user namespaces or sudo");
    };
    let program = std::env::current_exe().unwrap();
    let test = "tests::full::on_a_small_disk";
    let then = format!("{mount} && exec '{}' --ignored --exact {test}", program.display());
    let out = run(way, &["sh", "-c", &then], folder.path()).unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}\n{out:?}");
}

#[tokio::test]
#[ignore = "the test above runs it where the disk is small"]
async fn on_a_small_disk() {
    let disk = std::env::var(DISK).unwrap();
    let (root, ballast) = (Path::new(&disk).join("store"), Path::new(&disk).join("ballast"));
    std::fs::write(&ballast, vec![0; 128 * 1024]).unwrap();
    let store = FileStore::open(root).unwrap().into_store();
    let big = vec![b'x'; 24 * 1024];
    let mut kept = 0;
    let full = loop {
        let put = Put::new(key(&kept.to_string()), big.clone());
        match store.commit(put).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(kept > 1);
    // Nothing of it was applied, and what was there is there.
    assert!(store.get(&key(&kept.to_string())).await.unwrap().is_none());
    let page = store.list(&Query::new("order")).await.unwrap();
    assert_eq!((page.objects.len(), page.revision), (kept, kept as u64));
    // A small commit that shares a group with a large one does not suffer from it.
    let small = store.commit(Put::new(key("small"), "x"));
    let large = store.commit(Put::new(key("large"), big.clone()));
    let (small, large) = tokio::join!(small, large);
    assert!(small.is_ok(), "{small:?}");
    assert!(matches!(large, Err(Error::Full { .. })), "{large:?}");
    std::fs::remove_file(ballast).unwrap();
    let again = store.commit(Put::new(key("large"), big)).await.unwrap();
    assert_eq!(again.revision, Some(kept as u64 + 2));
    store.close().await;
}
